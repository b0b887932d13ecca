"""The rows that a linear model looks x up through: dense or sparse, padded to as many in every state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from ergodrift.types import Array


class Dense(NamedTuple):
    """The rows a_i of one state as columns, so that products with them run along the long axis."""

    columns: Array  # (d, n)

    @property
    def num_rows(self) -> int:
        return self.columns.shape[-1]

    def margins(self, x: jax.Array) -> jax.Array:
        return x @ self.columns

    def gather(self, slopes: jax.Array, like: Array) -> jax.Array:
        """sum_i slope_i a_i, with the shape of `like`."""
        return jnp.asarray(self.columns @ slopes)


class Sparse(NamedTuple):
    """The rows of one state, each with the same number of entries; shorter ones are filled up with zeros."""

    indices: Array  # (n, width)
    values: Array  # (n, width)

    @property
    def num_rows(self) -> int:
        return self.values.shape[-2]

    def margins(self, x: jax.Array) -> jax.Array:
        return jnp.sum(self.values * x[self.indices], axis=1)

    def gather(self, slopes: jax.Array, like: Array) -> jax.Array:
        return jnp.zeros_like(like).at[self.indices].add(self.values * slopes[:, None])


class Rows(NamedTuple):
    """What a linear model knows of one state; with a leading axis of states, the data of a `MarkovSource`.

    Attributes:
        features: a_i, `Dense` or `Sparse`, labels multiplied in.
        offsets: (n,) added to the margins, or None.
        count: how many rows there are.
        padding: how many rows of zeros have been added to them, at the end.
        normals: (k, d) of the constraints normals . x <= limits.
        limits: (k,)
    """

    features: Dense | Sparse
    offsets: Array | None
    count: Array  # type: ignore[assignment]  # of rows, not the method of a tuple
    padding: Array
    normals: Array
    limits: Array

    def margins(self, x: jax.Array) -> jax.Array:
        margins = self.features.margins(x)
        return margins if self.offsets is None else margins + self.offsets

    @property
    def real(self) -> jax.Array:
        """(n,) whether a row is one of the state's own."""
        return jnp.arange(self.features.num_rows, dtype=self.count.dtype) < self.count


SAVED: dict[str, type] = {cls.__name__: cls for cls in (Dense, Sparse, Rows)}  # what a file of samples may hold


def dense(parts: Sequence[np.ndarray], signs: np.ndarray, most: int) -> Dense:
    """The (n, d) matrices of all states, their rows times signs, filled up to `most` rows."""
    columns = np.zeros((len(parts), parts[0].shape[1], most))
    for table, part, sign in zip(columns, parts, signs, strict=True):
        table[:, : len(part)] = (part * sign[: len(part), None]).T
    return Dense(columns)


def sparse(parts: Sequence[scipy.sparse.csr_array], signs: np.ndarray, most: int) -> Sparse:
    """The same of sparse matrices."""
    width = max(1, max(int(np.diff(part.indptr).max()) for part in parts))
    indices = np.zeros((len(parts), most, width), dtype=np.int32)
    values = np.zeros((len(parts), most, width))
    for state, part in enumerate(parts):
        row = np.repeat(np.arange(len(part.indptr) - 1), np.diff(part.indptr))
        place = np.arange(part.nnz) - part.indptr[row]
        indices[state, row, place] = part.indices
        values[state, row, place] = part.data * signs[state, row]
    return Sparse(indices, values)
