"""The values of a problem's functions along a path of samples, at one fixed point."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core.compiled import compiled
from ergodrift._core.precision import double
from ergodrift.data.expectation import BATCH, check_parts, wide
from ergodrift.data.source import Source, Zip
from ergodrift.problem import Problem

DIRECTIONS = 8  # gradients of more entries are looked at along so many random directions


def path_values(problem: Problem, source: Source, x: Any, path: Any) -> tuple[np.ndarray, np.ndarray]:
    """f(x, xi_t) (n,) and g(x, xi_t) (n, constraints) along a path of indices into the source, in float64."""
    check_parts(problem, source, x)
    with double():
        point = jax.tree.map(jnp.asarray, wide(x))
        losses = np.asarray(_losses(problem, wide(source.loss_law).points, point), dtype=float)
        constraints = np.asarray(_constraints(problem, wide(source.constraint_law).points, point), dtype=float)
    parts = path if isinstance(source, Zip) else (path, path)
    return losses[np.asarray(parts[0])], constraints[np.asarray(parts[1])]


def path_gradients(problem: Problem, source: Source, x: Any, path: Any) -> np.ndarray:
    """The gradient of the loss along a path: its entries, or 8 random directions of it where it has more; (n, k)."""
    check_parts(problem, source, x)
    with double():
        point = jax.tree.map(jnp.asarray, wide(x))
        size = sum(leaf.size for leaf in jax.tree.leaves(point))
        if size > DIRECTIONS:
            turn = np.random.default_rng(0).normal(size=(size, DIRECTIONS)) / np.sqrt(size)
        else:
            turn = np.eye(size)
        gradients = np.asarray(_gradients(problem, wide(source.loss_law).points, point, turn), dtype=float)
    return gradients[np.asarray(source.loss_index(path))]


def _over(function: Any, points: Any) -> Any:
    count = jax.tree.leaves(points)[0].shape[0]
    return jax.lax.map(function, points, batch_size=min(BATCH, count))


@compiled()
def _losses(problem: Problem, points: Any, x: Any) -> Any:
    return _over(lambda xi: problem.loss(x, xi), points)


@compiled()
def _constraints(problem: Problem, points: Any, x: Any) -> Any:
    return _over(lambda xi: problem.constraints(x, xi), points)


@compiled()
def _gradients(problem: Problem, points: Any, x: Any, turn: Any) -> Any:
    def one(xi: Any) -> Any:
        leaves = jax.tree.leaves(jax.grad(problem.loss)(x, xi))
        return jnp.concatenate([jnp.ravel(leaf) for leaf in leaves]) @ turn

    return _over(one, points)
