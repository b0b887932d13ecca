"""A recorded series: read once or several times, in order or not, row by row or in batches."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ergodrift._core import check
from ergodrift.data.passes import ORDERS, Passes, weighed
from ergodrift.data.sampler import BLOCK, InOrder, Sampler
from ergodrift.data.source import Visits, by_seed
from ergodrift.data.stream import TableStream, padded
from ergodrift.data.tables import TableSource, stacked, table_of
from ergodrift.data.timing import Timing, taken_out
from ergodrift.problem import Batch, Batched, Problem
from ergodrift.types import Key, PyTree


class SeriesSource(TableSource):
    """A recorded series, read once and in order unless said otherwise.

    A sample is a row, or a batch of rows; `length` is how many samples a run takes, epochs x rows, or epochs x batches.
    Expectations (`loss_law`) are over the rows, each once, whatever the order. `diagnose` and certificates look at the
    record as it came, once: what several passes cannot buy is told in docs/howto/series.md.

    Args:
        data: arrays with time along their leading axis: one, or a tuple or dict of them, or any other pytree. A table
            (pandas, polars, pyarrow) becomes a dict of its columns, so that a loss reads `xi["price"]`; nested lists,
            series and tensors become arrays. What is no number is refused by name (see `arrays.as_arrays`).
        epochs: how many times to go through the record.
        order: "given"; "shuffled", each pass in a random order of its own, so that rows are nearly independent for the
            learner; or "blocks", each pass from a random row on, cut into blocks of consecutive rows that come in
            random order: within them rows depend on each other as recorded. Every row comes once in every pass. The
            orders are functions of the seed.
        batch: rows of a sample. The problem's functions are still of one row: loss and constraints of a batch are the
            means over its rows. The last batch of a pass may have r < batch rows, and then counts r / batch, so that
            sums over samples are sums over rows, divided by `batch`.
        time: when rows were taken, for rows that may not be in order: the name of a column of a table or key of a dict,
            which is then no part of the samples; the name of a pandas index; or an array, which leaves the samples as
            they are. Numbers or dates. Rows are sorted by it, those with equal times as they came; `timing` says what
            was found.
        block: rows of a block, for order="blocks": several times as many as rows stay dependent (`diagnose` tells).
            The cube root of the number of rows unless given, as is best for means of weakly dependent rows (Künsch
            1989; Hall, Horowitz and Jing 1995).

    Attributes:
        timing: ties, gaps and spacing of the times; None without times.

    >>> SeriesSource(np.arange(100.0)).length
    100
    >>> SeriesSource({"price": [1.0, 2.0, 4.0], "sold": [3, 1, 0]}).example
    {'price': np.float64(1.0), 'sold': np.int64(3)}
    >>> SeriesSource(np.arange(5.0), epochs=2, batch=2).paths(seeds=1, num_samples=4)[0].tolist()
    [[0, 1], [2, 3], [4, -1], [0, 1]]
    >>> SeriesSource({"day": [3, 1, 2], "price": [4.0, 1.0, 2.0]}, time="day").data
    {'price': array([1., 2., 4.])}
    """

    def __init__(
        self,
        data: object,
        epochs: int = 1,
        order: str = "given",
        batch: int | None = None,
        time: str | ArrayLike | None = None,
        *,
        block: int | None = None,
    ) -> None:
        data, times = (data, None) if time is None else taken_out(data, time)
        data, rows = table_of(data)
        self.timing: Timing | None = None
        if times is not None:
            if len(times) != rows:
                raise ValueError(f"time must hold one time for each of {rows} rows, got {len(times)}")
            self.timing, places = Timing.of(times)
            if self.timing.moved:
                data = jax.tree.map(lambda leaf: leaf[places], data)
        super().__init__(data, np.full(rows, 1 / rows))
        self.epochs = check.integer("epochs", epochs, at_least=1)
        self.order = check.choice("order", order, ORDERS)
        size = 1 if batch is None else check.integer("batch", batch, at_least=1, at_most=rows)
        self.batch = None if size == 1 else size  # batches of one row are rows
        if block is not None and order != "blocks":
            raise ValueError(f"block={block} goes with order='blocks', got order={order!r}")
        cube_root = max(round(rows ** (1 / 3)), 1)
        self.block = cube_root if block is None else check.integer("block", block, at_least=1, at_most=rows)
        if self.epochs * self.per_pass > 2**31 - BLOCK:
            raise ValueError(
                f"epochs={epochs}: {self.epochs:,} passes of {self.per_pass:,} samples are more than a run can count, "
                f"2^31 - {BLOCK}; take fewer passes or larger batches"
            )

    @staticmethod
    def record(samples: Iterable[PyTree], num_samples: int | None = None) -> SeriesSource:
        """The first samples of an iterator, such as a generator; all of them unless a number is given.

        >>> SeriesSource.record(({"price": 2.0**t} for t in range(9)), 3).data
        {'price': array([1., 2., 4.])}
        """
        return SeriesSource(stacked(samples, num_samples))

    def sampler(self) -> Sampler:
        if self.in_order is self:
            return InOrder()
        return Passes(len(self.weights), self.order, self.batch, self.block)

    def stream(self) -> TableStream | BatchStream:  # type: ignore[override]  # batches are no rows
        rows = super().stream()
        if self.in_order is self:
            return rows._replace(first=np.int32(0))  # so that a stream of windows compiles to the same loop
        return rows if self.batch is None else BatchStream(rows)

    def asked(self, problem: Problem) -> Problem:
        return problem if self.batch is None else Batched.of(problem)

    @property
    def length(self) -> int:
        return self.epochs * self.per_pass

    @property
    def per_pass(self) -> int:
        return -(-len(self.weights) // self.rows_per_sample)

    @property
    def rows_per_sample(self) -> int:
        return self.batch or 1

    def rows_taken(self, counts: np.ndarray, paths: PyTree = None) -> np.ndarray:
        if self.batch is None:
            return np.asarray(counts)
        if paths is not None:
            return weighed(paths, counts)
        passes, left = np.divmod(np.asarray(counts, dtype=np.int64), self.per_pass)
        return passes * len(self.weights) + np.minimum(left * self.batch, len(self.weights))

    def rows_seen(self, num_samples: int) -> int:
        rows = len(self.weights)
        return int(min(self.rows_taken(np.asarray(num_samples)), rows)) if self.order == "given" else rows

    @property
    def in_order(self) -> SeriesSource:
        if self.epochs == 1 and self.order == "given" and self.batch is None:
            return self
        once = copy.copy(self)
        once.epochs, once.order, once.batch = 1, "given", None
        return once

    @property
    def stationary(self) -> None:
        return None

    @property
    def recorded(self) -> PyTree:
        return self.data

    @property
    def entry(self) -> PyTree:
        return super().entry if self.batch is None else np.zeros(self.batch, np.int32)

    def check_paths(self, paths: PyTree, num_seeds: int, num_samples: int) -> jax.Array:
        if self.batch is None:
            return super().check_paths(paths, num_seeds, num_samples)
        paths, rows = np.asarray(paths), len(self.weights)
        if not np.issubdtype(paths.dtype, np.integer):
            raise TypeError(f"paths must hold integers, got {paths.dtype}")
        paths = by_seed(paths, self.entry, num_seeds, num_samples)
        if paths.min() < -1 or paths.max() >= rows:
            raise ValueError(f"paths must hold rows between 0 and {rows - 1}, got {paths.min()} to {paths.max()}")
        real = paths >= 0
        if not real[..., 0].all() or (real[..., 1:] & ~real[..., :-1]).any():
            raise ValueError("paths: a batch must begin with its rows; -1 fills it up at its end alone")
        return padded(paths.astype(np.int32))

    def visits(self, path: PyTree) -> tuple[Visits, Visits]:
        rows = np.asarray(path).ravel()
        return super().visits(rows[rows >= 0])


class BatchStream(NamedTuple):
    """Batches of rows of a table: an entry has their numbers, and -1 in the places that are not filled."""

    table: TableStream

    @property
    def data(self) -> PyTree:
        return self.table.data

    def start(self, key: Key) -> PyTree:
        return self.table.start(key)

    def block(self, carry: PyTree, number: jax.Array) -> tuple[PyTree, PyTree]:
        return self.table.block(carry, number)

    def xi(self, entry: jax.Array) -> Batch:
        real = entry >= 0
        rows = jnp.where(real, entry, entry[0])
        # A CPU copies row by row several times faster than it gathers them; a GPU needs them side by side.
        points = jax.lax.platform_dependent(
            self.table,
            rows,
            cpu=lambda table, rows: jax.lax.map(table.xi, rows),
            default=lambda table, rows: jax.vmap(table.xi)(rows),
        )
        return Batch(points, real)
