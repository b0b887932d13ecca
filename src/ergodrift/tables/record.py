"""The rows of a table as arrays, with the parts they play: features, target, groups, time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ergodrift.tables import cells
from ergodrift.tables.files import Table, TableError
from ergodrift.tables.schema import Schema
from ergodrift.tables.survey import Column

MOST_CLASSES, MOST_GROUPS = 50, 50


@dataclasses.dataclass(frozen=True)
class Labels:
    """A column as places in a list of labels. True and False, yes and no, 1 and 0 are one pair in several spellings.

    Attributes:
        name: of the column.
        levels: the labels.
        of_numbers: whether they are numbers, and 1, 1.0 and 01 one of them.
    """

    name: str
    levels: tuple[str, ...]
    of_numbers: bool

    def codes(self, column: Any, decimal_comma: bool) -> np.ndarray:
        """(n,) places; -1 where a cell is missing, or none of the labels."""
        codes, labels = cells.coded(column, self.of_numbers, decimal_comma)
        known = {level: number for number, level in enumerate(self.levels)}
        truths = {cells.truth(level, digits=True): number for level, number in known.items()}
        if len(known) != 2 or set(truths) != {0.0, 1.0}:
            truths = {}
        found = [known.get(label, truths.get(cells.truth(label, digits=True), -1)) for label in labels]
        return np.array(found)[codes]


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Rows in arrays.

    Attributes:
        X: (n, d) features; no columns where none are asked for.
        y: (n,) numbers, or places of classes.
        groups: (n,) labels, by the name of the column.
        time: (n,) numbers, or seconds since 1970; None where there is no column of times.
    """

    X: np.ndarray
    y: np.ndarray
    groups: Mapping[str, np.ndarray]
    time: np.ndarray | None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: np.ndarray | slice) -> Rows:
        """Some of the rows."""
        groups = {name: labels[rows] for name, labels in self.groups.items()}
        return Rows(self.X[rows], self.y[rows], groups, None if self.time is None else self.time[rows])

    @staticmethod
    def joined(parts: Sequence[Rows]) -> Rows:
        """One after the other."""
        groups = {name: np.concatenate([part.groups[name] for part in parts]) for name in parts[0].groups}
        times = [part.time for part in parts if part.time is not None]
        X, y = (np.concatenate([getattr(part, name) for part in parts]) for name in ("X", "y"))
        return Rows(X, y, groups, np.concatenate(times) if times else None)

    def in_order(self) -> Rows:
        """By time; rows of one time stay as they are."""
        if self.time is None or (np.diff(self.time) >= 0).all():
            return self
        return self.take(np.argsort(self.time, kind="stable"))


@dataclasses.dataclass(frozen=True, eq=False)
class Record:
    """A table, and what its columns are for. Rows without a target are left out.

    Attributes:
        table: in a file.
        schema: of the features.
        target: name of the column.
        classes: its labels, None for a number.
        groups: the sensitive columns.
        time: name of the column that orders the rows.
        num_rows: how many rows have a target.
    """

    table: Table
    schema: Schema
    target: str
    classes: Labels | None
    groups: tuple[Labels, ...]
    time: str | None
    num_rows: int

    def chunks(self) -> Iterator[Rows]:
        """The rows, a chunk at a time, in the order of the file."""
        needed = [feature.name for feature in self.schema.features]
        needed += [self.target, *(group.name for group in self.groups), *([self.time] if self.time else [])]
        comma = self.table.decimal_comma
        for chunk in self.table.chunks(list(dict.fromkeys(needed))):
            X, _ = self.schema.encode(chunk, comma)
            column = chunk.column(self.target)
            if self.classes is None:
                y = cells.numbers(column, comma)
                assert y is not None  # the survey has seen it
                there = ~np.isnan(y)
            else:
                y = self.classes.codes(column, comma)
                there = y >= 0
            groups = {
                group.name: np.array(group.levels, dtype=object)[group.codes(chunk.column(group.name), comma)]
                for group in self.groups
            }
            rows = Rows(X, y, groups, moments(chunk.column(self.time), comma) if self.time else None)
            if there.any():
                yield rows if there.all() else rows.take(there)

    def read(self, every: int = 1, progress: Callable[[int], None] = lambda rows: None) -> Rows:
        """All rows, or every so many, by time; what is not kept is not held in memory."""
        kept: list[Rows] = []
        done = 0
        for rows in self.chunks():
            kept.append(rows.take(np.arange(-done % every, len(rows), every)) if every > 1 else rows)
            done += len(rows)
            progress(done)
        return Rows.joined(kept).in_order()


