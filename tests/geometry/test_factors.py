"""Factors: the parts of a domain that can step on their own, each in the norm and with the width that it has."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import cases
from digits import rounded
from ergodrift import Ball, Box, EntropySimplex, Geometry, L1Ball, Product, Scaled, Shifted, Simplex

KIND = np.float64 if jax.config.read("jax_enable_x64") else np.float32
PRODUCT = Product({"w": Ball(2.0), "b": Box(-1.0, np.array([1.0, 3.0])), "p": EntropySimplex()})
POINT = {"w": np.array([3.0, -4.0], KIND), "b": np.array([-2.0, 5.0], KIND), "p": np.array([0.5, -0.25, 1.0], KIND)}
every_domain = pytest.mark.parametrize("name", cases.GEOMETRIES)


def close(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rounded(1e-12)), actual, expected)


def test_a_product_has_a_factor_for_each_part_and_for_each_side_of_a_box():
    """Parts come in the order of their keys: b, p, w."""
    x = jax.tree.map(jnp.asarray, POINT)
    close(PRODUCT.factor_norms(x), [np.array([2.0, 5.0]), 1.75, 5.0])
    close(PRODUCT.factor_dual_norms(x), [np.array([2.0, 5.0]), 1.0, 5.0])
    close(PRODUCT.factor_diameters(x), [np.array([2.0, 4.0]), 2.0, 4.0])


def test_products_may_be_nested():
    nested = Product(PRODUCT, L1Ball(3.0))
    x = (jax.tree.map(jnp.asarray, POINT), jnp.array([3.0, 4.0], KIND))
    close(nested.factor_norms(x), [PRODUCT.factor_norms(x[0]), 5.0])
    close(nested.factor_diameters(x), [PRODUCT.factor_diameters(x[0]), 6.0])
    steps = [[jnp.array([1.0, 2.0], KIND), jnp.asarray(3.0, KIND), jnp.asarray(4.0, KIND)], jnp.asarray(5.0, KIND)]
    inside = nested.project(x)
    first, second = nested.prox(inside, x, steps)
    close(first, PRODUCT.prox(inside[0], x[0], steps[0]))
    close(second, L1Ball(3.0).prox(inside[1], x[1], 5.0))


@pytest.mark.parametrize(
    ("domain", "across"),
    [
        (Ball(1.5), 3.0),
        (L1Ball(1.5), 3.0),
        (Simplex(), np.sqrt(2)),
        (EntropySimplex(), 2.0),
        # From (0.8, 0.1, 0.1) to (0.1, 0.8, 0.1) it is 1.4 in l1.
        (EntropySimplex(floor=0.1), 1.4),
        (Box(np.array([0.0, -1.0, 2.0]), np.array([3.0, 1.0, 2.0])), np.array([3.0, 2.0, 0.0])),
    ],
)
def test_widths(domain, across):
    close(domain.factor_diameters(jnp.zeros(3, KIND)), across)


@pytest.mark.x64("widths are compared with points in float64")
@every_domain
def test_no_two_points_are_further_apart_than_a_factor_is_wide(name):
    domain, like = cases.GEOMETRIES[name]
    rng = np.random.default_rng(1)
    wide = domain.factor_diameters(jax.tree.map(jnp.asarray, like))
    for _ in range(50):
        apart = jax.tree.map(jnp.subtract, *(cases.random_point(rng, domain, like) for _ in range(2)))
        jax.tree.map(lambda a, b: np.testing.assert_array_less(a, b + 1e-9), domain.factor_norms(apart), wide)


@every_domain
def test_one_proximity_for_each_factor_is_one_for_all_where_they_are_equal(name):
    domain, like = cases.GEOMETRIES[name]
    rng = np.random.default_rng(2)
    x = jax.tree.map(lambda leaf: leaf.astype(KIND), cases.random_point(rng, domain, like))
    direction = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), KIND), like)
    each = jax.tree.map(lambda norm: jnp.full(jnp.shape(norm), 0.7, KIND), domain.factor_norms(x))
    close(domain.prox(x, direction, each), domain.prox(x, direction, jnp.asarray(0.7, KIND)))


def test_each_side_of_a_box_steps_by_its_own():
    """x - direction / (2 proximity), cut at the bounds."""
    box, start = Box(-1.0, 1.0), jnp.zeros(3, KIND)
    found = box.prox(start, jnp.array([1.0, 1.0, -9.0], KIND), jnp.array([1.0, 5.0, 2.0], KIND))
    close(found, np.array([-0.5, -0.1, 1.0]))
    parts = {"a": start[:1], "b": start[1:]}
    steps = {"a": jnp.array([1.0], KIND), "b": jnp.array([5.0, 2.0], KIND)}
    found = box.prox(parts, {"a": jnp.array([1.0], KIND), "b": jnp.array([1.0, -9.0], KIND)}, steps)
    close(found, {"a": np.array([-0.5]), "b": np.array([-0.1, 1.0])})


def test_a_prox_by_factors_minimises_each_factor_by_itself():
    x = PRODUCT.project({**jax.tree.map(jnp.asarray, POINT), "p": jnp.array([0.2, 0.3, 0.5], KIND)})
    direction = jax.tree.map(jnp.asarray, POINT)
    each = [jnp.array([2.0, 0.5], KIND), jnp.asarray(3.0, KIND), jnp.asarray(0.25, KIND)]
    found = PRODUCT.prox(x, direction, each)
    parts: dict[str, Geometry] = PRODUCT.parts
    close(found, {name: parts[name].prox(x[name], direction[name], own) for name, own in zip("bpw", each, strict=True)})


def test_as_many_proximities_as_factors():
    x = jax.tree.map(jnp.asarray, POINT)
    with pytest.raises(ValueError, match="one proximity for each of its 3 parts, got 2"):
        PRODUCT.prox(x, x, [jnp.ones((), KIND)] * 2)


@pytest.mark.parametrize("decades", [0, 2, 6, 12])
def test_a_ball_by_coordinates_ends_at_the_nearest_point_in_the_norm_of_its_weights(decades):
    """y_j = z_j w_j / (w_j + nu), where nu brings the norm to the radius: by a bracket in the place of Newton."""
    rng = np.random.default_rng(decades)
    for _ in range(20):
        weights = 10.0 ** rng.uniform(-decades, 0, 6)
        x, direction = rng.normal(size=6) * 0.3, rng.normal(size=6) * 10.0 ** rng.uniform(-3, 3)
        x, direction, weights = (part.astype(KIND) for part in (x, direction, weights))
        found = np.asarray(
            Ball(1.5).by_coordinates().prox(jnp.asarray(x), jnp.asarray(direction), jnp.asarray(weights))
        )
        z, w = x.astype(float) - direction.astype(float) / (2 * weights.astype(float)), weights.astype(float)
        if np.linalg.norm(z) <= 1.5:
            np.testing.assert_allclose(found, z, rtol=rounded(1e-12), atol=rounded(1e-12))
            continue
        excess = lambda root, z=z, w=w: np.linalg.norm(z * w / (w + np.exp(root))) - 1.5  # noqa: E731
        root: Any = scipy.optimize.brentq(excess, -80, 80, xtol=1e-14)
        nu = np.exp(root)
        assert np.linalg.norm(found) <= 1.5 * (1 + rounded(1e-14))
        np.testing.assert_allclose(found, z * w / (w + nu), rtol=rounded(1e-9), atol=rounded(1e-9))


def test_one_step_for_all_coordinates_of_a_ball_is_that_of_the_ball():
    x, direction = POINT["w"] / 4, np.array([9.0, 2.0], KIND)
    apart = Ball(2.0).by_coordinates()
    close(apart.prox(x, direction, jnp.full(2, 0.5, KIND)), Ball(2.0).prox(x, direction, 0.5))
    close(apart.prox({"w": x}, {"w": direction}, 0.5), Ball(2.0).prox({"w": x}, {"w": direction}, 0.5))


def test_domains_by_coordinates():
    """Balls step apart, wherever they stand; a box does so already, and of a simplex there is no such prox."""
    x = {"w": jnp.array([1.0, -2.0], KIND), "p": jnp.array([0.5, 0.5], KIND)}
    apart = Product({"w": Shifted(Scaled(Ball(2.0), 3.0), 1.0), "p": EntropySimplex()}).by_coordinates()
    close(apart.factor_diameters(x), [2.0, np.array([12.0, 12.0])])
    for same in (Box(-1.0, 1.0), Simplex(), L1Ball(2.0), Product(Simplex(), Box(0.0, 1.0)), Shifted(Simplex(), 1.0)):
        assert same.by_coordinates() is same
