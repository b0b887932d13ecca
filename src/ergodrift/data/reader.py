"""One way through the chunks of a stream: each is checked against those before, and handed out row by row."""

from __future__ import annotations

import collections
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np

from ergodrift._core import check
from ergodrift._core.arrays import as_arrays
from ergodrift.types import PyTree


class StreamError(ValueError):
    """A stream could not be read on, or holds what cannot be learned from.

    Attributes:
        result: of `run`, what was learned from the samples before; None where there were none.
    """

    result: PyTree = None


class Reader:
    """Reads chunks, and hands their rows out in parts of any length: the arrays of a chunk, one behind the other.

    Attributes:
        taken: how many rows were handed out.
        sums: of the bytes of each array so far (CRC-32), to know the same stream again; None where not asked for.
        ended: whether all chunks were read, or one could not be.
        fault: what was wrong with that one. Rows before it are handed out first.
    """

    def __init__(self, chunks: Iterator[object]) -> None:
        self.chunks, self.number, self.taken, self.read = chunks, 0, 0, 0
        self.pending: collections.deque[list[np.ndarray]] = collections.deque()  # read, and not handed out
        self.like = Like()
        self.sums: np.ndarray | None = None
        self.ended = False
        self.fault: StreamError | None = None

    def look(self, count: int) -> None:
        """Read until so many rows wait, or the stream ends."""
        while not self.ended and self.read - self.taken < count:
            if self.pending:  # who makes the chunks may fill the same arrays again
                self.pending[-1] = [leaf.copy() for leaf in self.pending[-1]]
            self._next()
        if not self.pending and not self.taken:
            raise self.fault or StreamError("the stream is empty: chunks holds no rows")

    def seen(self, count: int) -> PyTree:
        """A copy of the rows that wait, up to so many."""
        parts: list[list[np.ndarray]] = []
        for chunk in self.pending:
            parts.append([leaf[:count] for leaf in chunk])
            count -= len(parts[-1][0])
            if not count:
                break
        return self.like.tree([np.concatenate(leaves) for leaves in zip(*parts, strict=True)])

    def rows(self, most: int) -> list[np.ndarray] | None:
        """The next rows, at least one and at most so many, of one chunk; None at the end of the stream, or a fault."""
        while not self.pending and not self.ended:
            self._next()
        if not self.pending:
            return None
        chunk = self.pending.popleft()
        if len(chunk[0]) > most:
            self.pending.appendleft([leaf[most:] for leaf in chunk])
            chunk = [leaf[:most] for leaf in chunk]
        if self.sums is not None:
            pairs = zip(chunk, self.sums.tolist(), strict=True)
            self.sums = np.array([zlib.crc32(np.ascontiguousarray(leaf).data, old) for leaf, old in pairs])
        self.taken += len(chunk[0])
        return chunk

    def skip(self, count: int) -> None:
        """Read over so many rows."""
        end = self.taken + count
        while self.taken < end:
            if self.rows(end - self.taken) is None:
                raise self.fault or StreamError(
                    f"the stream ends after {self.taken:,} samples, of which {end:,} were learned from"
                )

    def _next(self) -> None:
        """Read one more chunk."""
        try:
            chunk = next(self.chunks)
        except StopIteration:
            self.ended = True
            return
        except Exception as error:  # the user's code, which raises what it likes
            said = f"{type(error).__name__}: {error}"
            self._fail(f"chunk {self.number} (after {self.read:,} samples) could not be read: {said}", error)
            return
        try:
            leaves = self.like.checked(f"chunk {self.number}", chunk, self.read)
        except (TypeError, ValueError) as error:
            self._fail(f"{error} (chunk {self.number} begins with sample {self.read:,})", error)
            return
        self.number += 1
        if leaves:
            self.read += len(leaves[0])
            self.pending.append(leaves)

    def _fail(self, message: str, cause: Exception) -> None:
        self.ended, self.fault = True, StreamError(message)
        self.fault.__cause__ = cause


class Column(NamedTuple):
    """One array of every chunk: its name, and the type and shape of its rows."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]


class Like:
    """What all chunks are like: names, types and shapes of a row. The first one says."""

    def __init__(self) -> None:
        self.structure = jax.tree.structure(None)
        self.columns: list[Column] = []

    def tree(self, leaves: list[PyTree]) -> PyTree:
        """Arrays in the structure of a chunk."""
        return jax.tree.unflatten(self.structure, leaves)

    def checked(self, name: str, chunk: object, at: int) -> list[np.ndarray]:
        """The arrays of a chunk: of one length, like those before, and finite; none of a chunk without rows. It begins
        with sample `at`."""
        leaves, structure = jax.tree.flatten(chunk)
        if all(map(_is_empty, leaves)) and (leaves or chunk == []):
            return []
        if not self.columns or structure != self.structure or not self._fit(leaves):
            leaves = self._understood(name, jax.tree.map(np.asarray, as_arrays(f"{name}: ", chunk)))
        for column, leaf in zip(self.columns, leaves, strict=True):
            if column.dtype.kind in "fc" and not np.isfinite(leaf).all():
                where = tuple(int(i) for i in np.argwhere(~np.isfinite(leaf))[0])
                raise ValueError(
                    f"{name}: {column.name} holds {leaf[where]} at row {where[0]}, sample {at + where[0]:,}; clean or "
                    "drop such rows on the way in"
                )
        check.fits(f"{name}: ", self.tree(leaves))
        return leaves

    def _fit(self, leaves: list[PyTree]) -> bool:
        """Whether these are arrays of NumPy, of one length, with rows as before: then all is quickly understood."""
        count = np.shape(leaves[0])[:1]
        return all(
            leaf.__class__ is np.ndarray and leaf.dtype == column.dtype and leaf.shape == count + column.shape
            for leaf, column in zip(leaves, self.columns, strict=True)
        )

    def _understood(self, name: str, found: PyTree) -> list[np.ndarray]:
        """The arrays of a chunk that is the first, or of another kind than NumPy's, or wrong."""
        paths = jax.tree_util.tree_leaves_with_path(found)
        named = {jax.tree_util.keystr(path) or "data": leaf for path, leaf in paths}
        if not named:
            raise ValueError(f"{name} holds no arrays")
        if scalars := [which for which, leaf in named.items() if not leaf.ndim]:
            raise ValueError(f"{name}: {scalars[0]} is one number; a chunk has a leading axis of time")
        lengths = {which: len(leaf) for which, leaf in named.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{which} has {count} rows" for which, count in list(lengths.items())[:8])
            raise ValueError(f"{name}: arrays differ along their leading axis: {told}")
        if not self.columns:
            self.structure = jax.tree.structure(found)
            self.columns = [Column(which, leaf.dtype, leaf.shape[1:]) for which, leaf in named.items()]
        elif self.structure != jax.tree.structure(found):
            before = check.some(column.name for column in self.columns)
            raise ValueError(f"{name} holds {check.some(named)}, chunks before held {before}")
        for (which, dtype, shape), leaf in zip(self.columns, named.values(), strict=True):
            if (leaf.dtype, leaf.shape[1:]) != (dtype, shape):
                raise ValueError(
                    f"{name}: rows of {which} are {leaf.dtype} of shape {leaf.shape[1:]}, those before {dtype} of "
                    f"shape {shape}; bring all chunks to one type and shape, such as by .astype(float)"
                )
        return list(named.values())


def _is_empty(table: PyTree) -> bool:
    """Whether an array or a table has no rows: then its types say nothing."""
    return getattr(table, "shape", (1,))[:1] == (0,)
