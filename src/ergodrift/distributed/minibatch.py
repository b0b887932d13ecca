"""Mini-batches within agents: a few of an agent's rows at a time, chosen by the question itself."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ergodrift._core import check
from ergodrift.problem import Problem
from ergodrift.types import PyTree

KEY_TYPE = "threefry2x32"


def minibatch(problem: Problem, size: int) -> Problem:
    """The problem in which an agent answers from `size` of its rows, drawn anew, with replacement, for every question.

    The rows are a function of x alone: asked twice, an agent answers the same, so that nothing changes after a crash,
    and `run` on the pooled data draws the same rows. Where loss and constraints are means over rows, the answer has the
    right mean; loss and constraints see the same rows.

    Args:
        problem: its functions take xi with a leading axis of rows in all its arrays.
        size: how many rows.

    >>> import ergodrift as ed
    >>> problem = ed.Problem(lambda x, xi: jnp.mean((x - xi) ** 2), lambda x, xi: x[:1] - jnp.mean(xi), ed.Ball(1.0))
    >>> few = minibatch(problem, 2)
    >>> rows = jnp.arange(6.0)
    >>> bool(few.loss(jnp.ones(1), rows) == few.loss(jnp.ones(1), rows))
    True
    """
    size = check.integer("size", size, at_least=1)

    def chosen(x: PyTree, xi: PyTree) -> PyTree:
        count = jax.tree.leaves(xi)[0].shape[0]
        rows = jax.random.randint(_key(jax.lax.stop_gradient(x)), (size,), 0, count, jnp.int32)
        return jax.tree.map(lambda leaf: leaf[rows], xi)

    return Problem(
        lambda x, xi: problem.loss(x, chosen(x, xi)),
        lambda x, xi: problem.constraints(x, chosen(x, xi)),
        problem.geometry,
        fast_logarithms=problem.fast_logarithms,
        tabulate=False,
    )


def _key(x: PyTree) -> jax.Array:
    """A key that every bit of x has a part in."""
    with jax.numpy_dtype_promotion("standard"):
        key = jax.random.key(0, impl=KEY_TYPE)
        for leaf in jax.tree.leaves(x):
            bits = jax.lax.bitcast_convert_type(leaf, jnp.uint32).ravel()
            places = jnp.arange(bits.size, dtype=jnp.uint32)
            mixed = (bits ^ (places * jnp.uint32(0x9E3779B9))) * jnp.uint32(0x85EBCA6B)
            mixed = (mixed ^ (mixed >> 13)) * jnp.uint32(0xC2B2AE35)
            key = jax.random.fold_in(key, jnp.sum(mixed ^ (mixed >> 16), dtype=jnp.uint32))
    return key