def classes_of(
    column: Column, positive: str | None = None, advice: str = "pass --loss squared to predict it as a number"
) -> Labels:
    """The classes of a target: false before true, numbers by size, words by the alphabet; `positive` is the last.

    `advice` is for whoever has a target with too many values.
    """
    counts = column.counts
    if counts is None or len(counts) > MOST_CLASSES:
        many = "more than 1,000" if counts is None else len(counts)
        raise TableError(f"--target {column.name!r} has {many} different values, too many for classes; {advice}")
    if len(counts) < 2:
        raise TableError(f"--target {column.name!r} is always {next(iter(counts))!r}: there is nothing to tell apart")
    order = sorted(counts, key=float) if column.is_number else sorted(counts)
    if column.is_truth:
        order.sort(key=cells.truth)
    if positive is not None:
        positive = cells.spelt(positive, column.is_number)
        if positive not in order:
            raise TableError(f"--positive {positive!r} is no value of {column.name!r}, which has {', '.join(order)}")
        if len(order) > 2:
            raise TableError(f"--positive is for a target with two values; {column.name!r} has {len(order)}")
        order.sort(key=lambda label: label == positive)
    return Labels(column.name, tuple(order), column.is_number)


def number_of(column: Column) -> None:
    """The target can be predicted as a number."""
    numbers_of("--target", column, "pass --loss logistic to predict classes")
    if column.is_constant:
        raise TableError(f"--target {column.name!r} is always {column.least:g}: there is nothing to learn")


def numbers_of(option: str, column: Column, advice: str) -> None:
    """The column that an option names holds finite numbers; `advice` is for whoever has another."""
    if not column.is_number:
        shown = ", ".join(map(repr, list(column.counts or {})[:3])) or "dates or text"
        raise TableError(f"{option} {column.name!r} holds {shown}, which are no numbers; {advice}")
    if column.infinite:
        raise TableError(f"{option} {column.name!r} holds {column.infinite:,} infinite numbers; remove those rows")


def groups_of(column: Column) -> Labels:
    """The groups of a sensitive column; rows where it is missing are a group of their own."""
    counts = column.counts
    if counts is None or len(counts) > MOST_GROUPS:
        many = "more than 1,000" if counts is None else f"{len(counts)}"
        raise TableError(
            f"--sensitive {column.name!r} has {many} different values; groups of at most {MOST_GROUPS} are compared: "
            "write a column with coarser groups"
        )
    levels = (*counts, *([cells.MISSING] if column.missing else []))
    if len(levels) < 2:
        raise TableError(f"--sensitive {column.name!r} is always {''.join(levels)!r}: there are no groups to compare")
    return Labels(column.name, levels, column.is_number)


def time_of(column: Column) -> None:
    """The column can order the rows."""
    if not (column.is_number or column.is_time):
        shown = next(iter(column.counts or {"text": 0}))
        raise TableError(
            f"--time {column.name!r} holds {shown!r}, which is neither a number nor a date such as 2013-01-31 or "
            "2013-01-31 17:05; rewrite it"
        )
    if column.missing:
        raise TableError(f"--time {column.name!r} is missing in {column.missing:,} rows, whose place is not known; "
                         "remove those rows")  # fmt: skip


def moments(column: Any, decimal_comma: bool) -> np.ndarray:
    """Numbers, or seconds since 1970."""
    found = cells.numbers(column, decimal_comma)
    found = cells.times(column) if found is None else found
    assert found is not None  # the survey has seen it
    return found
