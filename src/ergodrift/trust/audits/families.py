"""What is compared with what in an audit: groups, all rows, pairs of groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ergodrift.trust.audits.inputs import Cells
from ergodrift.trust.audits.linear import Ends, Linearised


class Family(NamedTuple):
    """Intervals that hold together: "value" of every group, "overall", "pairs" of groups, groups "to_overall"; the last
    two as differences of values, or of their logarithms."""

    kind: str
    log: bool = False


FAMILIES = [
    Family("value"),
    Family("overall"),
    *(Family(kind, log) for kind in ("pairs", "to_overall") for log in (False, True)),
]


@dataclasses.dataclass(frozen=True, eq=False)
class Groups:
    """The groups of an audit. Columns of a `Linearised` are the cells and then all rows of each control value."""

    cells: Cells

    def contrasts(self, family: Family) -> list[tuple[int, int]]:
        """Pairs of columns whose difference is meant; (column, -1) for a value itself."""
        levels, of = self.cells.parents
        size = len(of)
        if family.kind == "value":
            return [(cell, -1) for cell in range(size)]
        if family.kind == "overall":
            return [(size + level, -1) for level in range(len(levels))]
        if family.kind == "to_overall":
            return [(cell, size + int(of[cell])) for cell in range(size) if np.sum(of == of[cell]) > 1]
        return [(i, j) for i in range(size) for j in range(i + 1, size) if of[i] == of[j]]

    def size(self, family: Family) -> int:
        """How many intervals must hold together, for one metric."""
        return len(self.contrasts(family))

    def levels(self, family: Family) -> np.ndarray:
        """The control value that each contrast belongs to."""
        of = self.cells.parents[1]
        return np.array([of[i] for i, _ in self.contrasts(family)], dtype=int)

    def label(self, family: Family, ends: Ends, column: int) -> str:
        """The group at fault for a contrast without ends, or both of its groups."""
        names = [", ".join(map(str, key[self.cells.controls :])) for key in self.cells.keys]
        pair = [ends.part[column]] if ends.part[column] >= 0 else self.contrasts(family)[column]
        return " and ".join(names[i] if i < len(names) else "all rows" for i in pair if i >= 0)

    def weights(self, family: Family, value: np.ndarray) -> np.ndarray:
        """(columns, contrasts) by which values, or to first order their logarithms, are multiplied."""
        pairs = self.contrasts(family)
        found = np.zeros((len(value), len(pairs)))
        for column, (i, j) in enumerate(pairs):
            found[i, column] = 1.0
            if j >= 0:
                found[j, column] = -1.0
        if family.log:
            found = found / np.where(value > 0, value, 1.0)[:, None]
        return found

    def ends(self, linear: Linearised, family: Family, intervals: Callable[[Linearised, np.ndarray], Ends]) -> Ends:
        """Intervals of a family, by what makes them for (values, weights)."""
        value = linear.value
        if not self.contrasts(family):
            return Ends(np.empty(0), np.empty(0), np.empty(0), [], [], [])
        if not family.log:
            return intervals(linear, self.weights(family, value))
        positive = np.isnan(value) | (value > 0)
        known = linear.faults or ("",) * len(value)
        faults = tuple(
            fault or ("" if fine else "a ratio needs values above 0")
            for fault, fine in zip(known, positive, strict=True)
        )
        found = intervals(dataclasses.replace(linear, faults=faults), self.weights(family, value))
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(np.where(value > 0, value, np.nan))
        pairs = self.contrasts(family)
        estimate = np.array([logs[i] - logs[j] for i, j in pairs])
        shift = np.nan_to_num(estimate - found.estimate)
        return found._replace(estimate=estimate, lower=found.lower + shift, upper=found.upper + shift)

    def gap(self, value: np.ndarray, level: int, kind: str, log: bool) -> float:
        """The largest difference, or the smallest ratio, as fairlearn has it; NaN groups are left out."""
        of = self.cells.parents[1]
        own, overall = value[: len(of)][of == level], value[len(of) + level]
        own = own[~np.isnan(own)]
        if not len(own):
            return np.nan
        with np.errstate(divide="ignore", invalid="ignore"):
            if kind == "between_groups":
                return float(own.min() / own.max()) if log else float(np.ptp(own))
            ratios = own / overall
            return (
                float(np.min(np.where(ratios > 1, 1 / ratios, ratios))) if log else float(np.abs(own - overall).max())
            )
