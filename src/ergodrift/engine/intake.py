"""The intake of a learner: rows go into the compiled loop, and come out again where they bring a NaN."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import tree
from ergodrift._core.pack import Layout, Packed
from ergodrift.data.sampler import BLOCK
from ergodrift.data.source import level_keys, path_keys, seed_keys
from ergodrift.engine import online
from ergodrift.engine.carry import Record
from ergodrift.engine.drive import NEVER, not_finite
from ergodrift.engine.history import History
from ergodrift.engine.rows import Row, unfilled, window
from ergodrift.methods.algorithms import Algorithm
from ergodrift.methods.average import Average
from ergodrift.problem import Problem
from ergodrift.types import PyTree

ROOMS = (64, 1024, 16_384)  # rows of a window: few, since each is compiled by itself
BYTES = 2**23  # of a window, at most


class Intake:
    """One seed of the compiled loop, fed from outside.

    Whether all is finite is asked once in as many rows as the longest window has, or once a block of single samples:
    the answer has to be waited for, and the next rows can be made ready and handed over before it is there.
    Until then the rows are kept. Where something is not finite, the loop goes back to before the sample that did it.

    Args:
        algorithm, problem, x0, average, seed: as in `Learner`.
        example: one sample, as arrays.
        history: where records go.
        stand: is called with rows that were learned from and stand.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        problem: Problem,
        x0: PyTree,
        average: Average,
        seed: int,
        example: PyTree,
        history: History,
        stand: Callable[[list[np.ndarray]], None],
    ) -> None:
        num_constraints = problem.check(x0, example)
        estimator = algorithm.estimator.for_run(NEVER, None, None, None)
        method = dataclasses.replace(algorithm, estimator=estimator).bind(problem)
        method.check(x0, num_constraints)
        paths = jax.tree_util.tree_leaves_with_path(example)
        self.rows = [Row.of(jax.tree_util.keystr(path), leaf, tree.dtype(x0)) for path, leaf in paths]
        size = max(sum(leaf.nbytes for _, leaf in paths), 1)
        self.rooms = tuple(room for room in ROOMS if room * size <= BYTES) or (1,)
        self.structure, self.example = jax.tree.structure(example), example
        self.name, self.count, self.history = algorithm.name, 0, history
        self._stand = stand
        key = seed_keys([seed])
        blank = self.structure.unflatten(window([row.blank() for row in self.rows], 1))
        told = (x0, blank, path_keys(key), level_keys(key))
        self.setup = online.Setup(problem, method, average)
        self._layout = Layout.of(jax.eval_shape(lambda *told: online.begun(self.setup, num_constraints, *told), *told))
        self.packed = online.beginning(self.setup, self._layout, num_constraints, *told)
        self._before: Packed | None = None  # where it stood at the last look at its health,
        self._since: list[tuple[list[np.ndarray], int]] = []  # and the rows since, with the sample count after each
        self._seen: tuple[int, Record] | None = None  # the last record that was asked for

    def take_one(self, xi: list[np.ndarray]) -> None:
        """One sample, in arrays that nobody else writes to."""
        self._look_at_times()
        begins, sample = self.count % BLOCK == 0, self.structure.unflatten(xi)
        self.packed = online.take_one(self.setup, self._layout, begins, self.packed, sample)
        self._add(xi, 1)

    def take_rows(self, rows: list[np.ndarray], count: int) -> None:
        """A chunk of them, window by window; each is copied, since the chunk is the caller's to write to again."""
        done = 0
        while done < count:
            room = self._room(count - done)
            size = min(room, count - done)
            arrays = window([leaf[done : done + room] for leaf in rows], room)
            self._look_at_times()
            data, limit = self.structure.unflatten(arrays), np.int32(self.count + size)
            self.packed = online.take_rows(self.setup, self._layout, self.packed, data, limit)
            self._add(unfilled(arrays, size), size)
            done += size

    def _room(self, count: int) -> int:
        """The length of the window for so many rows: not much longer than they are, or else shorter."""
        for shorter, room in zip((0, *self.rooms), self.rooms, strict=False):
            if room >= count:
                return shorter if shorter and 4 * count < room else room
        return self.rooms[-1]

    def _add(self, rows: list[np.ndarray], count: int) -> None:
        self.count += count
        self._since.append((rows, self.count))
        if self.count >= self.history.due:
            self.history.add(self.count, online.observed(self.setup, self._layout, self.packed))

    def _look_at_times(self) -> None:
        rows = self.count - self._since[0][1] if self._since else 0
        if len(self._since) >= BLOCK or rows >= self.rooms[-1]:
            self.look()
        if self._before is None:
            self._before = self.packed

    def look(self) -> None:
        """See that all is finite; if not, go back to before the sample that brought it, and say so."""
        if self._before is None:
            return
        before, self._before = self._before, None
        since, self._since = self._since, []
        since = [(self._chunk(rows), end) for rows, end in since]
        error = None if self._is_healthy(self.packed) else self._step_back(before, since)
        for rows, end in since:
            fallen = max(end - self.count, 0)
            if fallen < len(rows[0]):
                self._stand([leaf[: len(leaf) - fallen] for leaf in rows])
        if error is not None:
            raise error

    def _step_back(self, packed: Packed, since: list[tuple[list[np.ndarray], int]]) -> Exception | None:
        """Take the same rows once more, as far as all is finite."""
        for rows, end in since:
            data = self.structure.unflatten(window(rows, len(rows[0])))
            after = online.take_rows(self.setup, self._layout, packed, data, np.int32(end))
            if self._is_healthy(after):
                packed = after
                continue
            found = online.located(self.setup, self._layout, packed, data, np.int32(end))
            sample, rounds, fault = int(found[0]), int(found[1]), found[2]
            self.packed = online.take_rows(self.setup, self._layout, packed, data, np.int32(sample - 1))
            self.count = sample - 1
            self.history.drop_after(self.count)
            return not_finite(self.name, sample, rounds, fault)
        self.packed = packed  # the same samples, once more and in another program, are fine
        return None

    def _chunk(self, rows: list[np.ndarray]) -> list[np.ndarray]:
        return rows if rows[0].ndim > len(self.rows[0].shape) else [leaf[None] for leaf in rows]

    def _is_healthy(self, packed: Packed) -> bool:
        place = self._layout.places[-1]  # of `Standing.healthy`
        return bool(np.asarray(packed[place.array])[place.at])

    def now(self) -> Record:
        """What a record holds of where it stands."""
        self.look()
        if self._seen is None or self._seen[0] != self.count:
            record = online.observed(self.setup, self._layout, self.packed)
            self._seen = self.count, jax.tree.map(np.asarray, record)
        return self._seen[1]

    def state(self) -> dict[str, PyTree]:
        """All that goes on with the next sample."""
        self.look()
        return {"packed": self.packed, "samples_seen": self.count, "history": self.history.state()}

    def restore(self, stored: dict[str, PyTree]) -> None:
        """Go on from what `state` returned."""
        wanted = [(leaf.shape, leaf.dtype) for leaf in self.packed]
        if [(leaf.shape, leaf.dtype) for leaf in stored["packed"]] != wanted:
            raise ValueError("its state has other shapes than this problem and algorithm make")
        self.packed = [jnp.asarray(leaf) for leaf in stored["packed"]]
        self.count = stored["samples_seen"]
        record = jax.eval_shape(lambda packed: online.observed(self.setup, self._layout, packed), self.packed)
        self.history = History.restored(stored["history"], jax.tree.structure(record))
