"""Functions as kernels: what `jax.vmap` gives, for the primitives and the control flow of JAX that they know."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ergodrift._core import cuda
from ergodrift._core.cuda import launch
from ergodrift._core.cuda.rules import exchanges
from host_kernels import launched, needs_compiler

SEEDS, ROWS, DIM = 5, 40, 3


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    monkeypatch.setattr(launch, "LAUNCH", launched)


def agree(function, shared, own, rows=(ROWS,), rtol=None):
    found = jax.jit(lambda shared, own: cuda.fused(function, shared, own, frozenset(rows)))(shared, own)
    expected = jax.vmap(function, (None, 0))(shared, own)
    rtol = rtol or (1e-12 if jax.config.values["jax_enable_x64"] else 3e-5)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


def numbers(*shape):
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape))


@needs_compiler
def test_numbers_in_registers():
    def function(a, x):
        ordered = jnp.sort(x)
        return {
            "products": (a @ x, x @ a.T, jnp.outer(x, a[0])),
            "functions": (jnp.exp(x), jnp.tanh(x), jnp.log1p(x**2), jax.nn.sigmoid(x), x**-2, jnp.abs(x) ** 0.3),
            "order": (ordered, ordered[::-1], jnp.cumsum(x), jnp.cumsum(x[::-1])[::-1], jnp.max(x), jnp.min(a, axis=0)),
            "whole": (jnp.floor(x).astype(int) % 3, jnp.int32(7) // 2, jnp.uint32(3) << 2, jnp.sign(x)),
            "parts": (jnp.concatenate([x, a[1]]), jnp.stack([x, x]), jnp.pad(x, (1, 2)), a[:, ::2]),
            "nan": (jnp.maximum(x, jnp.nan), jnp.minimum(jnp.nan, x), jnp.isfinite(x / 0), jnp.clip(x, -0.5, 0.5)),
        }  # fmt: skip

    agree(function, numbers(4, DIM), numbers(SEEDS, DIM))


@needs_compiler
@pytest.mark.parametrize("rows", [40, 37])
def test_rows_are_reduced_in_one_loop(rows):
    def function(shared, x):
        table, labels = shared
        margins = labels * (table @ x)
        slopes = -labels * jax.nn.sigmoid(-margins)
        scores = jnp.exp(margins - jnp.max(margins))
        return {
            "mean": jnp.mean(jax.nn.softplus(-margins)),
            "grad": slopes @ table,
            "after another": scores @ table / jnp.sum(scores),
            "logs": cuda.sum_of_logs(jax.nn.sigmoid(jnp.abs(margins))),
            "one": (margins[0], jnp.any(margins > 3), jnp.prod(1 + margins / 99)),
            "weighed": jnp.sum(margins * jnp.arange(rows, dtype=margins.dtype)),
            "by hand": jnp.sum(jnp.where(jnp.arange(rows) < 9, margins, margins[2])),
        }

    agree(function, (numbers(rows, DIM), jnp.sign(numbers(rows))), numbers(SEEDS, DIM), rows=(rows,))


@needs_compiler
def test_loops_branches_and_tables():
    def function(table, own):
        x, start, path = own

        def turn(carry, entry):
            total, place = carry
            return (total + entry * table[place], (place + 1) % 4), total

        carry, kept = jax.lax.scan(turn, (x, start), numbers(20))
        swapped = jax.lax.fori_loop(0, 3, lambda i, pair: (pair[1] + i, pair[0]), (x[0], x[1]))
        limit = jax.lax.while_loop(lambda v: v < 10, lambda v: 2 * v + 1, jnp.abs(x[0]))
        branch = jax.lax.switch(start, [lambda x: x, lambda x: 2 * x, lambda x: -x, lambda x: x * 0], x)
        changed = jax.lax.dynamic_update_index_in_dim(table, x, start, 0)
        return carry, kept, swapped, limit, branch, changed, path[start * 3], path

    own = numbers(SEEDS, DIM), jnp.arange(SEEDS) % 4, jnp.arange(SEEDS * 30).reshape(SEEDS, 30)
    agree(function, numbers(4, DIM), own)


@needs_compiler
def test_random_bits_are_those_of_jax():
    def function(shared, key):
        with jax.threefry_partitionable(True):
            other = jax.random.fold_in(key, shared)
            bits = [jax.random.bits(one, shape, jnp.uint32) for one, shape in [(other, (3,)), (key, (20,)), (key, ())]]
            return *bits, jax.random.key_data(other), key

    found = cuda.fused(function, jnp.int32(7), jax.random.split(jax.random.key(1), SEEDS), frozenset())
    expected = jax.vmap(function, (None, 0))(jnp.int32(7), jax.random.split(jax.random.key(1), SEEDS))
    assert all((a == b).all() for a, b in zip(found, expected, strict=True))


@needs_compiler
def test_a_sweep_is_more_seeds():
    def function(shared, x):
        return shared[0] * jnp.sum(jnp.exp(shared[1] @ x))

    table, x, scales = numbers(ROWS, DIM), numbers(SEEDS, DIM), numbers(4)
    swept = jax.vmap(lambda scale: cuda.fused(function, (scale, table), x, frozenset({ROWS})))(scales)
    expected = jax.vmap(lambda scale: jax.vmap(lambda one: function((scale, table), one))(x))(scales)
    np.testing.assert_allclose(swept, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda a, x: jnp.sort(a @ x)[0], "outside their loop"),
        (lambda a, x: jnp.linalg.cholesky(jnp.outer(x, x)), "primitive"),
        (lambda a, x: jnp.cumsum(a @ x)[-1], "outside their loop"),
    ],
)
def test_what_it_does_not_know_it_says(function, why):
    with pytest.raises(cuda.Unsupported, match=why):
        cuda.fused(function, numbers(ROWS, DIM), numbers(SEEDS, DIM), frozenset({ROWS}))


@pytest.mark.parametrize("count", range(1, 13))
def test_exchanges_sort(count):
    """By the 0-1 principle: what sorts all zeros and ones sorts everything."""
    for bits in range(2**count):
        values = [bits >> i & 1 for i in range(count)]
        for low, high in exchanges(count):
            if values[high] < values[low]:
                values[low], values[high] = values[high], values[low]
        assert values == sorted(values)
