"""Expected loss and constraints with their first and second derivatives, compiled, for solvers that need them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ergodrift._core.compiled import compiled
from ergodrift.data.expectation import BATCH
from ergodrift.data.source import Law
from ergodrift.problem import Problem, value_and_jacobian
from ergodrift.types import PyTree

T = TypeVar("T")

CHUNK = 2**18  # numbers held at a time for the points of a law, or for their derivatives: what a cache holds


@compiled()
def all_constraints(problem: Problem, points: PyTree, x: PyTree) -> jax.Array:
    """g(x, xi) at every one of some points, (points, n)."""
    return jax.lax.map(lambda xi: problem.constraints(x, xi), points, batch_size=BATCH)


@compiled()
def all_losses(problem: Problem, points: PyTree, x: PyTree) -> jax.Array:
    """f(x, xi) at every one of some points, (points,)."""
    return jax.lax.map(lambda xi: problem.loss(x, xi), points, batch_size=BATCH)


@compiled()
def each_constraint(problem: Problem, points: PyTree, x: PyTree) -> tuple[jax.Array, PyTree]:
    """The same in one row, and its Jacobian."""
    return value_and_jacobian(lambda y: all_constraints(problem, points, y).ravel(), x)


@compiled()
def mean_loss(problem: Problem, law: Law, x: PyTree) -> tuple[jax.Array, PyTree]:
    """f̄(x) and its gradient."""

    def part(points: PyTree, weights: jax.Array) -> PyTree:
        return jax.value_and_grad(lambda y: weights @ jax.vmap(lambda xi: problem.loss(y, xi))(points))(x)

    return _added(part, law.points, jnp.asarray(law.weights), x)


@compiled()
def mean_constraints(problem: Problem, law: Law, x: PyTree) -> tuple[jax.Array, PyTree]:
    """ḡ(x) and its Jacobian."""

    def part(points: PyTree, weights: jax.Array) -> PyTree:
        return value_and_jacobian(lambda y: weights @ jax.vmap(lambda xi: problem.constraints(y, xi))(points), x)

    return _added(part, law.points, jnp.asarray(law.weights), x)


def curvature(problem: Problem, name: str, points: PyTree, weights: jax.Array, x: PyTree) -> jax.Array:
    """The second derivative of sum_j weights_j.h(x, xi_j) with respect to the flat x, h the loss or the constraints."""
    try:
        return _curvature(problem, name, "forward", points, weights, x)
    except TypeError:  # a function with a reverse rule of its own alone
        return _curvature(problem, name, "reverse", points, weights, x)


@compiled(static_argnums=(1, 2))
def _curvature(problem: Problem, name: str, mode: str, points: PyTree, weights: jax.Array, x: PyTree) -> jax.Array:
    flat, unravel = ravel_pytree(x)
    function, outer = getattr(problem, name), {"forward": jax.jacfwd, "reverse": jax.jacrev}[mode]

    def part(points: PyTree, weights: jax.Array) -> PyTree:
        def total(y: jax.Array) -> jax.Array:
            return jnp.vdot(weights, jax.vmap(lambda xi: jnp.ravel(function(unravel(y), xi)))(points))

        return outer(jax.grad(total))(flat)

    return _added(part, points, weights, x)


def _added(part: Callable[[PyTree, jax.Array], T], points: PyTree, weights: jax.Array, x: PyTree) -> T:
    """The sum of part(points, weights) over chunks of the points: derivatives of all at once do not fit into memory."""
    entries = [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (points, x)]
    count = weights.shape[0]
    chunk = max(1, CHUNK // max(-(-entries[0] // count), entries[1]))
    if chunk >= count:
        return part(points, weights)

    def add(i: jax.Array, total: T) -> T:
        start = jnp.minimum(i * chunk, count - chunk)  # the last chunk reaches back over rows that weigh nothing there
        piece, share = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, chunk), (points, weights))
        fresh = start + jnp.arange(chunk) >= i * chunk
        share = jnp.where(fresh.reshape(-1, *[1] * (share.ndim - 1)), share, 0)
        return jax.tree.map(jnp.add, total, part(piece, share))

    shapes = jax.eval_shape(part, *jax.tree.map(lambda leaf: leaf[:chunk], (points, weights)))
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.fori_loop(0, -(-count // chunk), add, zero)
