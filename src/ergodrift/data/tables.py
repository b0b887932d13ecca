"""Sources whose samples are rows of a table: a chain over the rows, or independent draws; for series see `series`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import jax
import numpy as np
from numpy.typing import ArrayLike

from ergodrift._core import check
from ergodrift._core.arrays import as_arrays
from ergodrift.data.chain import MarkovChain
from ergodrift.data.sampler import Categorical, Sampler
from ergodrift.data.source import Law, Source, Visits, by_seed
from ergodrift.data.stream import TableStream, padded, stored
from ergodrift.types import PyTree


class TableSource(Source):
    """A source whose samples are rows of one table, and its paths their numbers; a subclass says how these are drawn.

    Args:
        data: arrays with as many rows.
        weights: the stationary law of the rows.
    """

    def __init__(self, data: PyTree, weights: np.ndarray) -> None:
        self.data, self.weights = data, weights

    def sampler(self) -> Sampler:
        raise NotImplementedError(f"{type(self).__name__} must say how the numbers of rows are drawn, by sampler()")

    def stream(self) -> TableStream:
        check.fits("data", self.data)
        return TableStream(self.sampler(), jax.tree.map(stored, self.data))

    @property
    def loss_law(self) -> Law:
        return Law(self.data, self.weights)

    @property
    def stationary(self) -> np.ndarray | None:
        return self.weights

    @property
    def table(self) -> PyTree:
        return self.data

    @property
    def starts_stationary(self) -> bool:
        return True

    @property
    def example(self) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[0], self.data)

    @property
    def entry(self) -> PyTree:
        return np.int32(0)

    def check_paths(self, paths: PyTree, num_seeds: int, num_samples: int) -> jax.Array:
        paths, size = np.asarray(paths), len(self.weights)
        if not np.issubdtype(paths.dtype, np.integer):
            raise TypeError(f"paths must hold integers, got {paths.dtype}")
        paths = by_seed(paths, self.entry, num_seeds, num_samples)
        if paths.min() < 0 or paths.max() >= size:
            raise ValueError(f"paths must hold states between 0 and {size - 1}, got {paths.min()} to {paths.max()}")
        return padded(paths.astype(np.int32))

    def _leaves(self, paths: PyTree) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(np.asarray(paths), self.entry)]  # lists of numbers will do

    def visits(self, path: PyTree) -> tuple[Visits, Visits]:
        found = Visits(self.data, np.asarray(path))
        return found, found


class MarkovSource(TableSource):
    """xi_t = data[state_t], with state_t a path of the chain.

    Args:
        chain: the Markov chain.
        data: arrays with one row for each state, as for `SeriesSource`.
        start: the first state; drawn from the stationary law unless given.

    >>> source = MarkovSource(MarkovChain([[0.9, 0.1], [0.3, 0.7]]), np.array([1.0, -1.0]))
    >>> source.paths(seeds=2, num_samples=5).shape
    (2, 5)
    """

    def __init__(self, chain: MarkovChain, data: object, start: int | None = None) -> None:
        if not isinstance(chain, MarkovChain):
            raise TypeError(
                f"chain must be a MarkovChain, got {type(chain).__name__}; wrap the matrix in MarkovChain(P)"
            )
        data, rows = table_of(data)
        if rows != chain.num_states:
            raise ValueError(f"data has {rows} rows along its leading axis, the chain has {chain.num_states} states")
        if start is not None:
            start = check.integer("start", start, at_least=0, at_most=chain.num_states - 1)
        super().__init__(data, chain.stationary)
        self.chain, self.first = chain, start

    def sampler(self) -> Sampler:
        return self.chain.sampler(self.first)

    def mixing_time(self, eps: float = 0.25) -> int:
        return self.chain.mixing_time(eps)

    def distance(self, t: int) -> float:
        return min(self.chain.distance(t), 1.0)

    @property
    def starts_stationary(self) -> bool:
        return self.first is None


class IIDSource(TableSource):
    """Independent draws from the rows of `data`.

    Args:
        data: arrays with as many rows, as for `SeriesSource`.
        weights: probabilities of the rows, up to a factor; equal unless given.

    >>> IIDSource(np.array([1.0, 2.0]), weights=[1, 3]).loss_law.weights
    array([0.25, 0.75])
    """

    def __init__(self, data: object, weights: ArrayLike | None = None) -> None:
        data, rows = table_of(data)
        weights = np.ones(rows) if weights is None else np.asarray(weights, dtype=float)
        if weights.shape != (rows,):
            raise ValueError(f"weights must have shape ({rows},), one for each row of data, got {weights.shape}")
        if not np.isfinite(weights).all() or weights.min() < 0 or weights.sum() == 0:
            raise ValueError(f"weights must be finite, not negative, and not all zero, got {weights}")
        super().__init__(data, weights / weights.sum())

    def sampler(self) -> Sampler:
        return Categorical.from_weights(self.weights)

    def mixing_time(self, eps: float = 0.25) -> int:
        return 1

    def distance(self, t: int) -> float:
        return 0.0

    @property
    def independent(self) -> bool:
        return True

    @property
    def recorded(self) -> PyTree:
        return self.data


def stacked(samples: Iterable[PyTree], num_samples: int | None) -> PyTree:
    """The first samples of an iterator, one row per sample."""
    taken = list(itertools.islice(samples, num_samples))
    if not taken:
        raise ValueError("the stream is empty")
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *taken)


def table_of(data: object) -> tuple[PyTree, int]:
    """Data as arrays, and the common length of all along their leading axis, after checking that they are finite."""
    data = as_arrays("data", data)
    leaves = jax.tree_util.tree_leaves_with_path(data)
    if not leaves:
        raise ValueError("data holds no arrays")
    rows = {jax.tree_util.keystr(path) or "data": np.shape(leaf)[:1] for path, leaf in leaves}
    if () in rows.values():
        scalars = [name for name, shape in rows.items() if not shape]
        raise ValueError(
            f"data: every array needs a leading axis, but {_some(scalars)} is one number; pass columns, such as "
            "{'a': [1.0, 2.0]}, not a list of dicts"
        )
    if len(set(rows.values())) > 1:
        lengths = [f"{name} has {shape[0]}" for name, shape in rows.items()]
        raise ValueError(f"data: arrays differ along their leading axis: {_some(lengths)}")
    count = next(iter(rows.values()))[0]
    if count == 0:
        raise ValueError("data has no rows")
    check.finite("data", data)
    return data, count


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
