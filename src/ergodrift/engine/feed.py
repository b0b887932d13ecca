"""A stream on its way to the device: windows of rows, all of one shape, so that one compiled loop takes them all."""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import tree
from ergodrift._core.arrays import aligned
from ergodrift.data.chunks import StreamSource
from ergodrift.data.reader import Column, StreamError
from ergodrift.data.sampler import InOrder
from ergodrift.data.stream import TableStream, Transposed, is_narrow
from ergodrift.engine import loop
from ergodrift.engine.checkpoint import Checkpoint
from ergodrift.engine.drive import NEVER, Course, Drive
from ergodrift.types import Device, PyTree

ROOMS = (64, 2048, 65_536)  # rows of a window: few, since each is compiled by itself
BYTES = 2**23  # of a window, at most: long enough that a call into the loop costs little beside it
LATEST = 4096  # rows that are kept for a look at the end
WAIT = 1.0  # seconds after which rows that have come are learned from, though the window is not full


class Window(NamedTuple):
    """Rows `first` to `end` of a stream, on the device, filled up to a fixed length.

    `sums` are the checksums of all rows before them.
    """

    data: PyTree
    first: int
    end: int
    sums: np.ndarray


class Cursor(NamedTuple):
    """What a checkpoint of a run on a stream holds: `sums` are the checksums of the first `checked` rows."""

    place: loop.Place
    grid: np.ndarray
    sums: np.ndarray
    checked: np.ndarray | np.integer


