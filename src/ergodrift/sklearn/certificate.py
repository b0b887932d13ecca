"""Does a fitted model keep what was asked for, on rows it has not seen? Intervals for the true quantities, by name."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ergodrift._core import check
from ergodrift.sklearn.cells import Asked, Part
from ergodrift.trust.audits.linear import Ends, Linearised, contrast_values, contrasts
from ergodrift.trust.autocorrelation import LEAST
from ergodrift.trust.certificate import NEVER, to_decide

SHOWN = 12  # rows that are printed


@dataclasses.dataclass(frozen=True, eq=False)
class TableCertificate:
    """Intervals for the true quantities, rates of decisions among them, on held-out rows; prints as a table.

    With probability `confidence` or more all intervals hold together, for rows that may depend on each other, as their
    number grows.

    Attributes:
        name: of each quantity, k of them.
        limit: (k,).
        two_sided: (k,) whether the quantity is a difference that may be neither above the limit nor below minus it.
        estimate, lower, upper: (k,); a quantity about which too little was seen has no ends, and `reason` says why.
        verdict: "satisfied", "violated" or "undecided", for each.
        more_rows: about how many more rows would decide it; 0 where it is decided, 2^62 where no number can be given.
        reason: why there are no ends; empty where there are.
        loss, loss_lower, loss_upper: the mean loss on the same rows.
        confidence: as asked for.
        num_rows: held-out rows.
        notes: what else is to be known: how often the rows were looked at, what was given up for the constraints.
    """

    name: list[str]
    limit: np.ndarray
    two_sided: np.ndarray
    estimate: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    verdict: list[str]
    more_rows: list[int]
    reason: list[str]
    loss: float
    loss_lower: float
    loss_upper: float
    confidence: float
    num_rows: int
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def satisfied(self) -> bool:
        """Whether every constraint is certified to hold."""
        return all(verdict == "satisfied" for verdict in self.verdict)

    def __bool__(self) -> bool:
        raise TypeError("a certificate is neither true nor false: ask .satisfied, or .verdict for each quantity")

    @property
    def excess(self) -> np.ndarray:
        """(k,) how far the worse end of each interval is above its limit; 0 or less where it is certified to hold."""
        high = np.where(self.two_sided, np.maximum(self.upper, -self.lower), self.upper)
        return high - self.limit

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, text and lists; what has no value is None: fit for JSON."""

        def plain(value: Any) -> Any:
            if isinstance(value, np.ndarray | list):
                return [plain(each) for each in value]
            if isinstance(value, float | np.floating):
                return float(value) if np.isfinite(value) else None
            return value.item() if isinstance(value, np.generic) else value

        found = {field.name: plain(getattr(self, field.name)) for field in dataclasses.fields(self)}
        found["more_rows"] = [more if more < NEVER else None for more in self.more_rows]
        return {"satisfied": self.satisfied, **found}

    def __str__(self) -> str:
        head = f"{self.confidence:.0%} certificate from {self.num_rows:,} held-out rows"
        width = max([14, *(len(name) + 2 for name in self.name)])
        lines = [head, f"{'':{width}}{'limit':>10}{'estimate':>12}{'lower':>12}{'upper':>12}   verdict"]
        order = np.argsort(-np.where(np.isfinite(self.excess), self.excess, np.inf), kind="stable")
        shown = order if len(order) <= SHOWN else order[:SHOWN]
        for k in shown if len(order) > SHOWN else range(len(order)):
            said = f"{self.verdict[k]}: {self.reason[k]}" if self.reason[k] else self.verdict[k]
            if 0 < self.more_rows[k] < NEVER:
                said += f", about {self.more_rows[k]:,} more rows would decide"
            sign = "±" if self.two_sided[k] else ""
            ends = f"{self.estimate[k]:12.5g}{self.lower[k]:12.5g}{self.upper[k]:12.5g}"
            lines.append(f"{self.name[k]:{width}}{f'{sign}{self.limit[k]:.5g}':>10}{ends}   {said}")
        if len(order) > SHOWN:
            lines.append(f"... and {len(order) - SHOWN} more, further from their limits")
        lines.append(f"{'loss':{width}}{'':10}{self.loss:12.5g}{self.loss_lower:12.5g}{self.loss_upper:12.5g}")
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    __repr__ = __str__


def certified(
    asked: Asked, scores: np.ndarray, part: Part, confidence: float, looked_at: float | None = None
) -> TableCertificate:
    """The certificate of a model's scores on rows in the order of time.

    Where the rows are looked at several times, `looked_at` is the larger confidence of this look.
    """
    check.number("confidence", confidence, above=0.5, below=1)
    first, second = pairs(asked)
    bounds, linear = asked.bounds[first], asked.linearised(scores, part)
    delta = 1 - (looked_at or confidence)
    found = ends(linear, asked.contrasts(first), delta / max(len(first), 1))
    loss = ends(linear, np.eye(len(asked.cells) + 1)[:, -1:], delta)
    estimate, lower, upper, reasons = found.estimate, found.lower, found.upper, found.reason
    two = second >= 0
    verdict, more = [], []
    for k in range(len(first)):
        low, high, limit = lower[k], upper[k], bounds[k]
        holds = high <= limit and (low >= -limit or not two[k])
        fails = low > limit or (two[k] and high < -limit)
        verdict.append("satisfied" if holds else "violated" if fails else "undecided")
        if verdict[-1] != "undecided":
            more.append(0)
        elif reasons[k]:
            more.append(found.more[k])
        elif two[k] and estimate[k] < 0:  # seen from the other side
            more.append(to_decide(len(part), -estimate[k] - limit, -high - limit, -low - limit))
        else:
            more.append(to_decide(len(part), estimate[k] - limit, low - limit, high - limit))
    return TableCertificate(
        [asked.limits[k].name for k in first], bounds, two, estimate, lower, upper, verdict, more, reasons,
        float(loss.estimate[0]), float(loss.lower[0]), float(loss.upper[0]), confidence, len(part),
    )  # fmt: skip


def ends(linear: Linearised, weights: np.ndarray, delta: float) -> Ends:
    """Intervals for contrasts of cells; without ends where there are too few rows to say anything."""
    if linear.rows >= LEAST:
        return contrasts(linear, weights, delta)
    count, none = weights.shape[1], np.full(weights.shape[1], np.inf)
    why = f"{linear.rows} held-out rows are too few: at least {LEAST}"
    values = contrast_values(linear.value, weights)
    return Ends(values, -none, none, [why] * count, [LEAST - linear.rows] * count, [-1] * count)


def pairs(asked: Asked) -> tuple[np.ndarray, np.ndarray]:
    """Each quantity once, and the row that limits it from the other side; -1 where there is none."""
    seen: dict[tuple[Any, ...], int] = {}
    first, second = [], []
    for k, limit in enumerate(asked.limits):
        mirrored = (limit.limit, tuple(sorted((c, -f) for f, c in limit.terms)))
        if mirrored in seen:
            second[seen[mirrored]] = k
            continue
        seen[limit.limit, tuple(sorted((c, f) for f, c in limit.terms))] = len(first)
        first.append(k)
        second.append(-1)
    return np.array(first, dtype=int), np.array(second, dtype=int)
