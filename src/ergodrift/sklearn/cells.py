"""What constraints mean on a table: means over cells of its rows, and linear limits on them.

A cell is a part of the rows, those of a group and of an event, and an outcome that is averaged over it. Constraints are
A q <= b for the means q of all cells: that is what is certified, and what is tangent to it is what is optimised.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from ergodrift.sklearn.constraints import (
    BoundedGroupLoss,
    Constraint,
    FalsePositiveRateBelow,
    MeanBelow,
    Parity,
    Plain,
)
from ergodrift.sklearn.losses import FAMILIES, REGRESSION, Loss, decisions, smooth_decision
from ergodrift.trust.audits.linear import Linearised, ratio_of_means, stretches

ALL = -1  # in the place of a group


class Row(NamedTuple):
    """What a plain function sees of a row beside its score.

    Attributes:
        x: (d,) its features, in your units.
        y: its target: -1 or 1 of two classes, the number of the class of several, the number itself in a regression.
        group: the number of its group, by `groups_`; -1 where there are none.
    """

    x: Any
    y: Any
    group: Any


class Cell(NamedTuple):
    """Rows of a group (or all) in an event, and what is averaged over them.

    Attributes:
        outcome: "decision" (is `cls` predicted?), "error", "loss", the name of a loss, "cost" or "plain".
        group: its number, or ALL.
        event: "all", "positive" (the class is `cls`) or "negative" (it is another).
        cls: the number of the class in question.
        source: the number of the constraint whose cost or function it is.
    """

    outcome: str
    group: int = ALL
    event: str = "all"
    cls: int = 1
    source: int = -1


class Limit(NamedTuple):
    """One row of A q <= b: the sum of factor x mean over its cells is at most `limit`."""

    name: str
    terms: tuple[tuple[float, int], ...]
    limit: float
    constraint: int


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """Rows of a table, as cells look at them.

    Attributes:
        X: (n, d), as the user gave it; an array or a sparse matrix.
        y: (n,) numbers of classes, or targets.
        groups: (n,) their numbers, or None.
        weights: (n,).
        costs: (n,) for each constraint that has some, by its number.
    """

    X: Any
    y: np.ndarray
    groups: np.ndarray | None
    weights: np.ndarray
    costs: dict[int, np.ndarray]

    def __len__(self) -> int:
        return len(self.y)

    def cut(self, rows: slice | np.ndarray) -> Part:
        groups = None if self.groups is None else self.groups[rows]
        costs = {number: cost[rows] for number, cost in self.costs.items()}
        return Part(self.X[rows], self.y[rows], groups, self.weights[rows], costs)


@dataclasses.dataclass(frozen=True)
class Asked:
    """All constraints of an estimator, on the classes and groups that it has.

    Attributes:
        constraints: as they were given.
        cells: C of them.
        limits: m rows of A q <= b.
        num_classes: 0 in a regression.
        minimised: family and name of the loss that the estimator minimises.
        setting: of the loss.
    """

    constraints: tuple[Constraint | Plain, ...]
    cells: tuple[Cell, ...]
    limits: tuple[Limit, ...]
    num_classes: int
    minimised: tuple[str, str]
    setting: float

    @staticmethod
    def of(
        constraints: tuple[Constraint | Plain, ...],
        groups: Sequence[str],
        classes: Sequence[Any],
        minimised: tuple[str, str],
        setting: float,
        *,
        to_overall: bool = False,
    ) -> Asked:
        """`to_overall` limits every group against all rows at half the limit, which implies the limit between any two:
        2 rows per group in the place of one per pair."""
        cells: dict[Cell, int] = {}
        limits: list[Limit] = []

        def add(number: int, name: str, limit: float, *terms: tuple[float, Cell]) -> None:
            found = tuple((factor, cells.setdefault(cell, len(cells))) for factor, cell in terms)
            limits.append(Limit(name, found, limit, number))

        for number, asked in enumerate(constraints):
            if isinstance(asked, Parity):
                _parity(add, number, asked, groups, classes, to_overall)
            elif isinstance(asked, BoundedGroupLoss):
                for group, called in enumerate(groups):
                    cell = Cell("error" if asked.loss == "zero_one" else asked.loss or "loss", group)
                    add(number, f"loss of {called}", asked.limit, (1.0, cell))
            elif isinstance(asked, FalsePositiveRateBelow):
                for cls, called in _positives(classes):
                    add(number, f"false positive rate{called}", asked.limit,
                        (1.0, Cell("decision", event="negative", cls=cls)))  # fmt: skip
            elif isinstance(asked, MeanBelow):
                called = asked.what if isinstance(asked.what, str) else getattr(asked.what, "__name__", "")
                add(number, f"mean {called}".strip(), asked.limit, (1.0, Cell("cost", source=number)))
            else:
                called = getattr(asked, "__name__", type(asked).__name__)
                add(number, called, 0.0, (1.0, Cell("plain", source=number)))
        return Asked(constraints, tuple(cells), tuple(limits), len(classes), minimised, setting)

    @property
    def loss(self) -> Loss:
        """What the estimator minimises."""
        family, name = self.minimised
        return FAMILIES[family][name]

    @property
    def bounds(self) -> np.ndarray:
        """b, (m,)."""
        return np.array([limit.limit for limit in self.limits])

    @property
    def matrix(self) -> scipy.sparse.csr_array:
        """A, (m, C)."""
        entries = [(f, k, c) for k, limit in enumerate(self.limits) for f, c in limit.terms]
        factors, rows, columns = zip(*entries, strict=True) if entries else ((), (), ())
        return scipy.sparse.csr_array((factors, (rows, columns)), shape=(len(self.limits), len(self.cells)))

    def members(self, part: Part) -> scipy.sparse.csr_array:
        """(C, n) how much each row weighs in the mean of each cell; a cell without rows is empty."""
        kept = [np.flatnonzero(self.inside(cell, part)) for cell in self.cells]
        weights = [part.weights[rows] for rows in kept]
        shares = [own / own.sum() if own.sum() > 0 else 0 * own for own in weights]
        ends = np.cumsum([0, *(len(rows) for rows in kept)])
        columns, values = (np.concatenate([*each, np.zeros(0)]) for each in (kept, shares))
        return scipy.sparse.csr_array((values, columns.astype(np.int64), ends), shape=(len(self.cells), len(part)))

    def inside(self, cell: Cell, part: Part) -> np.ndarray:
        """(n,) which rows are in a cell."""
        inside = part.weights > 0
        if cell.group != ALL and part.groups is not None:
            inside &= part.groups == cell.group
        if cell.event != "all":
            inside &= (part.y == cell.cls) == (cell.event == "positive")
        return inside

    def outcomes(self, scores: np.ndarray, part: Part) -> np.ndarray:
        """(C, n) what is averaged: the true thing, with decisions and not what stands for them."""
        found: dict[Cell, np.ndarray] = {}
        for cell in self.cells:
            key = cell._replace(group=ALL, event="all")
            if key not in found:
                found[key] = self._outcome(key, scores, part)
        rows = [found[cell._replace(group=ALL, event="all")] for cell in self.cells]
        return np.stack(rows) if rows else np.zeros((0, len(part)))

    def _outcome(self, cell: Cell, scores: np.ndarray, part: Part) -> np.ndarray:
        if cell.outcome == "decision":
            return (decisions(scores) == cell.cls).astype(float)
        if cell.outcome == "error":
            return (decisions(scores) != part.y).astype(float)
        if cell.outcome == "cost":
            return part.costs[cell.source] * (decisions(scores) if self.num_classes else scores)
        if cell.outcome == "plain":
            return self._plain(cell, scores, part)[0]
        return self._loss_of(cell).value(np, scores, self.target(part.y), self.setting)

    def _loss_of(self, cell: Cell) -> Loss:
        return self.loss if cell.outcome == "loss" else REGRESSION[cell.outcome]

    def target(self, y: np.ndarray) -> np.ndarray:
        """y as the loss wants it."""
        return 2.0 * y - 1 if self.num_classes == 2 else y

    def _plain(self, cell: Cell, scores: np.ndarray, part: Part) -> tuple[np.ndarray, np.ndarray]:
        """Values and slopes of a function of the user's, by JAX."""
        from ergodrift.sklearn.plain import values_and_slopes

        groups = np.full(len(part), ALL) if part.groups is None else part.groups
        dense = part.X.toarray() if scipy.sparse.issparse(part.X) else np.asarray(part.X)
        function: Any = self.constraints[cell.source]
        return values_and_slopes(function, scores, Row(dense, self.target(part.y), groups))

    def slopes(self, cell: Cell, scores: np.ndarray, part: Part) -> np.ndarray:
        """The derivative by the score, in its shape, of what stands for the outcome: for a decision a sigmoid."""
        if cell.outcome == "decision":
            return smooth_decision(scores, cell.cls)[1]
        if cell.outcome == "error":
            right = np.zeros_like(scores)
            for cls in range(self.num_classes):
                own = part.y == cls
                right[own] = smooth_decision(scores[own], cls)[1]
            return -right
        if cell.outcome == "cost":
            cost = part.costs[cell.source]
            return cost * smooth_decision(scores, 1)[1] if self.num_classes else cost
        if cell.outcome == "plain":
            return self._plain(cell, scores, part)[1]
        return self._loss_of(cell).slope(np, scores, self.target(part.y), self.setting)

    def means(self, scores: np.ndarray, part: Part, members: scipy.sparse.csr_array | None = None) -> np.ndarray:
        """q, (C,); NaN where a cell has no rows."""
        own = self.members(part) if members is None else members
        found = own.multiply(self.outcomes(scores, part)).sum(axis=1)
        return np.where(np.diff(own.indptr) > 0, found, np.nan)

    def linearised(self, scores: np.ndarray, part: Part) -> Linearised:
        """q as ratios of means along the rows, and how each stretch of time moves them; a column for each cell.

        The last column is the loss over all rows: a slow mode that hides under the noise of a small group shows there.
        """
        own, values = self.members(part), self.outcomes(scores, part)
        losses = self.loss.value(np, scores, self.target(part.y), self.setting)
        time = stretches(len(part))
        above, below = (np.zeros((int(time[-1]) + 1, len(self.cells) + 1)) for _ in range(2))
        for c in range(len(self.cells) + 1):
            kept = own.indices[own.indptr[c] : own.indptr[c + 1]] if c < len(self.cells) else np.arange(len(part))
            z, weights = (values[c] if c < len(self.cells) else losses)[kept], part.weights[kept]
            below[:, c] = np.bincount(time[kept], weights=weights, minlength=len(below))
            above[:, c] = np.bincount(time[kept], weights=weights * z, minlength=len(below))
        return ratio_of_means(above, below, len(part))

    def contrasts(self, rows: np.ndarray) -> np.ndarray:
        """(C + 1, k) weights of the cells, and of the loss, in (A q)_rows."""
        return np.vstack([self.matrix[rows].toarray().T, np.zeros((1, len(rows)))])

    def tangents(
        self, scores: np.ndarray, part: Part, design: np.ndarray, rows: np.ndarray, members: scipy.sparse.csr_array
    ) -> np.ndarray:
        """(k, d[, K]) derivatives of (A q)_rows by the coefficients, for scores = design @ coefficients."""
        chosen = self.matrix[rows]
        wanted = np.flatnonzero(abs(chosen).sum(axis=0))
        shape = design.shape[1:] + scores.shape[1:]
        found: dict[Cell, np.ndarray] = {}
        each = np.zeros((len(wanted), *shape))
        for place, c in enumerate(wanted):
            key = self.cells[c]._replace(group=ALL, event="all")
            if key not in found:
                found[key] = self.slopes(key, scores, part).astype(design.dtype)
            kept = slice(members.indptr[c], members.indptr[c + 1])
            at, share = members.indices[kept], members.data[kept].astype(design.dtype)
            ends = np.array([0, len(at)])
            for column in np.ndindex(scores.shape[1:]):  # of several classes each has coefficients of its own
                weighed = scipy.sparse.csr_array((share * found[key][at, *column], at, ends), shape=(1, len(part)))
                each[(place, slice(None), *column)] = (weighed @ design)[0]
        return np.asarray(chosen[:, wanted] @ each.reshape(len(wanted), -1)).reshape(len(rows), *shape)


