from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cases
from ergodrift._core import tree


@tree.module("label")
class Pair:
    left: Any
    right: Any
    label: str = "none"

    def __post_init__(self) -> None:
        if not isinstance(self.left, float):
            raise TypeError("left must be a float")


def test_a_module_survives_flattening():
    leaves, structure = jax.tree.flatten(Pair(1.0, {"a": 2.0, "b": 3.0}, label="x"))
    assert leaves == [1.0, 2.0, 3.0]
    again = jax.tree.unflatten(structure, leaves)
    assert isinstance(again, Pair)
    assert (again.left, again.right, again.label) == (1.0, {"a": 2.0, "b": 3.0}, "x")


def test_a_static_field_is_part_of_the_structure():
    assert jax.tree.structure(Pair(1.0, 2.0, "x")) == jax.tree.structure(Pair(3.0, 4.0, "x"))
    assert jax.tree.structure(Pair(1.0, 2.0, "x")) != jax.tree.structure(Pair(1.0, 2.0, "y"))


def test_leaves_carry_the_names_of_their_fields():
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(Pair(1.0, 2.0))]
    assert paths == [".left", ".right"]


def test_checks_run_for_a_user_and_not_for_jax():
    with pytest.raises(TypeError, match="left must be a float"):
        Pair("no", 2.0)
    mapped = jax.tree.map(lambda leaf: "traced", Pair(1.0, 2.0))
    assert mapped.left == "traced"
    doubled = jax.vmap(lambda left: Pair(1.0, left))(jnp.arange(3.0))
    np.testing.assert_array_equal(doubled.left, [1.0, 1.0, 1.0])
    np.testing.assert_array_equal(doubled.right, [0.0, 1.0, 2.0])


def test_a_module_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Pair(1.0, 2.0).left = 3.0  # type: ignore[misc]


def test_traced_leaves_are_noticed():
    seen = []
    jax.jit(lambda x: seen.append((tree.is_traced(1.0, {"a": x}), tree.is_traced(1.0, [np.ones(2)]))))(1.0)
    assert seen == [(True, False)]


def test_leafwise_arithmetic():
    a, b = {"u": jnp.array([1.0, 2.0]), "v": jnp.array(3.0)}, {"u": jnp.array([10.0, 20.0]), "v": jnp.array(30.0)}
    for actual, u, v in [
        (tree.add(a, b), [11, 22], 33),
        (tree.subtract(b, a), [9, 18], 27),
        (tree.scale(a, 2), [2, 4], 6),
        (tree.select(True, a, b), [1, 2], 3),
        (tree.select(False, a, b), [10, 20], 30),
    ]:
        np.testing.assert_array_equal(actual["u"], u)
        np.testing.assert_array_equal(actual["v"], v)
    assert tree.total(a) == 6
    assert tree.squared_norm(a) == 14


@pytest.mark.x64("its digits are those of float64")
def test_the_dtype_of_a_point_is_what_its_leaves_promote_to():
    assert tree.dtype({"a": jnp.zeros(2, jnp.float32), "b": jnp.zeros((), jnp.float32)}) == jnp.float32
    assert tree.dtype([jnp.zeros(2, jnp.float32), jnp.zeros(2, jnp.float64)]) == jnp.float64


@pytest.mark.x64("its digits are those of float64")
@pytest.mark.parametrize("count", [1, 4])
def test_products_with_the_jacobian_agree_with_einsum(count):
    rng = np.random.default_rng(0)
    x = {"scalar": np.asarray(rng.normal()), "vector": rng.normal(size=3), "matrix": rng.normal(size=(2, 5))}
    jac = {name: jnp.asarray(rng.normal(size=(count, *np.shape(leaf)))) for name, leaf in x.items()}
    queue = rng.normal(size=count)

    back = tree.pullback(jnp.asarray(queue), jac)
    for name, leaf in jac.items():
        np.testing.assert_allclose(back[name], np.einsum("i,i...->...", queue, leaf), rtol=1e-14)

    flat_jac = np.concatenate([leaf.reshape(count, -1) for leaf in jac.values()], axis=1)
    flat_x = np.concatenate([np.ravel(leaf) for leaf in x.values()])
    np.testing.assert_allclose(tree.pushforward(jac, x), np.einsum("ij,j->i", flat_jac, flat_x), rtol=1e-13)


@settings(cases.deterministic, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.floats(0, 6))
def test_a_compensated_float32_sum_agrees_with_an_exact_one(seed, spread):
    # Terms of both signs and of very different sizes. Neumaier: the error is that of rounding the result once, plus
    # a second-order part in the sizes of the terms.
    rng = np.random.default_rng(seed)
    terms = (rng.normal(size=1000) * 10 ** rng.uniform(-spread, spread, size=1000)).astype(np.float32)
    exact, sizes = math.fsum(terms), math.fsum(np.abs(terms))
    total, lost = sum_up(terms)
    assert total.dtype == np.float32
    unit = 2.0**-24
    assert abs(float(total) + float(lost) - exact) <= unit * abs(exact) + 1000 * unit**2 * sizes


@jax.jit
def sum_up(terms: Any) -> Any:
    zero = tree.compensated(jnp.zeros((), terms.dtype))
    return jax.lax.scan(lambda acc, term: (tree.compensated_add(acc, term), None), zero, terms)[0]


def test_a_compensated_sum_does_not_stall_where_a_plain_one_does():
    terms = jnp.full(1 << 20, 0.25, jnp.float32).at[0].set(1e8)
    plain = jax.jit(lambda terms: jax.lax.fori_loop(0, terms.size, lambda i, acc: acc + terms[i], jnp.float32(0)))
    assert plain(terms) == np.float32(1e8)
    total, lost = sum_up(terms)
    assert float(total) + float(lost) == pytest.approx(1e8 + 0.25 * ((1 << 20) - 1), rel=1e-7)


def test_a_compensated_sum_of_a_pytree_sums_each_leaf():
    acc = tree.compensated({"a": jnp.zeros(2, jnp.float32), "b": jnp.zeros((), jnp.float32)})
    for term in (1e8, 1.0, 1.0, -1e8):
        acc = tree.compensated_add(acc, {"a": jnp.array([term, -term], jnp.float32), "b": jnp.float32(term)})
    sums = tree.add(*acc)
    np.testing.assert_array_equal(sums["a"], [2, -2])
    np.testing.assert_array_equal(sums["b"], 2)
