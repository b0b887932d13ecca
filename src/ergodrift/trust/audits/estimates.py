"""Tables of estimates with intervals, and what they say of a limit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ergodrift._core import check
from ergodrift.trust.certificate import NEVER, to_decide, verdicts


class Form(NamedTuple):
    """How values are handed out: one metric by itself or several by name; as pandas has them, or plain."""

    metrics: tuple[str, ...]
    single: bool
    pandas: bool

    def of(self, values: np.ndarray, index: Sequence[tuple[Any, ...]], names: Sequence[str]) -> Any:
        """(rows, metrics) as in fairlearn: a number, a series or a table; dicts where pandas was not used."""
        if not names:
            if self.single:
                return plain(values[0, 0])
            found = dict(zip(self.metrics, map(plain, values[0]), strict=True))
        else:
            keys = [key[0] if len(names) == 1 else key for key in index]
            columns = [dict(zip(keys, map(plain, column), strict=True)) for column in values.T]
            found = columns[0] if self.single else dict(zip(self.metrics, columns, strict=True))
        return self._frame(values, index, names) if self.pandas else found

    def _frame(self, values: np.ndarray, index: Sequence[tuple[Any, ...]], names: Sequence[str]) -> Any:
        import pandas as pd

        if not names:
            return pd.Series(values[0], index=list(self.metrics))
        if len(names) == 1:
            rows: Any = pd.Index([key[0] for key in index], name=names[0])
        else:
            rows = pd.MultiIndex.from_tuples(list(index), names=list(names))
        if self.single:
            return pd.Series(values[:, 0], index=rows, name=self.metrics[0])
        return pd.DataFrame(values, index=rows, columns=list(self.metrics))


@dataclasses.dataclass(frozen=True, eq=False)
class Estimates:
    """Estimates with intervals that hold together; prints as a table.

    `estimate`, `lower`, `upper`, `reason` and `more_rows` are numbers, series or tables as in fairlearn's MetricFrame:
    by metric, and by group and control feature where there are any. An interval about which too little was seen has no
    ends, or those of what the metric can be at all; `reason` says why.

    Attributes:
        title: what is estimated.
        confidence: with which all intervals of the table hold at once.
        rows: of the whole record.
    """

    title: str
    confidence: float
    rows: int
    form: Form
    index: Sequence[tuple[Any, ...]]
    names: Sequence[str]
    ends: tuple[np.ndarray, np.ndarray, np.ndarray]  # estimate, lower, upper: (rows of the table, metrics) each
    why: np.ndarray  # (rows of the table, metrics) text
    more: np.ndarray  # rows that would show enough for an interval, where there is none
    counts: np.ndarray | None = None
    effective: np.ndarray | None = None

    @property
    def estimate(self) -> Any:
        return self.shown(self.ends[0])

    @property
    def lower(self) -> Any:
        return self.shown(self.ends[1])

    @property
    def upper(self) -> Any:
        return self.shown(self.ends[2])

    @property
    def reason(self) -> Any:
        """Why an interval says less than it could; empty where nothing is amiss."""
        return self.shown(self.why)

    @property
    def more_rows(self) -> Any:
        """About how many more rows would show enough for an interval, where there is none; 2^62: no number can be
        given."""
        return self.shown(self.more)

    @property
    def group_rows(self) -> Any:
        """Rows in each group's denominator."""
        return None if self.counts is None else self.shown(self.counts)

    @property
    def effective_rows(self) -> Any:
        """How many independent rows each estimate is worth."""
        return None if self.effective is None else self.shown(self.effective)

    def at_most(self, limit: float | Mapping[str, float]) -> Verdicts:
        """Whether the truth is at most `limit`, a number or one for each metric."""
        return Verdicts(self, self._limits(limit), 1)

    def at_least(self, limit: float | Mapping[str, float]) -> Verdicts:
        """Whether the truth is at least `limit`."""
        return Verdicts(self, self._limits(limit), -1)

    def _limits(self, limit: float | Mapping[str, float]) -> np.ndarray:
        names = self.form.metrics
        if isinstance(limit, Mapping):
            unknown = [name for name in limit if name not in names]
            if unknown or len(limit) < len(names):
                raise ValueError(f"limit must have one number for each of {list(names)}, got {dict(limit)}")
            return np.array([check.number(f"limit[{name!r}]", limit[name]) for name in names])
        return np.full(len(names), check.number("limit", limit))

    def shown(self, values: np.ndarray) -> Any:
        """(rows of the table, metrics) in the shape in which values are handed out."""
        return self.form.of(values, self.index, self.names)

    def records(self) -> list[dict[str, Any]]:
        """One dict for each line of the table, of plain values; what is not finite is None, as JSON wants it."""
        return [self._record(line, column) for line, column in np.ndindex(self.why.shape)]

    def _record(self, line: int, column: int) -> dict[str, Any]:
        found: dict[str, Any] = {name: jsonable(part) for name, part in zip(self.names, self.index[line], strict=True)}
        found["metric"] = self.form.metrics[column]
        found |= {
            name: jsonable(values[line, column])
            for name, values in zip(("estimate", "lower", "upper"), self.ends, strict=True)
        }
        for name, values in (("rows", self.counts), ("effective_rows", self.effective)):
            if values is not None:
                found[name] = jsonable(values[line, column])
        return {**found, "reason": str(self.why[line, column])}

    def __str__(self) -> str:
        head = [*self.names, "metric", "estimate", "lower", "upper"]
        head += ["rows", "effective"] if self.counts is not None else []
        lines = []
        for line, column in np.ndindex(self.why.shape):
            cells = [*map(str, self.index[line]), self.form.metrics[column]]
            cells += [f"{values[line, column]:.5g}" for values in self.ends]
            if self.counts is not None and self.effective is not None:
                cells += [f"{self.counts[line, column]:,.0f}", f"{self.effective[line, column]:,.0f}"]
            lines.append([*cells, str(self.why[line, column])])
        return f"{self.title}\n{aligned([*head, ''], lines, text=len(self.names) + 1)}"

    __repr__ = __str__