def _positives(classes: Sequence[Any]) -> list[tuple[int, str]]:
    """Classes that count as positive, and how to call them: the second of two, each of several."""
    if len(classes) <= 2:
        return [(1, "")]
    return [(number, f" of class {name}") for number, name in enumerate(classes)]


def _parity(
    add: Any, number: int, asked: Parity, groups: Sequence[str], classes: Sequence[Any], to_overall: bool
) -> None:
    """Rows of a parity: between any two groups, or of each group against all."""
    words = {"all": "rate" if asked.outcome == "decision" else "error rate"}
    words |= {"positive": "true positive rate", "negative": "false positive rate"}
    overall = to_overall or asked.between == "overall"
    within = asked.limit / 2 if to_overall and asked.between == "groups" and asked.ratio is None else asked.limit
    ratio = 1.0 if asked.ratio is None else asked.ratio
    kinds = _positives(classes) if asked.outcome == "decision" else [(1, "")]
    for event, (cls, called) in itertools.product(asked.events, kinds):
        of = {group: Cell(asked.outcome, group, event, cls) for group in range(len(groups))}
        whole, word = Cell(asked.outcome, ALL, event, cls), words[event] + called
        factor = "" if ratio == 1.0 else f"{ratio:g} x "
        for group, name in enumerate(groups):
            if overall:
                add(number, f"{word}: {factor}{name} - all", within, (ratio, of[group]), (-1.0, whole))
                add(number, f"{word}: {factor}all - {name}", within, (ratio, whole), (-1.0, of[group]))
            else:
                for other, second in enumerate(groups):
                    if other != group:
                        add(number, f"{word}: {factor}{name} - {second}", within,
                            (ratio, of[group]), (-1.0, of[other]))  # fmt: skip