class Feed:
    """The windows of a stream.

    Args:
        source: the stream.
        kind: the precision of the run.
        devices: where its windows go.
        begin: how many samples were learned from before; these are read over.
        end: how many there shall be.
        sums: checksums of the first `checked` rows, to compare with those that are read over; None where none are kept.

    Attributes:
        current: the window that is learned from.
    """

    def __init__(
        self,
        source: StreamSource,
        kind: np.dtype,
        devices: tuple[Device, ...],
        begin: int,
        end: int,
        sums: np.ndarray | None,
        checked: int,
    ) -> None:
        if begin < source.first or (begin > source.first and not source.again.restarts):
            needs = f"StreamSource(rest, first={begin})" if begin else "StreamSource(chunks) without first"
            raise ValueError(
                f"chunks begins with sample {source.first:,}, and this run has learned from {begin:,}: pass {needs}, "
                "with an iterator that goes on from there, or a function that returns one from the start, such as "
                "lambda: read(path)"
            )
        self.kind, self.devices, self.at, self.end = kind, devices, begin, end
        self.current: Window | None = None
        self._last = collections.deque[list[np.ndarray]]()  # the last rows, in pieces,
        self._kept = 0  # and how many these are
        self._ahead: list[Window | None] = []
        self.reader = source.open()
        self.reader.look(1)
        row = sum(column.dtype.itemsize * math.prod(column.shape) for column in self.reader.like.columns)
        self.room, self.most = 0, int(np.clip(BYTES // max(row, 1), ROOMS[0], ROOMS[-1]))
        if sums is not None and source.first:
            self.reader.skip(begin - source.first)
            self.reader.sums = sums  # of rows that cannot be read again
        else:
            self.reader.sums = None if sums is None else np.zeros_like(sums)
            self.reader.skip(checked)
            if sums is not None and (self.reader.sums != sums).any():
                raise ValueError(
                    f"chunks are others than those the checkpoint was made with, within the first {checked:,} samples; "
                    "use another checkpoint, or delete it"
                )
            self.reader.skip(begin - source.first - checked)

    def next(self) -> Window | None:
        """The next window; None at the end of the stream, or where it could not be read on."""
        if not self._ahead:
            self.read_ahead()
        window = self._ahead.pop()
        self.current = window or self.current
        return window

    def read_ahead(self) -> None:
        """Read what `next` will return, while the rows before are learned from."""
        self._ahead.append(self._window())

    @property
    def latest(self) -> PyTree:
        """The last rows that were read, however short their chunks were."""
        if not self._last:
            return None
        return self.reader.like.tree([np.concatenate(leaves)[-LATEST:] for leaves in zip(*self._last, strict=True)])

    def _keep(self, rows: list[np.ndarray]) -> None:
        self._last.append(rows)
        self._kept += len(rows[0])
        while self._kept - len(self._last[0][0]) >= LATEST:
            self._kept -= len(self._last.popleft()[0])

    def _window(self) -> Window | None:
        began, first, reader = time.monotonic(), self.at, self.reader
        sums = np.zeros(0, np.int64) if reader.sums is None else reader.sums
        room, buffers = self.room or self._room(self.end - first), list[np.ndarray]()
        end = min(self.end, first + room)
        while self.at < end and (rows := reader.rows(end - self.at)) is not None:
            buffers = buffers or [self._empty(room, column) for column in reader.like.columns]
            for buffer, leaf in zip(buffers, rows, strict=True):
                buffer[self.at - first : self.at - first + len(leaf)] = _turned(leaf)
            self.at += len(rows[0])
            self._keep([leaf[-LATEST:].copy() for leaf in rows])  # the chunk may go, or be written to again
            if time.monotonic() - began > WAIT and not reader.pending:
                break
        if not buffers:
            return None
        if not self.room:  # the first window says how long all are, and is short where it is the only one
            self.room = self._room(self.at - first) if reader.ended and not reader.pending else room
        arrays: PyTree = loop.everywhere(self.devices, [buffer[: self.room] for buffer in buffers])
        columns = zip(arrays, reader.like.columns, strict=True)
        data = reader.like.tree([Transposed(array) if is_narrow(shape) else array for array, (_, _, shape) in columns])
        return Window(data, first, self.at, sums)

    def _room(self, rows: int) -> int:
        """How long a window for so many rows is."""
        return min(next((room for room in ROOMS if room >= rows), self.most), self.most)

    def _empty(self, room: int, column: Column) -> np.ndarray:
        floating = jnp.issubdtype(column.dtype, jnp.floating)
        kind = self.kind if floating else jax.dtypes.canonicalize_dtype(column.dtype)
        shape = column.shape[::-1] if is_narrow(column.shape) else column.shape
        return aligned((room, *shape), kind)


def _turned(leaf: np.ndarray) -> np.ndarray:
    return leaf.swapaxes(1, 2) if is_narrow(leaf.shape[1:]) else leaf


def streamed(
    name: str,
    spec: loop.RunSpec,
    carry: loop.Carry,
    num_samples: int | None,
    seeds: np.ndarray,
    saved: Checkpoint | None,
    source: StreamSource,
    shown: Callable[[TableStream], TableStream],
) -> Course:
    """All samples of a stream, or `num_samples` of them. `shown` says how the loop is to see a window.

    A checkpoint holds the place, the records' grid, and checksums of the rows up to the start of a window.
    """
    leaves = len(jax.tree.leaves(source.example))
    grid, sums = np.asarray(spec.grid, np.int64), np.zeros(leaves, np.int64)
    start = Cursor(loop.beginning(spec, carry), grid, sums, np.int64(0))
    cursor = start if saved is None else saved.restore(start)
    spec = spec._replace(grid=jnp.asarray(cursor.grid, jnp.int32))
    drive = Drive(name, spec, cursor.place, seeds, num_samples)
    most = NEVER if num_samples is None else num_samples
    if drive.done >= most:
        return Course(drive.place.records, drive.grid, drive.done)
    known = None if saved is None else cursor.sums
    kind = tree.dtype(carry.state.x)
    feed = Feed(source, kind, drive.devices, drive.done, most, known, int(cursor.checked))

    def keep(*, last: bool = False) -> None:
        window = feed.current
        if saved is not None and window is not None and (last or saved.due):
            saved.save(Cursor(drive.place, drive.grid, window.sums, np.int64(window.first)), last=last)

    try:
        while (window := feed.next()) is not None:
            drive.feed(shown(TableStream(InOrder(), window.data, np.int32(window.first))))
            drive.to(window.end, keep, feed.read_ahead)
    finally:
        drive.bar.close()
    if not drive.done:
        raise feed.reader.fault or StreamError("the stream is empty: chunks holds no rows")
    keep(last=True)
    count = drive.finish()
    records = jax.tree.map(lambda leaf: leaf[:, :count], drive.place.records)
    fault = feed.reader.fault if drive.done < most else None  # what lies behind the samples asked for is not missed
    return Course(records, drive.grid[:count], drive.done, fault, feed.latest)
