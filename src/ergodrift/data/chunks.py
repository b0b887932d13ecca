"""Samples that arrive in chunks: a stream that need not fit into memory, read once and in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn, cast

import jax
import numpy as np

from ergodrift._core import check
from ergodrift._core.extras import absent
from ergodrift.data.reader import Reader
from ergodrift.data.sampler import InOrder
from ergodrift.data.series import SeriesSource
from ergodrift.data.source import Law, Source
from ergodrift.data.stream import TableStream, stored
from ergodrift.types import PyTree

KINDS = ("parquet", "csv", "feather", "arrow", "orc")  # of files that pyarrow reads, by their endings
LOOK_BYTES = 2**28  # of first samples that are kept for a look
READ_ROWS = 65_536  # rows of a chunk that is read from files


class StreamSource(Source):
    """Samples that arrive in chunks, in order; the whole of them need not fit into memory.

    A run on it gives the numbers of `SeriesSource` on the concatenation, bit for bit, however long the chunks are. The
    next samples are read while those before are learned from. All seeds see the same samples.

    Args:
        chunks: an iterable of chunks, or a function without arguments that returns one: a generator, a list, a `torch`
            DataLoader, a pyarrow dataset. A chunk is what `SeriesSource` takes: arrays with time along their leading
            axis, a table, or a nest of them; all with the same names, types and shapes but for their lengths.
            A function, or what can be iterated over again, can be read by several runs, and by a run that is resumed;
            an iterator by one run only.
        first: how many samples came before the first chunk. To resume from a checkpoint with an iterator, which cannot
            be read from its start again, pass one that goes on after `first` samples.

    >>> chunks = [np.arange(3.0), np.arange(3.0, 4.0), np.arange(4.0, 9.0)]
    >>> StreamSource(chunks).head(5).data
    array([0., 1., 2., 3., 4.])
    """

    def __init__(self, chunks: Iterable[object] | Callable[[], Iterable[object]], first: int = 0) -> None:
        self.first = check.integer("first", first, at_least=0)
        self.again, self._opened = _opener(chunks), False
        self._waiting: Reader | None = None

    @staticmethod
    def read(path: str | os.PathLike[str], columns: list[str] | None = None, rows: int = READ_ROWS) -> StreamSource:
        """A Parquet, CSV, Feather or ORC file, or a folder of them, through pyarrow; a file is read a piece at a time.

        Args:
            path: a file, or a folder whose files are read in the order of their names.
            columns: those to read; all unless given.
            rows: the most that are read at a time.
        """
        try:
            import pyarrow.dataset
        except ModuleNotFoundError as error:
            raise absent("StreamSource.read", "sklearn", error) from error

        rows = check.integer("rows", rows, at_least=1)
        path = os.fspath(path)
        if not os.path.exists(path):
            raise FileNotFoundError(f"path: there is no {path}")
        kinds = {name.rsplit(".", 1)[-1].lower() for name in _files(path)} & set(KINDS)
        if len(kinds) != 1:
            found = " and ".join(sorted(kinds)) or "none"
            raise ValueError(
                f"path: {path} must hold files of one kind, .parquet, .csv, .feather or .orc; found {found}"
            )
        dataset = pyarrow.dataset.dataset(path, format=kinds.pop())
        return StreamSource(lambda: _batches(dataset, columns, rows))

    def open(self) -> Reader:
        """The samples from the first on. What was only looked at is still there."""
        if (waiting := self._waiting) is not None:
            self._waiting = None
            return waiting
        if self._opened and not self.again.restarts:
            raise ValueError(
                "chunks is an iterator, and has been read already: pass a function that returns a new one, such as "
                "lambda: read(path), or a list"
            )
        self._opened = True
        return Reader(iter(self.again()))

    def head(self, num_samples: int) -> SeriesSource:
        """The first samples as a series, for a look: they are still there for the run."""
        check.integer("num_samples", num_samples, at_least=1)
        reader = self.open()
        if not self.again.restarts:
            self._waiting = reader  # what is wrong with its first chunk is said again, not that it has been read
        reader.look(num_samples)
        self._waiting = reader
        return SeriesSource(reader.seen(num_samples))

    def beginning(self, most: int) -> SeriesSource:
        row = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(self.example))
        return self.head(max(min(most, LOOK_BYTES // max(row, 1)), 1))

    @property
    def arrives(self) -> bool:
        return True

    @property
    def example(self) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[0], self.head(1).data)

    @property
    def entry(self) -> PyTree:
        return np.int32(0)

    def stream(self) -> TableStream:
        """An empty window, of one row."""
        blank = jax.tree.map(lambda leaf: stored(np.zeros((1, *leaf.shape), leaf.dtype)), self.example)
        return TableStream(InOrder(), blank, np.int32(0))

    def paths(self, seeds: PyTree, num_samples: int) -> NoReturn:
        _not_kept("its paths")

    @property
    def loss_law(self) -> Law:
        _not_kept("their law")


def _not_kept(what: str) -> NoReturn:
    raise ValueError(
        f"a stream is read once and not kept, so that {what} cannot be asked for: take source.head(num_samples) for a "
        "look at its beginning, or SeriesSource(data) for what fits into memory"
    )


class Opener:
    """How to read the chunks from the start."""

    def __init__(self, opened: Callable[[], Iterable[object]], restarts: bool) -> None:
        self.opened, self.restarts = opened, restarts

    def __call__(self) -> Iterable[object]:
        found = self.opened()
        if not isinstance(found, Iterable):
            raise TypeError(f"chunks() must return an iterable of chunks, got {type(found).__name__}")
        return found


def _opener(chunks: object) -> Opener:
    if hasattr(chunks, "to_batches"):  # a dataset or a table of pyarrow
        return Opener(lambda: _batches(chunks), True)
    if isinstance(chunks, Mapping | str | bytes) or hasattr(chunks, "shape") or hasattr(chunks, "columns"):
        raise TypeError(
            f"chunks must be an iterable of chunks or a function that returns one, got one {type(chunks).__name__}: "
            "pass SeriesSource(data) for what is in memory, [data] for a single chunk, or StreamSource.read(path)"
        )
    if isinstance(chunks, Iterable):
        return Opener(lambda: chunks, iter(chunks) is not chunks)
    if callable(chunks):
        return Opener(cast("Callable[[], Iterable[object]]", chunks), True)
    raise TypeError(f"chunks must be an iterable or a function that returns one, got {type(chunks).__name__}")


def _batches(table: PyTree, columns: list[str] | None = None, rows: int = READ_ROWS) -> Iterable[object]:
    """The record batches of a table or a dataset of pyarrow. Reading ahead is what we do ourselves: pyarrow would hold
    several files whole, and its threads do not wait for who takes the batches."""
    if not hasattr(table, "scanner"):
        return table.to_batches()
    from pyarrow.dataset import FileSystemDataset, ParquetFileFormat, ParquetFragmentScanOptions

    options: dict[str, PyTree] = {}
    if isinstance(table, FileSystemDataset) and isinstance(table.format, ParquetFileFormat):
        options["fragment_scan_options"] = ParquetFragmentScanOptions(pre_buffer=False, use_buffered_stream=True)
    options |= {"columns": columns, "batch_size": rows, "batch_readahead": 0, "fragment_readahead": 0}
    return table.to_batches(**options, use_threads=False)


def _files(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    return [name for _, _, names in os.walk(path) for name in names if not name.startswith((".", "_"))]
