"""One look at all rows of a table: what each column holds, before anything is learned from it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ergodrift.tables import cells
from ergodrift.tables.files import Table, TableError

MOST_LABELS = 1000  # that are counted: a column with more is no category


@dataclasses.dataclass
class Column:
    """What a column holds, counted over all rows.

    Attributes:
        name: as in the file.
        decimal_comma: whether numbers may be written 1,5.
        rows, missing, infinite: how many cells; how many are empty; how many are infinite numbers.
        is_number, is_time: whether all cells that are there are numbers; or dates or times, which numbers are not.
        stray: a cell that is no number in a column where most are; empty where there is none.
        is_whole: whether all numbers are whole.
        is_row_number: whether each number is the one before it plus 1.
        steps_back: how many numbers or times are less than the one before.
        mean, square: of the numbers or times; `square` is the sum of squares around the mean.
        least, most: of the numbers or times.
        labels: how often each value occurs; None where there are more than `MOST_LABELS`.
    """

    name: str
    decimal_comma: bool = False
    rows: int = 0
    missing: int = 0
    infinite: int = 0
    is_number: bool = True
    is_time: bool = True
    stray: str = ""
    is_whole: bool = True
    is_row_number: bool = True
    steps_back: int = 0
    mean: float = 0.0
    square: float = 0.0
    least: float = np.inf
    most: float = -np.inf
    labels: Counter[str] | None = dataclasses.field(default_factory=Counter[str])
    last: float | None = None

    @property
    def there(self) -> int:
        """How many cells are not empty."""
        return self.rows - self.missing

    @property
    def std(self) -> float:
        """Of the numbers or times."""
        return float(np.sqrt(self.square / self.there)) if self.there else 0.0

    @property
    def is_constant(self) -> bool:
        """Whether all cells that are there are the same."""
        if not self.there:
            return True
        if self.is_number or self.is_time:
            return self.least == self.most
        return self.labels is not None and len(self.labels) <= 1

    @property
    def is_truth(self) -> bool:
        """Whether all cells that are there say true or false."""
        return bool(self.labels) and not np.isnan([cells.truth(label) for label in self.labels]).any()

    @property
    def counts(self) -> dict[str, int] | None:
        """How often each label occurs, from the most common on; numbers in one spelling."""
        if self.labels is None:
            return None
        found: Counter[str] = Counter()
        for label, count in self.labels.items():
            found[cells.spelt(label, self.is_number, self.decimal_comma)] += count
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    def add(self, column: Any) -> None:
        """Look at the next chunk."""
        import pyarrow as pa

        self.rows += len(column)
        values = None
        if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
            self.is_number, self.is_time, self.labels = False, False, None
        elif column.null_count < len(column):
            if self.is_number:
                values = cells.numbers(column, self.decimal_comma)
                self.is_number = values is not None
                self.is_time &= not self.is_number
                self.stray = "" if self.is_number else cells.stray(column, self.decimal_comma)
            if not self.is_number and self.is_time:
                values = cells.times(column)
                self.is_time = values is not None
            self._count(column)
        if values is None:
            self.missing += column.null_count
        else:
            self._measure(values)

    def _measure(self, values: np.ndarray) -> None:
        kept = values[~np.isnan(values)]
        self.missing += len(values) - len(kept)
        self.infinite += int(np.isinf(kept).sum())
        if not kept.size or self.infinite:
            return
        before = self.there - len(kept)
        self.least, self.most = min(self.least, float(kept.min())), max(self.most, float(kept.max()))
        steps = np.diff(kept, prepend=kept[0] - 1 if self.last is None else self.last)
        self.steps_back += int((steps < 0).sum())
        self.is_whole &= bool((kept == np.floor(kept)).all())
        self.is_row_number &= len(kept) == len(values) and bool((steps == 1).all())
        self.last = float(kept[-1])
        mean, share = float(kept.mean()), len(kept) / self.there
        self.square += float(((kept - mean) ** 2).sum()) + (mean - self.mean) ** 2 * share * before
        self.mean += (mean - self.mean) * share

    def _count(self, column: Any) -> None:
        if self.labels is None:
            return
        import pyarrow as pa

        found = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        if len(found.dictionary) > MOST_LABELS:
            self.labels = None
            return
        counts = np.bincount(cells.indices(found), minlength=len(found.dictionary))
        for value, count in zip(found.dictionary.cast(pa.string()).to_pylist(), counts.tolist(), strict=False):
            if value is not None and value != "nan" and count:
                self.labels[value.strip()] += count
        if len(self.labels) > MOST_LABELS:
            self.labels = None


def survey(
    table: Table, names: Sequence[str] | None = None, progress: Callable[[int], None] = lambda rows: None
) -> dict[str, Column]:
    """Each column of a table, by name, counted over all rows.

    Args:
        table: the table; it is read once, a chunk at a time.
        names: of the columns to look at: all unless given.
        progress: told how many rows have been read.
    """
    found = {name: Column(name, table.decimal_comma) for name in (table.names if names is None else names)}
    rows = 0
    for chunk in table.chunks(list(found)):
        for name, column in zip(found, chunk.columns, strict=True):
            found[name].add(column)
        rows += chunk.num_rows
        progress(rows)
    if not rows:
        raise TableError(f"{table.path} has names of columns and no rows")
    return found
