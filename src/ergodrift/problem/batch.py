"""A problem asked about several samples at once: loss and constraints are means over the rows of a batch."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ergodrift._core.compiled import compiled
from ergodrift.problem.problem import Function, Problem
from ergodrift.types import Array, Feedback, PyTree


class Batch(NamedTuple):
    """Several samples, along a leading axis of a fixed length B.

    Attributes:
        points: the samples; those that are not real are there for their shape, and must be finite.
        real: (B,) bool, which of them count.
    """

    points: PyTree
    real: Array

    def weights(self, like: jax.Array) -> jax.Array:
        """1/B for each that counts, 0 for the others, beside an array with the same leading axis and of its type."""
        each = jnp.asarray(self.real).astype(like.dtype) / self.real.shape[0]
        return each.reshape(-1, *[1] * (like.ndim - 1))


class Batched(Problem):
    """A problem whose samples are batches of another's: f(x, batch) = sum over its rows of f(x, xi) / B, and so g.

    A batch of r < B rows thereby counts r/B: sums over batches are sums over rows, divided by B.

    >>> from ergodrift import Ball
    >>> problem = Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] - 0.5, Ball(2.0))
    >>> batch = Batch(jnp.array([[1.0], [3.0], [3.0]]), jnp.array([True, True, False]))
    >>> heard = Batched.of(problem).feedback(jnp.zeros(1), batch)
    >>> heard.loss.round(4), heard.constraints.round(4)  # (1 + 9) / 3, 2 * -0.5 / 3
    (Array(3.3333, dtype=float64), Array([-0.3333], dtype=float64))
    """

    original: Problem

    @staticmethod
    def of(problem: Problem) -> Batched:
        loss, constraints = _MeanOverRows(problem.loss), _MeanOverRows(problem.constraints)
        return Batched(loss, constraints, problem.geometry, problem, fast_logarithms=problem.fast_logarithms)

    @compiled()
    def _feedback(self, x: PyTree, xi: Batch) -> Feedback:
        kind = type(self.original)
        if kind.feedback is Problem.feedback and kind._feedback is Problem._feedback:
            return Problem._feedback(self, x, xi)  # one derivative of the mean, not the mean of many
        heard = jax.vmap(lambda row: self.original.feedback(x, row))(xi.points)
        return jax.tree.map(lambda leaf: jnp.sum(xi.weights(leaf) * leaf, axis=0), heard)

    def share(self, xi: Batch) -> jax.Array:
        """How much of a whole sample a batch is, r/B."""
        return jnp.mean(jnp.asarray(xi.real).astype(float))


class _MeanOverRows:
    """The mean of a function over a batch; equal functions make equal ones, so nothing recompiles."""

    def __init__(self, function: Function) -> None:
        self.function = function

    def __call__(self, x: PyTree, xi: Batch) -> jax.Array:
        values = jax.vmap(lambda row: jnp.asarray(self.function(x, row)))(xi.points)
        return jnp.sum(xi.weights(values) * values, axis=0)

    def made_of(self) -> tuple[type[_MeanOverRows], tuple[Function]]:
        """What a structure keeps of it (see `compiled.held`)."""
        return _MeanOverRows, (self.function,)
