"""Factors: the parts of a domain that can step on their own, each in the norm and with the width that it has."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cases
from digits import rounded
from ergodrift import Ball, Box, EntropySimplex, Geometry, L1Ball, Product, Simplex

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
