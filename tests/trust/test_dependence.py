"""What a function's entries can depend on: proofs where there are any, and never a wrong one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ergodrift.trust.dependence import depends

CASES = {
    "a stack": (lambda x, xi: jnp.stack([x[0] - 1.0, xi[0] * x[1]]), [False, True]),
    "an array": (lambda x, xi: jnp.array([xi[1], x.sum() - 1.0]), [True, False]),
    "a concatenation": (lambda x, xi: jnp.concatenate([x - 1, (xi @ x)[None]]), [False, False, True]),
    "no sample": (lambda x, xi: x - 0.5, [False, False]),
    "no argument": (lambda x, xi: jnp.array([1.0, 2.0]), [False, False]),
    "the sample itself": (lambda x, xi: xi, [True, True]),
    "a function entry by entry": (lambda x, xi: jax.nn.relu(jnp.array([xi[0], x[0]])), [True, False]),
    "a compiled function": (lambda x, xi: jax.jit(lambda y: 2 * y)(jnp.array([x[0], xi[0]])), [False, True]),
    "a choice by the sample": (lambda x, xi: jnp.where(xi[0] > 0, x, 2 * x), [True, True]),
    # These mix entries.
    "running sums": (lambda x, xi: jnp.cumsum(jnp.array([xi[0], x[0]])), [True, True]),
    "an order": (lambda x, xi: jnp.sort(jnp.array([xi[0], x[0]])), [True, True]),
    "a place by the sample": (lambda x, xi: jnp.roll(x, (xi[0] > 0).astype(int)), [True, True]),
    "a loop": (lambda x, xi: jax.lax.fori_loop(0, 2, lambda i, y: y.at[i].add(xi[0]), x), [True, True]),
}


@pytest.mark.parametrize(("function", "wanted"), CASES.values(), ids=CASES.keys())
def test_entries_that_can_depend_on_the_sample(function, wanted):
    assert depends(function, np.zeros(2), np.ones(2)).tolist() == wanted


def test_samples_and_points_are_pytrees():
    found = depends(lambda x, xi: jnp.stack([x["a"], x["b"] * xi["p"]]), {"a": 1.0, "b": 2.0}, {"p": 3.0, "q": 4})
    assert found.tolist() == [False, True]
