"""A matrix column by column, `X[:, 0] * x[0] + X[:, 1] * x[1] + ...`, as one product of the matrix with a vector.

The slope of each term in its factor is a sum over all rows, which XLA's CPU compiler makes a loop of its own; those of
the product are one product. Columns that do not stand side by side would have to be copied, which takes longer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Multiple(NamedTuple):
    """A multiple of a column."""

    value: jax.Array
    matrix: jax.Array
    number: int
    factor: jax.Array


class Columns:
    """What is known of the values of one evaluation, by address; what is kept here keeps its own."""

    def __init__(self, product: Callable[[jax.Array, jax.Array], jax.Array]) -> None:
        self.product = product  # of a matrix and a vector
        self.picked: dict[int, tuple[jax.Array, jax.Array, int]] = {}  # a column, its matrix and number
        self.sums: dict[
            int, tuple[jax.Array, list[Multiple], list[jax.Array]]
        ] = {}  # of multiples, and of what is none

    def sliced(self, found: jax.Array, matrix: jax.Array, start: Sequence[int]) -> jax.Array:
        """A slice of a matrix, which may be a column of it."""
        if matrix.ndim == 2 and found.shape == (matrix.shape[0], 1):
            self.picked[id(found)] = found, matrix, start[1]
        return found

    def squeezed(self, found: jax.Array, column: jax.Array) -> jax.Array:
        """The same without axes of length 1."""
        if id(column) in self.picked:
            self.picked[id(found)] = found, *self.picked[id(column)][1:]
        return found

    def multiplied(self, found: jax.Array, vector: jax.Array, factor: jax.Array) -> None:
        """A multiple of a vector, which may be a column."""
        if id(vector) in self.picked:
            self.sums[id(found)] = found, [Multiple(found, *self.picked[id(vector)][1:], factor)], []

    def added(self, found: jax.Array, left: jax.Array, right: jax.Array, sign: int) -> jax.Array:
        """left + right, or left - right."""
        multiples: list[Multiple] = []
        others: list[jax.Array] = []
        for value, minus in ((left, False), (right, sign < 0)):
            _, terms, rest = self.sums.get(id(value), (value, [], [value]))
            multiples += [one._replace(value=-one.value, factor=-one.factor) if minus else one for one in terms]
            others += [-one if minus else one for one in rest]
        if not multiples:
            return found
        parts = [part for terms in _by_matrix(multiples) for part in self._joined(terms)]
        if len(parts) < len(multiples):
            found = functools.reduce(jnp.add, [*parts, *others])
        self.sums[id(found)] = found, multiples, others
        return found

    def _joined(self, terms: list[Multiple]) -> list[jax.Array]:
        """Multiples of columns of one matrix: as a product, if these stand side by side."""
        first, count = terms[0], len(terms)
        if count == 1 or [one.number for one in terms] != list(range(first.number, first.number + count)):
            return [one.value for one in terms]
        matrix = jax.lax.slice_in_dim(first.matrix, first.number, first.number + count, axis=1)
        return [self.product(matrix, jnp.stack([one.factor for one in terms]))]


def _by_matrix(multiples: Sequence[Multiple]) -> list[list[Multiple]]:
    groups: dict[int, list[Multiple]] = {}
    for one in sorted(multiples, key=lambda one: one.number):
        groups.setdefault(id(one.matrix), []).append(one)
    return list(groups.values())
