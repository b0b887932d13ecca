"""Agents out of Parquet: one for each value of a column, or one for each file, read when first visited."""

from __future__ import annotations

import dataclasses
import importlib
import os
from pathlib import Path

import numpy as np

from ergodrift.distributed.agent import Agent
from ergodrift.types import PyTree


@dataclasses.dataclass(frozen=True)
class RowRange:
    """Rows of a Parquet file, as a loader: the row groups that hold them are read, and no others."""

    path: str
    first: int
    last: int
    columns: tuple[str, ...] | None = None

    def __call__(self) -> PyTree:
        parquet = importlib.import_module("pyarrow.parquet")
        file = parquet.ParquetFile(self.path)
        ends = np.cumsum([file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)])
        groups = range(
            int(np.searchsorted(ends, self.first, "right")), int(np.searchsorted(ends, self.last - 1, "right")) + 1
        )
        before = int(ends[groups[0] - 1]) if groups[0] else 0
        table = file.read_row_groups(list(groups), columns=self.columns)
        return table.slice(self.first - before, self.last - self.first)


def partitions(
    path: str | os.PathLike[str], by: str | None = None, columns: tuple[str, ...] | None = None
) -> list[Agent]:
    """An agent for each partition of a Parquet data set, named by it.

    Args:
        path: a folder of .parquet files, one agent each; or a file that is sorted by the column `by`, one agent for
            each of its values.
        by: the column that says whose row it is.
        columns: what agents read; all numbers but `by` unless given.
    """
    parquet, path = importlib.import_module("pyarrow.parquet"), Path(path)
    if path.is_dir():
        files = sorted(path.rglob("*.parquet"))
        if not files:
            raise ValueError(f"path: there is no .parquet file in {path}")
        return [Agent(str(file), name=str(file.relative_to(path).with_suffix(""))) for file in files]
    if by is None:
        raise ValueError(f"by must name the column of {path} that says whose row it is")
    file = parquet.ParquetFile(path)
    if by not in file.schema_arrow.names:
        raise ValueError(f"by={by!r} is no column of {path}; it has {', '.join(file.schema_arrow.names)}")
    owner = file.read(columns=[by]).column(0).to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
    names = [str(value) for value in owner[starts]]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{path} must be sorted by {by!r}: rows of {twice!r} stand in several places")
    kept = columns or tuple(name for name in file.schema_arrow.names if name != by)
    ends = [*starts[1:], len(owner)]
    return [
        Agent(RowRange(str(path), int(first), int(last), kept), name=name)
        for first, last, name in zip(starts, ends, names, strict=True)
    ]
