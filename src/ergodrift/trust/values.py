"""The values of a problem's functions along a path of samples, at one fixed point."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core.compiled import compiled
from ergodrift._core.precision import double
from ergodrift.data.expectation import BATCH, check_parts, wide
from ergodrift.data.source import Source
from ergodrift.problem import Problem
from ergodrift.types import PyTree

DIRECTIONS = 8  # gradients of more entries are looked at along so many random directions


def path_values(problem: Problem, source: Source, x: PyTree, path: PyTree) -> tuple[np.ndarray, np.ndarray]:
    """f(x, xi_t) (n,) and g(x, xi_t) (n, constraints) along a path of the source, in float64."""
    check_parts(problem, source, x)
    losses, constraints = source.visits(path)
    return (
        loss_values(problem, losses.points, x)[losses.rows],
        constraint_values(problem, constraints.points, x)[constraints.rows],
    )


def loss_values(problem: Problem, points: PyTree, x: PyTree) -> np.ndarray:
    """f(x, xi) of samples given as arrays with a leading axis, in float64; (points,)."""
    with double():
        return np.asarray(_losses(problem, wide(points), jax.tree.map(jnp.asarray, wide(x))), dtype=float)


def constraint_values(problem: Problem, points: PyTree, x: PyTree) -> np.ndarray:
    """g(x, xi) of the same, (points, constraints)."""
    with double():
        return np.asarray(_constraints(problem, wide(points), jax.tree.map(jnp.asarray, wide(x))), dtype=float)


def path_gradients(problem: Problem, source: Source, x: PyTree, path: PyTree) -> np.ndarray:
    """The gradient of the loss along a path: its entries, or 8 random directions of it where it has more; (n, k)."""
    check_parts(problem, source, x)
    losses = source.visits(path)[0]
    with double():
        point = jax.tree.map(jnp.asarray, wide(x))
        size = sum(leaf.size for leaf in jax.tree.leaves(point))
        if size > DIRECTIONS:
            directions = np.random.default_rng(0).normal(size=(size, DIRECTIONS)) / np.sqrt(size)
        else:
            directions = np.eye(size)
        gradients = np.asarray(_gradients(problem, wide(losses.points), point, directions), dtype=float)
    return gradients[losses.rows]


def possible_values(problem: Problem, source: Source, x: PyTree) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Losses (points,) and constraints (points, n) of every sample there can be; None where these are not known."""
    known = [part.stationary is not None for part in source.parts]
    with double():
        point = jax.tree.map(jnp.asarray, wide(x))
        losses = _losses(problem, wide(source.loss_law).points, point) if known[0] else None
        constraints = _constraints(problem, wide(source.constraint_law).points, point) if known[1] else None
    return _host(losses), _host(constraints)


def _host(values: jax.Array | None) -> np.ndarray | None:
    return None if values is None else np.asarray(values, dtype=float)


def _over(function: Callable[[PyTree], jax.Array], points: PyTree) -> jax.Array:
    count = jax.tree.leaves(points)[0].shape[0]
    return jax.lax.map(function, points, batch_size=min(BATCH, count))


@compiled()
def _losses(problem: Problem, points: PyTree, x: PyTree) -> jax.Array:
    return _over(lambda xi: problem.loss(x, xi), points)


@compiled()
def _constraints(problem: Problem, points: PyTree, x: PyTree) -> jax.Array:
    return _over(lambda xi: problem.constraints(x, xi), points)


@compiled()
def _gradients(problem: Problem, points: PyTree, x: PyTree, directions: np.ndarray) -> jax.Array:
    def one(xi: PyTree) -> jax.Array:
        leaves = jax.tree.leaves(jax.grad(problem.loss)(x, xi))
        return jnp.concatenate([jnp.ravel(leaf) for leaf in leaves]) @ directions

    return _over(one, points)
