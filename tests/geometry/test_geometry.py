"""Geometries against definitions, an independent convex solver and hand-made certificates of optimality."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import xlogy

from digits import LIMITS, rounded
from ergodrift import Ball, Box, CappedSimplex, EntropySimplex, Geometry, L1Ball, Product, Scaled, Shifted, Simplex

PROPERTY = settings(derandomize=True, database=None, deadline=None, max_examples=20)
ROUNDING = rounded(1e-11)  # a few hundred roundings of numbers up to about 100
in_float64 = pytest.mark.x64("it asks for float64 itself")


class Domain(NamedTuple):
    """A domain written down a second time, over flat vectors and without any code of the package."""

    size: int
    constraints: Callable[[Any], list[Any]]  # of a cvxpy vector
    violation: Callable[[np.ndarray], float]  # by how much a vector breaks them; not positive inside
    point: Callable[[np.ndarray], np.ndarray]  # a map of the unit cube into the domain
    lowest: Callable[[np.ndarray], np.ndarray]  # c -> argmin of c.z over the domain
    apart: tuple[np.ndarray, np.ndarray]  # y, z with D(y, z) as large as it can be
    furthest: np.ndarray  # the point of largest Euclidean norm
    aligned: Callable[[np.ndarray], np.ndarray]  # g -> the x with g.x = ||g||_*^2 and ||x|| = ||g||_*
    entropic: np.ndarray  # which entries have the mirror map 2 x log x; the others have x^2


def unit(size: int, index: int) -> np.ndarray:
    return np.eye(size)[index]


def ball(size: int, radius: float) -> Domain:
    return Domain(
        size,
        lambda v: [cp.norm2(v) <= radius],
        lambda y: float(np.linalg.norm(y)) - radius,
        lambda u: radius * (2 * u - 1) / max(1.0, float(np.linalg.norm(2 * u - 1))),
        lambda c: -radius * c / (np.linalg.norm(c) or 1.0),
        (np.full(size, radius / np.sqrt(size)), np.full(size, -radius / np.sqrt(size))),
        radius * unit(size, 0),
        lambda g: g,
        np.zeros(size, dtype=bool),
    )


def box(lower: list[float], upper: list[float]) -> Domain:
    low, high = np.array(lower, dtype=float), np.array(upper, dtype=float)
    return Domain(
        low.size,
        lambda v: [v >= low, v <= high],
        lambda y: float(np.maximum(low - y, y - high).max()),
        lambda u: low + u * (high - low),
        lambda c: np.where(c > 0, low, high),
        (low, high),
        np.where(np.abs(low) > np.abs(high), low, high),
        lambda g: g,
        np.zeros(low.size, dtype=bool),
    )


def simplex(size: int, floor: float = 0.0, *, entropic: bool = False) -> Domain:
    mass = 1 - size * floor
    # The entropy needs points with positive entries to start from; the Euclidean simplex may start on its boundary.
    inner = 1e-3 if entropic else 0.0
    return Domain(
        size,
        lambda v: [v >= floor, cp.sum(v) == 1],
        lambda y: float(max(floor - y.min(), abs(y.sum() - 1))),
        lambda u: floor + mass * (u + inner) / (u + inner).sum() if u.any() else np.full(size, 1 / size),
        lambda c: floor + mass * unit(size, int(np.argmin(c))),
        (floor + mass * unit(size, 0), floor + mass * unit(size, size - 1)),
        floor + mass * unit(size, 1),
        lambda g: np.where(np.arange(size) == np.argmax(np.abs(g)), g, 0.0) if entropic else g,
        np.full(size, entropic),
    )


def l1_ball(size: int, radius: float) -> Domain:
    def lowest(c: np.ndarray) -> np.ndarray:
        index = int(np.argmax(np.abs(c)))
        return -radius * np.sign(c[index]) * unit(size, index)

    return Domain(
        size,
        lambda v: [cp.norm1(v) <= radius],
        lambda y: float(np.abs(y).sum()) - radius,
        lambda u: radius * (2 * u - 1) / max(1.0, float(np.abs(2 * u - 1).sum())),
        lowest,
        (radius * unit(size, 0), -radius * unit(size, 0)),
        radius * unit(size, 1),
        lambda g: g,
        np.zeros(size, dtype=bool),
    )


def capped(size: int, cap: float, vertices: list[list[float]]) -> Domain:
    """Entries up to cap that sum to 1; of the vertices given, the first and the last are furthest apart."""

    def point(u: np.ndarray) -> np.ndarray:
        y = np.minimum((u + 1e-3) / (u + 1e-3).sum(), cap)
        room = cap - y
        return y + (1 - y.sum()) * room / room.sum()

    def lowest(c: np.ndarray) -> np.ndarray:
        filled = np.diff(np.minimum(cap * np.arange(size + 1), 1.0))
        return filled[np.argsort(np.argsort(c, kind="stable"))]

    return Domain(
        size,
        lambda v: [v >= 0, v <= cap, cp.sum(v) == 1],
        lambda y: float(max(-y.min(), y.max() - cap, abs(y.sum() - 1))),
        point,
        lowest,
        (np.array(vertices[0]), np.array(vertices[-1])),
        np.array(vertices[0]),
        lambda g: g,
        np.zeros(size, dtype=bool),
    )


def image(domain: Domain, shift: np.ndarray, factor: float, furthest: np.ndarray) -> Domain:
    """{shift + factor z}, of a domain with a Euclidean mirror map."""
    return domain._replace(
        constraints=lambda v: domain.constraints((v - shift) / factor),
        violation=lambda y: factor * domain.violation((y - shift) / factor),
        point=lambda u: shift + factor * domain.point(u),
        lowest=lambda c: shift + factor * domain.lowest(c),
        apart=(shift + factor * domain.apart[0], shift + factor * domain.apart[1]),
        furthest=furthest,
    )


def join(*parts: Domain) -> Domain:
    cuts = np.cumsum([part.size for part in parts])[:-1]

    def split(v: Any) -> list[Any]:
        starts, ends = [0, *cuts], [*cuts, v.size]
        return [(part, v[int(a) : int(b)]) for part, a, b in zip(parts, starts, ends, strict=True)]

    return Domain(
        sum(part.size for part in parts),
        lambda v: [constraint for part, piece in split(v) for constraint in part.constraints(piece)],
        lambda y: max(part.violation(piece) for part, piece in split(y)),
        lambda u: np.concatenate([part.point(piece) for part, piece in split(u)]),
        lambda c: np.concatenate([part.lowest(piece) for part, piece in split(c)]),
        (np.concatenate([part.apart[0] for part in parts]), np.concatenate([part.apart[1] for part in parts])),
        np.concatenate([part.furthest for part in parts]),
        lambda g: np.concatenate([part.aligned(piece) for part, piece in split(g)]),
        np.concatenate([part.entropic for part in parts]),
    )


class Case(NamedTuple):
    geometry: Geometry
    like: Any  # a point's structure and shapes
    domain: Domain  # the same set over the entries of all leaves in a row

    def tree(self, flat: np.ndarray) -> Any:
        leaves, structure = jax.tree.flatten(self.like)
        pieces = np.split(flat, np.cumsum([leaf.size for leaf in leaves])[:-1])
        return structure.unflatten([a.reshape(b.shape) for a, b in zip(pieces, leaves, strict=True)])


TREE = {"b": np.zeros(()), "w": np.zeros((2, 2))}
CASES = {
    "ball": Case(Ball(2.0), np.zeros(4), ball(4, 2.0)),
    "ball of a tree": Case(Ball(0.5), TREE, ball(5, 0.5)),
    "box with scalar bounds": Case(Box(-1.0, 2.0), np.zeros(3), box([-1.0] * 3, [2.0] * 3)),
    "box with array bounds": Case(
        Box(np.array([-1.0, 0.5, -3.0]), np.array([1.0, 0.5, -2.0])), np.zeros(3), box([-1, 0.5, -3], [1, 0.5, -2])
    ),
    "box with tree bounds": Case(
        Box({"b": -2.0, "w": np.array([[0.0, 1.0], [2.0, 3.0]])}, 4.0), TREE, box([-2, 0, 1, 2, 3], [4.0] * 5)
    ),
    "simplex": Case(Simplex(), np.zeros(5), simplex(5)),
    "simplex of a tree": Case(Simplex(), TREE, simplex(5)),
    "entropy": Case(EntropySimplex(), np.zeros(4), simplex(4, entropic=True)),
    "entropy of a tree": Case(EntropySimplex(), TREE, simplex(5, entropic=True)),
    "floored entropy": Case(EntropySimplex(0.05), np.zeros(4), simplex(4, 0.05, entropic=True)),
    "floored entropy of a tree": Case(EntropySimplex(0.15), TREE, simplex(5, 0.15, entropic=True)),
    "l1 ball": Case(L1Ball(1.5), np.zeros(4), l1_ball(4, 1.5)),
    "l1 ball of a tree": Case(L1Ball(3.0), TREE, l1_ball(5, 3.0)),
    "capped simplex": Case(
        CappedSimplex(0.4), np.zeros(5), capped(5, 0.4, [[0.4, 0.4, 0.2, 0, 0], [0, 0, 0.2, 0.4, 0.4]])
    ),
    "shifted ball": Case(
        Shifted(Ball(2.0), np.array([3.0, 0.0, 4.0])),
        np.zeros(3),
        image(ball(3, 2.0), np.array([3.0, 0.0, 4.0]), 1.0, 7 / 5 * np.array([3.0, 0.0, 4.0])),
    ),
    "scaled simplex": Case(Scaled(Simplex(), 3.0), np.zeros(4), image(simplex(4), np.zeros(4), 3.0, 3 * unit(4, 0))),
    "product": Case(
        Product(Ball(2.0), Box(-1.0, 1.0), L1Ball(1.0)),
        (np.zeros(3), np.zeros(()), np.zeros(2)),
        join(ball(3, 2.0), box([-1.0], [1.0]), l1_ball(2, 1.0)),
    ),
    "product over a dict": Case(
        Product({"free": Ball(1.0), "law": EntropySimplex(0.05), "mix": Simplex()}),
        {"free": TREE, "law": np.zeros(3), "mix": np.zeros(2)},
        join(ball(5, 1.0), simplex(3, 0.05, entropic=True), simplex(2)),
    ),
    "product in a product": Case(
        Product(Product([EntropySimplex(), Ball(3.0)]), Box(0.0, 1.0)),
        ([np.zeros(3), np.zeros(2)], np.zeros(2)),
        join(simplex(3, entropic=True), ball(2, 3.0), box([0, 0], [1, 1])),
    ),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@functools.partial(jax.jit, static_argnums=0)
def call(method: str, geometry: Geometry, *args: Any) -> Any:
    return getattr(geometry, method)(*args)


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def vectors(size: int, bound: float) -> Any:
    # Entries are numbers of half the width, so that the square of the smallest is not yet zero.
    width = 16 if LIMITS.bits == 32 and bound < 6e4 else 32
    return hnp.arrays(float, size, elements=st.floats(-bound, bound, width=width))


def points(domain: Domain) -> Any:
    return hnp.arrays(float, domain.size, elements=st.floats(0, 1, width=32)).map(domain.point)


def mirror_slope(domain: Domain, x: np.ndarray) -> np.ndarray:
    """The gradient of the mirror map, less a constant that does not matter on a simplex."""
    return np.where(domain.entropic, 2 * np.log(np.where(domain.entropic, x, 1.0)), 2 * x)


def excess(domain: Domain, slope: np.ndarray, y: np.ndarray) -> float:
    """The most that slope.z can fall below slope.y in the domain: zero exactly where y minimises."""
    return float(slope @ (y - domain.lowest(slope)))


# What Clarabel is asked for, and what its answers are trusted to: its tolerances are relative to the size of its own
# conic form of the problem. The objectives here are 2-strongly convex, so a point that is within g of the least value
# is within sqrt(g / proximity) of the minimiser.
TIGHT, GAP = 1e-10, 1e-9


def solve(domain: Domain, objective: Callable[[Any], Any]) -> tuple[np.ndarray, float]:
    v = cp.Variable(domain.size)
    problem = cp.Problem(cp.Minimize(objective(v)), domain.constraints(v))
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=TIGHT, tol_gap_rel=TIGHT, tol_feas=TIGHT)
    assert problem.status == cp.OPTIMAL
    return np.asarray(v.value), abs(float(problem.value))  # pyright: ignore[reportArgumentType]


@every_case
@pytest.mark.parametrize("proximity", [0.1, 1.0, 20.0])
def test_prox_agrees_with_an_independent_solver(case, proximity):
    domain, rng = case.domain, np.random.default_rng(0)
    x, direction = domain.point(rng.uniform(size=domain.size)), rng.normal(size=domain.size) * 3

    def objective(v: Any) -> Any:
        squares = cp.sum_squares(v[~domain.entropic] - x[~domain.entropic]) if not domain.entropic.all() else 0
        entropy = cp.sum(cp.kl_div(v[domain.entropic], x[domain.entropic])) if domain.entropic.any() else 0
        return direction @ v + proximity * (squares + 2 * entropy)

    wanted, value = solve(domain, objective)
    got = flat(call("prox", case.geometry, case.tree(x), case.tree(direction), proximity))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=np.sqrt(GAP * max(1.0, value) / proximity) + rounded(1e-13))


@every_case
@pytest.mark.parametrize("distance", [0.3, 3.0, 30.0])
def test_project_agrees_with_an_independent_solver(case, distance):
    x = np.random.default_rng(1).normal(size=case.domain.size) * distance
    wanted, value = solve(case.domain, lambda v: cp.sum_squares(v - x))
    got = flat(call("project", case.geometry, case.tree(x)))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=np.sqrt(GAP * max(1.0, value)) + rounded(1e-13))


@every_case
@PROPERTY
@given(data=st.data())
def test_no_point_of_the_domain_beats_the_prox(case, data):
    domain = case.domain
    x, direction = data.draw(points(domain)), data.draw(vectors(domain.size, 20.0))
    proximity = data.draw(st.sampled_from([0.3, 1.0, 50.0]))
    y = flat(call("prox", case.geometry, case.tree(x), case.tree(direction), proximity))
    assert domain.violation(y) <= ROUNDING
    slope = direction + proximity * (mirror_slope(domain, y) - mirror_slope(domain, x))
    assert excess(domain, slope, y) <= ROUNDING * (1 + np.abs(direction).sum() + proximity)


@every_case
@PROPERTY
@given(data=st.data())
def test_the_prox_satisfies_the_three_point_inequality(case, data):
    domain, geometry = case.domain, case.geometry
    x, z, direction = data.draw(points(domain)), data.draw(points(domain)), data.draw(vectors(domain.size, 20.0))
    proximity = data.draw(st.sampled_from([0.3, 1.0, 50.0]))
    x, z = case.tree(x), case.tree(z)
    y = call("prox", geometry, x, case.tree(direction), proximity)
    at_prox = direction @ flat(y) + proximity * (call("bregman", geometry, y, x) + call("bregman", geometry, z, y))
    at_z = direction @ flat(z) + proximity * call("bregman", geometry, z, x)
    assert at_prox <= at_z + ROUNDING * (1 + np.abs(direction).sum() + abs(at_z))


@every_case
@PROPERTY
@given(data=st.data())
def test_project_gives_the_nearest_point(case, data):
    domain = case.domain
    x = data.draw(vectors(domain.size, 10.0))
    y = flat(call("project", case.geometry, case.tree(x)))
    assert domain.violation(y) <= ROUNDING
    assert excess(domain, 2 * (y - x), y) <= ROUNDING * 10


@every_case
@PROPERTY
@given(data=st.data())
def test_project_leaves_points_of_the_domain_alone(case, data):
    inside, anywhere = data.draw(points(case.domain)), data.draw(vectors(case.domain.size, 10.0))
    once = call("project", case.geometry, case.tree(anywhere))
    np.testing.assert_allclose(flat(call("project", case.geometry, once)), flat(once), rtol=0, atol=rounded(1e-14))
    np.testing.assert_allclose(
        flat(call("project", case.geometry, case.tree(inside))), inside, rtol=0, atol=rounded(1e-14)
    )


@every_case
@PROPERTY
@given(data=st.data())
def test_bregman_is_the_divergence_of_the_mirror_map_and_bounds_the_squared_norm(case, data):
    domain, geometry = case.domain, case.geometry
    x, y = data.draw(points(domain)), data.draw(points(domain))

    def mirror_map(v: np.ndarray) -> float:
        return float(np.sum(np.where(domain.entropic, 2 * xlogy(v, np.abs(v)), v**2)))

    # On a simplex the constant that `mirror_slope` leaves out has no effect: x - y sums to zero.
    wanted = mirror_map(x) - mirror_map(y) - mirror_slope(domain, y) @ (x - y)
    got = float(call("bregman", geometry, case.tree(x), case.tree(y)))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=ROUNDING)
    assert got >= float(call("norm", geometry, case.tree(x - y))) ** 2 - ROUNDING


@every_case
@PROPERTY
@given(data=st.data())
def test_no_point_is_beyond_the_diameter_or_the_reach(case, data):
    x, y = data.draw(points(case.domain)), data.draw(points(case.domain))
    between = float(call("bregman", case.geometry, case.tree(x), case.tree(y)))
    assert between <= float(call("diameter", case.geometry, case.like)) ** 2 + ROUNDING
    assert np.linalg.norm(x) <= float(call("reach", case.geometry, case.like)) + ROUNDING


@every_case
def test_the_diameter_is_attained(case):
    y, z = case.domain.apart
    assert max(case.domain.violation(y), case.domain.violation(z)) <= ROUNDING
    between = call("bregman", case.geometry, case.tree(y), case.tree(z))
    np.testing.assert_allclose(float(case.geometry.diameter(case.like)) ** 2, float(between), rtol=rounded(1e-14))


@every_case
def test_the_reach_is_attained(case):
    furthest = case.domain.furthest
    assert case.domain.violation(furthest) <= ROUNDING
    np.testing.assert_allclose(float(case.geometry.reach(case.like)), np.linalg.norm(furthest), rtol=rounded(1e-14))


@every_case
@PROPERTY
@given(data=st.data())
def test_dual_norm_is_the_largest_product_with_a_unit_vector(case, data):
    geometry, size = case.geometry, case.domain.size
    g, x = data.draw(vectors(size, 10.0)), data.draw(vectors(size, 10.0))
    dual = float(call("dual_norm", geometry, case.tree(g)))
    assert abs(g @ x) <= dual * float(call("norm", geometry, case.tree(x))) * (1 + rounded(1e-14))
    best = case.domain.aligned(g)
    np.testing.assert_allclose(g @ best, dual**2, rtol=rounded(1e-14))
    np.testing.assert_allclose(float(call("norm", geometry, case.tree(best))), dual, rtol=rounded(1e-14))


@every_case
def test_contains_tells_inside_from_outside(case):
    rng, furthest = np.random.default_rng(2), case.domain.furthest
    for inside in [furthest, *map(case.domain.point, rng.uniform(size=(5, case.domain.size)))]:
        assert call("contains", case.geometry, case.tree(inside))
    assert not call("contains", case.geometry, case.tree(furthest * (1 + 64 * LIMITS.eps**0.5)))
    assert not call("contains", case.geometry, case.tree(np.where(furthest == furthest.max(), np.nan, furthest)))


@pytest.mark.parametrize("name", ["ball", "box with scalar bounds", "simplex", "entropy", "l1 ball", "product"])
def test_contains_refuses_infinite_and_huge_entries(name):
    geometry, _, domain = CASES[name]
    huge = float(LIMITS.max) ** 0.65  # its square is infinite
    for entry in (np.inf, -np.inf, huge, -huge):
        x = np.where(np.arange(domain.size) == 0, entry, domain.furthest)
        assert not call("contains", geometry, CASES[name].tree(x)), entry


# Under transformations, and in either precision


METHODS = {
    "prox": lambda x, y, direction: (x, direction, 0.5),
    "project": lambda x, y, direction: (direction,),
    "bregman": lambda x, y, direction: (x, y),
    "norm": lambda x, y, direction: (direction,),
    "dual_norm": lambda x, y, direction: (direction,),
    "diameter": lambda x, y, direction: (x,),
    "reach": lambda x, y, direction: (x,),
    "contains": lambda x, y, direction: (x,),
}


@every_case
def test_float32_points_give_float32_results_under_strict_promotion(case):
    domain, rng = case.domain, np.random.default_rng(4)
    x, y = (domain.point(u) for u in rng.uniform(size=(2, domain.size)))
    wide = [case.tree(v) for v in (x, y, rng.normal(size=domain.size))]
    narrow = jax.tree.map(np.float32, wide)

    @jax.jit
    def everything(geometry: Geometry, points: Any) -> Any:
        return {
            name: jax.tree.map(jnp.asarray, getattr(geometry, name)(*args(*points))) for name, args in METHODS.items()
        }

    with jax.numpy_dtype_promotion("strict"):
        got = everything(case.geometry, narrow)
    assert got.pop("contains")
    for name, value in got.items():
        # The sizes of a ball are numbers that the user gave: they take the dtype of what they meet.
        takes_any = name in ("diameter", "reach") and value.weak_type
        assert takes_any or {leaf.dtype for leaf in jax.tree.leaves(value)} == {jnp.dtype("float32")}, name
        # Sums of a few terms of size 10 at most, rounded to 24 bits.
        wanted = call(name, case.geometry, *METHODS[name](*wide))
        np.testing.assert_allclose(flat(value), flat(wanted), rtol=1e-5, atol=1e-5)


@every_case
def test_numpy_points_need_no_conversion(case):
    """Also where JAX has no 64-bit numbers and the points do: without a warning, and in the precision of the moment."""
    rng = np.random.default_rng(4)
    wide = [
        case.tree(v) for v in (*map(case.domain.point, rng.uniform(size=(2, case.domain.size))), case.domain.furthest)
    ]
    for name, args in METHODS.items():
        got = getattr(case.geometry, name)(*args(*wide))
        np.testing.assert_allclose(
            flat(got), flat(call(name, case.geometry, *args(*wide))), rtol=rounded(1e-14), atol=rounded(1e-14)
        )


@pytest.mark.parametrize("name", ["product", "product over a dict"])
def test_batches_equal_one_point_at_a_time(name):
    case, rng = CASES[name], np.random.default_rng(5)
    xs = [case.tree(case.domain.point(u)) for u in rng.uniform(size=(3, case.domain.size))]
    directions = [case.tree(v) for v in rng.normal(size=(3, case.domain.size))]
    stacked = [jax.tree.map(lambda *leaves: np.stack(leaves), *trees) for trees in (xs, directions)]
    proximities = np.array([0.2, 1.0, 7.0])
    together = jax.jit(jax.vmap(case.geometry.prox))(*stacked, proximities)
    for i in range(3):
        alone = case.geometry.prox(xs[i], directions[i], proximities[i])
        got = jax.tree.map(lambda leaf, i=i: leaf[i], together)
        np.testing.assert_allclose(flat(got), flat(alone), rtol=rounded(1e-14), atol=rounded(1e-15))


SWEEPS = {
    "ball": Ball,
    "box": lambda size: Box(-size, size),
    "l1 ball": L1Ball,
    "floored entropy": EntropySimplex,
    "capped simplex": lambda size: CappedSimplex(0.4 + size),
    "shifted": lambda size: Shifted(Ball(1.0), size),
    "scaled": lambda size: Scaled(EntropySimplex(0.1), size),
    "product": lambda size: Product([Ball(size), EntropySimplex(size)]),
}


@pytest.mark.parametrize("make", SWEEPS.values(), ids=SWEEPS.keys())
def test_a_sweep_over_sizes_is_a_vmap(make):
    sizes = np.array([0.05, 0.1, 0.2])
    x, direction = jnp.array([0.5, 0.3, 0.2]), jnp.array([3.0, -2.0, 0.1])
    if isinstance(make(0.1), Product):
        x, direction = [x] * 2, [direction] * 2

    def results(geometry: Geometry) -> Any:
        return geometry.prox(x, direction, 1.0), geometry.project(direction), geometry.diameter(x), geometry.reach(x)

    together = jax.jit(jax.vmap(lambda size: results(make(size))))(sizes)
    alone = jax.jit(results)
    for i, size in enumerate(sizes):
        got = jax.tree.map(lambda leaf, i=i: leaf[i], together)
        np.testing.assert_allclose(flat(got), flat(alone(make(size))), rtol=rounded(1e-14))


def test_a_new_radius_does_not_recompile():
    traces = []

    @jax.jit
    def step(geometry: Geometry, x: jax.Array) -> jax.Array:
        traces.append(1)
        return geometry.project(x)

    for radius in (1.0, 2.0, 3.5):
        np.testing.assert_allclose(jnp.linalg.norm(step(Ball(radius), jnp.ones(3) * 9)), radius, rtol=rounded(1e-15))
    assert len(traces) == 1


# Far points and extreme directions


@pytest.mark.parametrize(
    ("dtype", "distance"),
    [
        ("float32", 3e5),
        ("float32", 3e12),
        pytest.param("float64", 3e12, marks=in_float64),
        pytest.param("float64", 3e25, marks=in_float64),
    ],
)
@pytest.mark.parametrize(
    ("geometry", "domain"),
    [
        (Ball(2.0), ball(4, 2.0)),
        (Box(-1.0, 2.0), box([-1.0] * 4, [2.0] * 4)),
        (Simplex(), simplex(4)),
        (EntropySimplex(), simplex(4)),
        (EntropySimplex(0.05), simplex(4, 0.05)),
        (L1Ball(1.5), l1_ball(4, 1.5)),
        (CappedSimplex(0.6), capped(4, 0.6, [[0.6, 0.4, 0, 0]])),
    ],
    ids=["ball", "box", "simplex", "entropy", "floored entropy", "l1 ball", "capped simplex"],
)
@pytest.mark.parametrize("x", [[1.0, 0.0, 0.5, -0.25], [0.3, 0.3, 0.3, 0.3]], ids=["one largest", "all equal"])
def test_a_far_point_is_projected_onto_the_domain(geometry, domain, x, dtype, distance):
    rounding = 20 * float(jnp.finfo(dtype).eps)
    y = np.asarray(call("project", geometry, jnp.asarray(distance * np.array(x), dtype)), dtype=float)
    assert domain.violation(y) <= rounding
    # Far out, the nearest point is the one that goes furthest in the direction of x.
    np.testing.assert_allclose(np.dot(x, y), np.dot(x, domain.lowest(-np.array(x))), rtol=rounding)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=in_float64)])
@pytest.mark.parametrize("floor", [0.0, 0.01])
@PROPERTY
@given(direction=vectors(6, 1e6), proximity=st.sampled_from([1e-3, 1.0, 1e6]))
def test_entropy_prox_takes_huge_directions(dtype, floor, direction, proximity):
    x = jnp.array([0.5, 0.2, 0.1, 0.1, 0.09, 0.01], dtype)
    y = call("prox", EntropySimplex(floor), x, jnp.asarray(direction, dtype), proximity)
    assert y.dtype == dtype
    assert np.isfinite(y).all()
    assert y.min() >= jnp.asarray(floor, dtype)
    np.testing.assert_allclose(np.sum(y, dtype=float), 1.0, rtol=6 * float(jnp.finfo(dtype).eps))


@pytest.mark.x64("in float32 1e6 + log 4 is rounded to 1e6 + 1.375")
def test_entropy_prox_has_the_closed_form_where_its_exponentials_underflow():
    direction = jnp.array([1e6, 1e6 + np.log(4.0), 3e6])
    y = EntropySimplex().prox(jnp.ones(3) / 3, direction, 0.5)
    # 1e6 + log 4 itself is rounded to 1e-10; the last entry is exp(-2e6), for which the smallest number stands in
    np.testing.assert_allclose(y, [0.8, 0.2, 0.0], rtol=1e-9, atol=1e-270)
    assert y[2] > 0


def test_entropy_prox_lifts_zero_entries_off_the_boundary():
    """Exactly it would keep them there for ever; the smallest number changes nothing else, and they can come back."""
    y = EntropySimplex().prox(jnp.array([0.0, 0.25, 0.75]), jnp.array([-9.0, 0.0, 0.0]), 1.0)
    np.testing.assert_allclose(y, [0.0, 0.25, 0.75], rtol=rounded(1e-15), atol=float(LIMITS.tiny) ** 0.87)
    assert y[0] > 0


def test_entropy_prox_by_hand_with_a_floor():
    # Without a floor: (45, 15, 1) / 61. The last entry goes up to 0.2; the others share what is left as 3 to 1, which
    # would leave 0.2 for the second, so it stands on the floor as well.
    y = EntropySimplex(0.2).prox(jnp.ones(3) / 3, -jnp.log(jnp.array([45.0, 15.0, 1.0])), 0.5)
    np.testing.assert_allclose(y, [0.6, 0.2, 0.2], rtol=rounded(1e-14))
    # With a floor of 0.1 the second stays free: 0.9 is shared as 3 to 1.
    y = EntropySimplex(0.1).prox(jnp.ones(3) / 3, -jnp.log(jnp.array([45.0, 15.0, 1.0])), 0.5)
    np.testing.assert_allclose(y, [0.675, 0.225, 0.1], rtol=rounded(1e-14))


# What is refused

CONSTRUCTOR_ERRORS = [
    (lambda: Ball(0), ValueError, "radius must be .*> 0, got 0"),
    (lambda: Ball(-1.5), ValueError, "radius must be .*> 0, got -1.5"),
    (lambda: Ball(float("nan")), ValueError, "radius must be .*got nan"),
    (lambda: Ball(float("inf")), ValueError, "radius must be .*finite.*got inf"),
    (lambda: Ball(np.array([1.0, 2.0])), TypeError, r"radius must be one number, got an array of shape \(2,\).*vmap"),
    (lambda: Ball("wide"), TypeError, "radius must be a number, got 'wide'"),
    (lambda: L1Ball(0.0), ValueError, "radius must be .*> 0, got 0.0"),
    (lambda: L1Ball(float("nan")), ValueError, "radius must be .*got nan"),
    (lambda: L1Ball(jnp.ones(3)), TypeError, r"radius must be one number, got an array of shape \(3,\)"),
    (lambda: Box(1.0, -1.0), ValueError, "lower must not exceed upper anywhere, got lower=1.0, upper=-1.0"),
    (lambda: Box(np.zeros(2), np.array([1.0, -1.0])), ValueError, "lower must not exceed upper anywhere"),
    (lambda: Box({"w": 0.0, "b": 2.0}, 1.0), ValueError, "lower must not exceed upper anywhere"),
    (lambda: Box(-np.inf, 1.0), ValueError, "lower holds -inf"),
    (lambda: Box(0.0, np.array([1.0, np.inf])), ValueError, r"upper holds inf at index \(1,\)"),
    (lambda: Box(np.nan, 1.0), ValueError, "lower holds nan"),
    (lambda: Box({"w": 0.0, "b": 0.0}, {"w": 1.0, "c": 1.0}), ValueError, "lower and upper must have the same struct"),
    (lambda: Box((0.0, 0.0), (1.0, 1.0, 1.0)), ValueError, "lower and upper must have the same structure"),
    (lambda: Box(np.zeros(2), np.ones(3)), ValueError, r"lower and upper.*\(2,\).*\(3,\)"),
    (lambda: EntropySimplex(-0.1), ValueError, "floor must be .*>= 0, got -0.1"),
    (lambda: EntropySimplex(float("nan")), ValueError, "floor must be .*got nan"),
    (lambda: EntropySimplex([0.1, 0.2]), TypeError, r"floor must be one number, got an array of shape \(2,\)"),
    (lambda: CappedSimplex(0.0), ValueError, "cap must be .*> 0, got 0.0"),
    (lambda: CappedSimplex(0.5, -1.0), ValueError, "total must be .*> 0, got -1.0"),
    (lambda: Shifted(3.0, 1.0), TypeError, "Shifted takes a geometry such as .* first, got 3.0"),
    (lambda: Shifted(Ball(1.0), np.nan), ValueError, "by holds nan"),
    (lambda: Scaled(Ball(1.0), 0.0), ValueError, "by must be .*> 0, got 0.0"),
    (lambda: Product(), TypeError, "Product takes geometries"),
    (lambda: Product(Ball(1.0), 3.0), TypeError, "Product takes geometries.*3.0"),
    (lambda: Product({"w": Ball(1.0), "b": "box"}), TypeError, "Product takes geometries.*'box'"),
]


@pytest.mark.parametrize(("make", "error", "message"), CONSTRUCTOR_ERRORS)
def test_constructors_refuse_what_is_no_domain(make, error, message):
    with pytest.raises(error, match=message):
        make()


CHECK_ERRORS = [
    (Box(np.zeros(2), 1.0), jnp.zeros(3), r"Box: lower has shapes \(2,\), x has \(3,\)"),
    (Box(0.0, np.ones((1, 3))), jnp.zeros((2, 3)), r"Box: upper has shapes \(1, 3\), x has \(2, 3\)"),
    (Box({"w": 0.0}, 1.0), jnp.zeros(3), "Box: lower has structure .*'w'.*pass one number or the same structure"),
    (Box(0.0, np.ones(3)), {"w": jnp.zeros(3)}, "Box: upper has structure .*pass one number or the same structure"),
    (Box(0.0, {"w": 1.0, "b": 1.0}), {"w": jnp.zeros(3)}, "Box: upper has structure"),
    (Simplex(), jnp.ones(1), "Simplex needs a point with at least two entries, got 1"),
    (Simplex(), {"w": jnp.ones(())}, "Simplex needs a point with at least two entries, got 1"),
    (EntropySimplex(), jnp.ones(1), "EntropySimplex needs a point with at least two entries, got 1"),
    (EntropySimplex(0.25), jnp.ones(4), "floor must be below 1/4 for a point with 4 entries, got 0.25"),
    (EntropySimplex(0.3), {"a": jnp.ones(2), "b": jnp.ones(3)}, "floor must be below 1/5 .*got 0.3"),
    (CappedSimplex(0.2), jnp.zeros(4), "4 entries of at most cap=0.2 cannot make a total of 1.0; a cap of 0.25"),
    (Shifted(Ball(1.0), np.zeros(2)), jnp.zeros(3), r"Shifted: by has shapes \(2,\), x has \(3,\)"),
    (Shifted(Ball(1.0), {"w": 1.0}), jnp.zeros(3), "Shifted: by has structure .*pass one number or the same"),
    (Scaled(Simplex(), 2.0), jnp.ones(1), "Simplex needs a point with at least two entries, got 1"),
    (Product(Ball(1.0), Ball(1.0)), jnp.zeros(2), "Product: x does not have one part for each domain"),
    (Product(Ball(1.0), Ball(1.0)), (jnp.zeros(2),) * 3, "Product: x does not have one part for each domain"),
    (Product({"w": Ball(1.0)}), {"b": jnp.zeros(2)}, "Product: x does not have one part for each domain"),
    (Product({"w": Simplex()}), {"w": jnp.zeros(1)}, "Simplex needs a point with at least two entries"),
]


@pytest.mark.parametrize(("geometry", "x", "message"), CHECK_ERRORS)
def test_check_refuses_points_that_do_not_fit(geometry, x, message):
    with pytest.raises(ValueError, match=message):
        geometry.check(x)


@every_case
def test_check_passes_points_that_fit(case):
    case.geometry.check(case.like)
    case.geometry.check(case.tree(case.domain.furthest))


def test_check_passes_a_floor_just_below_the_uniform_law():
    EntropySimplex(0.2499).check(jnp.ones(4))
    jax.vmap(lambda floor: (EntropySimplex(floor).check(jnp.ones(4)), floor)[1])(jnp.array([0.1, 0.2]))


def test_an_entropy_step_recovers_from_where_it_could_have_underflowed():
    """Ten thousand steps away from an entry and as many back: it must not be lost on the way."""
    domain = EntropySimplex()
    for start in ([0.3, 0.3, 0.4], [1.0, 0.0, 0.0]):
        x = jnp.array(start)
        for sign in (1.0, -1.0):
            for _ in range(3):
                x = domain.prox(x, jnp.array([0.0, 0.0, sign * 1000.0]), 0.5)
        assert x[2] > 0.99