@dataclasses.dataclass(frozen=True, eq=False)
class Verdicts:
    """What intervals say of limits: "satisfied", "violated" or "undecided", and how many more rows would decide.

    All verdicts are right together with the confidence of the intervals. `verdict` and `more_rows` have the shape of
    the estimates.
    """

    estimates: Estimates
    limits: np.ndarray
    sign: int  # 1: at most, -1: at least

    @property
    def verdict(self) -> Any:
        return self.estimates.shown(self._decided()[0])

    @property
    def more_rows(self) -> Any:
        """About how many more rows would decide: 0 where it is decided, 2^62 where no number can be given."""
        return self.estimates.shown(self._decided()[1])

    @property
    def satisfied(self) -> bool:
        """Whether every limit is certified to hold."""
        return bool((self._decided()[0] == "satisfied").all())

    def _decided(self) -> tuple[np.ndarray, np.ndarray]:
        middle, low, high = (self.sign * (end - self.limits) for end in self.estimates.ends)
        low, high = (low, high) if self.sign > 0 else (high, low)
        said = np.array([verdicts(*ends) for ends in zip(low, high, strict=True)], dtype=object)
        more = np.where(said == "undecided", self.estimates.more, 0)
        for line, column in np.argwhere((said == "undecided") & (more == 0)):
            ends = (float(end[line, column]) for end in (middle, low, high))
            known = np.isfinite(middle[line, column])
            more[line, column] = to_decide(self.estimates.rows, *ends) if known else NEVER
        return said, more

    def records(self) -> list[dict[str, Any]]:
        """One dict for each line of the table, of plain values."""
        found, (said, more) = self.estimates.records(), self._decided()
        for record, verdict, wanted, limit in zip(
            found, said.ravel(), more.ravel(), np.tile(self.limits, len(said)), strict=True
        ):
            record |= {"limit": float(limit), "verdict": str(verdict)}
            record["more_rows"] = None if wanted >= NEVER else int(wanted)
        return found

    def __str__(self) -> str:
        table, (said, more) = self.estimates, self._decided()
        sign, lines = "<=" if self.sign > 0 else ">=", []
        for line, column in np.ndindex(said.shape):
            text = said[line, column]
            if table.why[line, column] and text == "undecided":
                text += f": {table.why[line, column]}"
            if 0 < more[line, column] < NEVER:
                what = "show enough" if table.more[line, column] else "decide"
                text += f"; about {more[line, column]:,} more rows would {what}"
            ends = [f"{values[line, column]:.5g}" for values in table.ends]
            lines.append(
                [
                    *map(str, table.index[line]),
                    table.form.metrics[column],
                    *ends,
                    f"{sign} {self.limits[column]:g}",
                    text,
                ]
            )
        head = [*table.names, "metric", "estimate", "lower", "upper", "limit", "verdict"]
        return (
            f"{table.title}, all at once at {table.confidence:.0%}\n{aligned(head, lines, text=len(table.names) + 1)}"
        )

    __repr__ = __str__


def aligned(head: Sequence[str], lines: Sequence[Sequence[str]], text: int) -> str:
    """Columns one under the other: the first `text` of them and the last one to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]

    def line(cells: Sequence[str]) -> str:
        pairs = list(zip(cells, widths, strict=True))
        left = [cell.ljust(width) for cell, width in pairs[:text]]
        right = [cell.rjust(width) for cell, width in pairs[text:-1]]
        return "  ".join([*left, *right, cells[-1]]).rstrip()

    return "\n".join(map(line, [head, *lines]))


def plain(value: Any) -> Any:
    """A NumPy number as Python's own."""
    return value.item() if isinstance(value, np.generic) else value


def jsonable(value: Any) -> Any:
    """The same as JSON can write it: None for what is not finite, text for dates and the like."""
    value = plain(value)
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
