"""Matrices, polytopes and images of domains: against Clarabel, conditions of optimality, and each other."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import ergodrift as ed
from cases import deterministic
from digits import rounded

PROPERTY = settings(deterministic, max_examples=20)
TIGHT = {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}

# A slice of a cube with a pair of inequalities that is an equality, and one that says nothing new.
SLICE = np.vstack([np.eye(4), -np.eye(4), np.ones((1, 4)), -np.ones((1, 4)), [[1.0, 2.0, -1.0, 0.5]], np.ones((1, 4))])
LEVELS = np.array([0.7] * 4 + [0.1] * 4 + [1.0, -1.0, 0.9, 1.5])
DENSE = np.random.default_rng(1).normal(size=(18, 5))
POLYTOPES = {
    "flat": ed.Polytope(SLICE, LEVELS),
    "dense": ed.Polytope(np.vstack([DENSE, -DENSE[:5]]), np.random.default_rng(2).uniform(0.2, 2.0, size=23)),
}
every_polytope = pytest.mark.parametrize("name", POLYTOPES)
project = jax.jit(lambda geometry, x: geometry.project(x))
prox = jax.jit(lambda geometry, x, direction, proximity: geometry.prox(x, direction, proximity))


def symmetric(rng: np.random.Generator, size: int) -> np.ndarray:
    a = rng.normal(size=(size, size))
    return (a + a.T) / 2


def density(rng: np.random.Generator, size: int, floor: float = 0.0) -> np.ndarray:
    a = rng.normal(size=(size, size))
    return (1 - size * floor) * a @ a.T / np.trace(a @ a.T) + floor * np.eye(size)


def nearest(variable: Any, constraints: list[Any], x: np.ndarray) -> np.ndarray:
    program = cp.Problem(cp.Minimize(cp.sum_squares(variable - x)), constraints)
    program.solve(solver=cp.CLARABEL, **TIGHT)
    return np.asarray(variable.value)


@pytest.mark.parametrize("distance", [0.2, 2.0, 30.0])
def test_projections_agree_with_an_independent_solver(distance):
    within: Any = {"rtol": 0, "atol": 3e-5 * max(distance, 1.0)}  # what Clarabel is trusted to
    X = np.random.default_rng(3).normal(size=(3, 4)) * distance
    v = cp.Variable((3, 4))
    found = project(ed.NuclearBall(1.5), X)
    np.testing.assert_allclose(found, nearest(v, [cp.normNuc(v) <= 1.5], X), **within)
    S = symmetric(np.random.default_rng(4), 4) * distance
    for floor in (0.0, 0.1):
        v = cp.Variable((4, 4), symmetric=True)
        wanted = nearest(v, [v >> floor * np.eye(4), cp.trace(v) == 1], S)
        np.testing.assert_allclose(project(ed.Spectrahedron(floor), S), wanted, **within)
    for polytope in POLYTOPES.values():
        A, b = np.asarray(polytope.A), np.asarray(polytope.b)
        x = np.random.default_rng(5).normal(size=A.shape[1]) * distance
        v = cp.Variable(A.shape[1])
        np.testing.assert_allclose(project(polytope, x), nearest(v, [A @ v <= b], x), **within)


@pytest.mark.parametrize(("floor", "proximity"), [(0.0, 1.0), (0.05, 0.2)])
def test_the_entropic_prox_of_matrices_agrees_with_an_independent_solver(floor, proximity):
    rng = np.random.default_rng(6)
    X, G = density(rng, 3, floor), symmetric(rng, 3)
    v = cp.Variable((3, 3), symmetric=True)
    slope = G - 2 * proximity * np.real(np.asarray(scipy.linalg.logm(X)))
    objective = cp.trace(slope @ v) - 2 * proximity * cp.von_neumann_entr(v)
    program = cp.Problem(cp.Minimize(objective), [v >> floor * np.eye(3), cp.trace(v) == 1])
    program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    np.testing.assert_allclose(prox(ed.Spectrahedron(floor), X, G, proximity), np.asarray(v.value), rtol=0, atol=1e-4)


def test_on_diagonal_matrices_the_spectrahedron_is_the_simplex():
    for floor in (0.0, 0.1):
        simplex, matrices = ed.EntropySimplex(floor), ed.Spectrahedron(floor)
        x, y, g = np.array([0.2, 0.5, 0.3]), np.array([0.6, 0.3, 0.1]), np.array([1.0, -2.0, 0.5])
        X, G = np.diag(x), np.diag(g)
        close: Any = {"rtol": rounded(1e-13), "atol": rounded(1e-13)}
        np.testing.assert_allclose(prox(matrices, X, G, 0.7), np.diag(prox(simplex, x, g, 0.7)), **close)
        np.testing.assert_allclose(project(matrices, 3 * G), np.diag(project(simplex, 3 * g)), **close)
        for name, more in [("bregman", (x, y)), ("norm", (g,)), ("dual_norm", (g,)), ("reach", (x,))]:
            wanted = getattr(simplex, name)(*more)
            np.testing.assert_allclose(getattr(matrices, name)(*map(np.diag, more)), wanted, **close)
        np.testing.assert_allclose(matrices.diameter(X), simplex.diameter(x), **close)
        np.testing.assert_allclose(matrices.factor_diameters(X), simplex.factor_diameters(x), **close)


@PROPERTY
@given(seed=st.integers(0, 1000), proximity=st.sampled_from([0.5, 3.0]))
def test_the_prox_of_matrices_keeps_the_three_point_inequality_and_pinskers(seed, proximity):
    rng, floor = np.random.default_rng(seed), 0.02
    geometry = ed.Spectrahedron(floor)
    X, Z, G = density(rng, 4, floor), density(rng, 4, floor), 3 * rng.normal(size=(4, 4))
    Y = np.asarray(prox(geometry, X, G, proximity), dtype=float)
    assert np.linalg.eigvalsh(Y)[0] >= floor - rounded(1e-14)
    assert np.trace(Y) == pytest.approx(1, abs=rounded(1e-13))

    def d(a, b):
        return float(geometry.bregman(jnp.asarray(a), jnp.asarray(b)))

    at_y, at_z = np.sum(G * Y) + proximity * (d(Y, X) + d(Z, Y)), np.sum(G * Z) + proximity * d(Z, X)
    assert at_y <= at_z + rounded(1e-11)
    assert d(X, Z) >= float(geometry.norm(X - Z)) ** 2 - rounded(1e-12)
    assert d(X, Z) <= float(geometry.diameter(X)) ** 2
    S = (G + G.T) / 2
    assert np.sum(S * X) <= float(geometry.dual_norm(S)) * float(geometry.norm(X)) * (1 + rounded(1e-13))


def test_an_eigenvalue_that_has_gone_can_come_back():
    domain, x = ed.Spectrahedron(), jnp.eye(3) / 3
    for sign in (1.0, -1.0):
        for _ in range(4):
            x = domain.prox(x, sign * 1000 * jnp.diag(jnp.array([0.0, 0.0, 1.0])), 0.5)
    assert x[2, 2] > 0.99


@every_polytope
@PROPERTY
@given(data=st.data())
def test_the_projection_onto_a_polytope_meets_the_conditions_of_optimality(name, data):
    """x - y is a combination of the active normals, with weights that are not negative."""
    polytope = POLYTOPES[name]
    A, b = np.asarray(polytope.A), np.asarray(polytope.b)
    scale = data.draw(st.sampled_from([1.0, 1e3]))
    x = scale * data.draw(hnp.arrays(float, A.shape[1], elements=st.floats(-3, 3, width=16)))
    y = np.asarray(project(polytope, x), dtype=float)
    assert (A @ y - b).max() <= rounded(1e-13)
    active = A @ y - b >= -rounded(1e-11) * scale
    rest = np.linalg.norm(x - y) if not active.any() else scipy.optimize.nnls(A[active].T, x - y)[1]
    assert rest <= rounded(1e-11) * scale
    np.testing.assert_allclose(project(polytope, y), y, rtol=0, atol=rounded(1e-14))


def test_a_polytope_projects_as_the_domains_that_it_can_be():
    rng = np.random.default_rng(8)
    same = {
        "box": (ed.Polytope(np.vstack([np.eye(3), -np.eye(3)]), np.ones(6)), ed.Box(-1.0, 1.0)),
        "capped": (
            ed.Polytope(SLICE[:10, :], np.array([0.4] * 4 + [0.0] * 4 + [1.0, -1.0])),
            ed.CappedSimplex(0.4),
        ),
    }
    for polytope, other in same.values():
        distances = np.array([0.1, 1.0, 3.0, 10.0, 1e3])
        x = rng.normal(size=(5, polytope.A.shape[1])) * distances[:, None]
        one, two = jax.jit(lambda z, p=polytope, o=other: (jax.vmap(p.project)(z), jax.vmap(o.project)(z)))(x)
        assert (np.abs(one - two).max(axis=1) <= rounded(1e-14) * (1 + distances)).all()
    box = same["box"][0]
    assert float(box.diameter(np.zeros(3))) == pytest.approx(2 * np.sqrt(3))
    assert float(box.reach(np.zeros(3))) == pytest.approx(np.sqrt(3))
    assert box.example().shape == (3,)


def test_levels_of_a_polytope_may_be_swept():
    A = np.vstack([np.eye(2), -np.eye(2)])
    found = jax.vmap(lambda level: ed.Polytope(A, jnp.full(4, level)).project(jnp.array([5.0, 0.1])))(
        jnp.array([1.0, 2.0])
    )
    np.testing.assert_allclose(found, [[1.0, 0.1], [2.0, 0.1]], rtol=rounded(1e-14))


def test_what_is_no_polytope_is_refused():
    for A, b, message in [
        ([[1.0, 0.0]], [1.0], "X must be bounded"),
        ([[1.0], [-1.0]], [0.0, -1.0], "no point has A x <= b"),
        ([[1.0, 1.0], [0.0, 0.0]], [1.0, 1.0], "row 1 of A is zero"),
        ([1.0, 2.0], [1.0, 1.0], r"A must have shape \(m, d\)"),
        ([[1.0], [np.nan]], [1.0, 1.0], r"A holds nan at index \(1, 0\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            ed.Polytope(A, b)
    with pytest.raises(ValueError, match="A has 4 columns, and x has 3 entries"):
        POLYTOPES["flat"].check(np.zeros(3))


def test_points_that_are_no_matrices_are_refused():
    for geometry in (ed.NuclearBall(1.0), ed.Spectrahedron()):
        with pytest.raises(ValueError, match=r"needs a point that is one matrix, got shapes \[\(3,\)\]"):
            geometry.check(np.zeros(3))
    with pytest.raises(ValueError, match=r"needs a square matrix of at least 2 rows, got shape \(2, 3\)"):
        ed.Spectrahedron().check(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="floor must be below 1/2"):
        ed.Spectrahedron(0.5).check(np.zeros((2, 2)))


def test_a_scaled_entropy_steps_as_the_entropy_of_its_shares():
    """And a shifted one as that of what is left."""
    x, g, law = np.array([0.2, 0.5, 0.3]), np.array([1.0, -2.0, 0.5]), ed.EntropySimplex(0.01)
    inner = np.asarray(law.prox(x, g, 0.7))
    np.testing.assert_allclose(ed.Scaled(law, 5.0).prox(5 * x, 5 * g, 0.7), 5 * inner, rtol=rounded(1e-14))
    np.testing.assert_allclose(ed.Shifted(law, 5.0).prox(5 + x, g, 0.7), 5 + inner, rtol=rounded(1e-14))
    y = np.array([0.1, 0.1, 0.8])
    assert float(ed.Scaled(law, 5.0).bregman(5 * x, 5 * y)) == pytest.approx(25 * float(law.bregman(x, y)), rel=1e-5)
    assert float(ed.Shifted(law, 5.0).bregman(5 + x, 5 + y)) == pytest.approx(float(law.bregman(x, y)), rel=1e-5)
    nested = ed.Scaled(ed.Product({"a": ed.Box(-1.0, 1.0), "b": law}), 2.0)
    wide = nested.factor_diameters({"a": jnp.zeros(2), "b": jnp.zeros(3)})
    np.testing.assert_allclose(wide[0], [4.0, 4.0])
    np.testing.assert_allclose(wide[1], 2 * 2 * 0.97, rtol=1e-6)


TARGETS = {
    "nuclear": (ed.NuclearBall(1.5), np.zeros((2, 3))),
    "spectrahedron": (ed.Spectrahedron(0.02), np.eye(3) / 3),
    "capped": (ed.CappedSimplex(0.4), np.full(4, 0.25)),
    "flat": (POLYTOPES["flat"], np.full(4, 0.25)),
    "dense": (POLYTOPES["dense"], np.zeros(5)),
    "moved": (ed.Shifted(ed.Scaled(ed.CappedSimplex(0.5), 2.0), 1.0), np.full(3, 1 + 2 / 3)),
}


def cvxpy_domain(name: str, v: Any) -> list[Any]:
    if name == "nuclear":
        return [cp.normNuc(v) <= 1.5]
    if name == "spectrahedron":
        return [v >> 0.02 * np.eye(3), cp.trace(v) == 1, v == v.T]
    if name == "capped":
        return [v >= 0, v <= 0.4, cp.sum(v) == 1]
    if name == "moved":
        return [v >= 1, v <= 2, cp.sum(v) == 5]
    return [np.asarray(POLYTOPES[name].A) @ v <= np.asarray(POLYTOPES[name].b)]


@pytest.mark.slow
@pytest.mark.x64("references are found in float64")
@pytest.mark.parametrize("name", TARGETS)
def test_references_and_runs_reach_the_optimum_of_an_independent_solver(name):
    geometry, x0 = TARGETS[name]
    rng = np.random.default_rng(9)
    data = {"c": x0 + rng.normal(size=(4, *x0.shape)), "a": rng.normal(size=(4, *x0.shape))}
    if name == "spectrahedron":
        data = {key: (leaf + leaf.transpose(0, 2, 1)) / 2 for key, leaf in data.items()}
    target, normal = data["c"].mean(axis=0), data["a"].mean(axis=0)
    level = float(np.sum(normal * x0)) - 0.02
    problem = ed.Problem(
        lambda x, xi: jnp.sum((x - xi["c"]) ** 2) / 2, lambda x, xi: jnp.stack([jnp.sum(xi["a"] * x) - level]), geometry
    )
    source = ed.IIDSource(data)
    v = cp.Variable(x0.shape)
    rest = np.mean(np.sum((data["c"] - target) ** 2, axis=tuple(range(1, x0.ndim + 1)))) / 2
    limits = [cp.sum(cp.multiply(normal, v)) <= level, *cvxpy_domain(name, v)]
    wanted = cp.Problem(cp.Minimize(cp.sum_squares(v - target) / 2), limits)
    wanted.solve(solver=cp.CLARABEL, **TIGHT)
    reference = ed.solve_reference(problem, source, x0)
    assert reference.value == pytest.approx(wanted.value + rest, rel=2e-6)
    assert reference.gap < 1e-4
    algorithm = ed.auto(problem, source, x0, num_samples=2_000) if name == "spectrahedron" else ed.sdpp()
    result = ed.run(algorithm, problem, source, x0=x0, num_samples=2_000, seeds=2)
    quality = ed.metrics.evaluate(result, problem, source, reference)
    start = np.sum((x0 - target) ** 2) / 2 - wanted.value
    assert quality.lagrangian_gap[:, -1].max() < 0.1 * max(start, 0.2)
    assert all(geometry.contains(x) for x in result.solution)
