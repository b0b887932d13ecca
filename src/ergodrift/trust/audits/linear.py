"""Ratios of means along one dependent record, made linear, and intervals for what is made of them.

A rate of a group is r = E[a] / E[b], with b = 1 where a row belongs to the group (and to the denominator) and a = 1
where it counts. Along all rows in the order of time, r̂ - r is about the mean of

    psi_t = (a_t - r̂ b_t) / mean(b),

zero in rows of other groups. A difference of rates is the mean of a difference of such series, so dependence within and
across groups counts by itself, however rows of groups are mixed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import scipy

from ergodrift.trust import intervals
from ergodrift.trust.autocorrelation import LEAST, integrated_time
from ergodrift.trust.certificate import NEVER

NEEDED = 15  # relaxation times below which a record says nothing
FEWEST = 3.5  # batches that a group must be spread over; below, it was seen too rarely to know its own error
Fault: TypeAlias = tuple[str, int] | None  # why there are no ends, and how many more rows would show enough
METHODS: dict[str, Callable[..., intervals.Bounds]] = {
    "batch": intervals.batch,
    "overlapping": intervals.overlapping,
    "bootstrap": intervals.bootstrap,
}


@dataclasses.dataclass(frozen=True, eq=False)
class Linearised:
    """k values and how each stretch of the record moves them; groups are columns.

    Attributes:
        value: (k,); NaN where there is none.
        influence: (stretches, k), of mean 0: value minus truth is about the mean of these under the law.
        weight: (stretches, k), what each stretch has of the denominator.
        rows: in the whole record.
        faults: why a column can have no ends, where that is known already; empty, or one text a column.
        slowest: the relaxation time of the record in stretches, where it is known better than from the influence.
    """

    value: np.ndarray
    influence: np.ndarray
    weight: np.ndarray
    rows: int
    faults: tuple[str, ...] = ()
    slowest: float | None = None

    @functools.cached_property
    def tau(self) -> np.ndarray:
        """Relaxation times in stretches, (k,). A slow mode hides under the noise of a group of few rows and shows in
        all rows together: no column is taken to be faster than the last one, of all rows."""
        if self.slowest is not None:
            return np.full(len(self.value), self.slowest)
        found = intervals.decay_time(self.influence)
        return np.maximum(found, found[-1])

    @functools.cached_property
    def amiss(self) -> list[Fault]:
        """Why columns can have no ends, None where they can."""
        return column_faults(self)

    def long_run(self) -> np.ndarray:
        """The variance of each value, (k,), by its integrated autocorrelation time."""
        return self.influence.var(axis=0) * integrated_time(self.influence, "sokal") / len(self.influence)


class Ends(NamedTuple):
    """Intervals for c contrasts: estimate, lower and upper ends, why there are none, how many more rows would show
    enough for them, and which column is at fault, -1 where all of them are."""

    estimate: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    reason: list[str]
    more: list[int]
    part: list[int]


def stretches(rows: int) -> np.ndarray:
    """Which stretch of time each row falls into: 8,192 of them at most, the last one a little longer."""
    length = -(-rows // intervals.STRETCHES)
    return np.minimum(np.arange(rows) // length, max(rows // length, 1) - 1)


def ratio_of_means(numerator: np.ndarray, denominator: np.ndarray, rows: int | None = None) -> Linearised:
    """Columns of (n, k) sums over rows, or over stretches of `rows` of them, in the order of time.

    A column whose denominator is zero throughout has no value.

    >>> group = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    >>> late = np.array([[1.0], [1.0], [0.0], [0.0]])
    >>> ratio_of_means(late * group, group).value.round(2).tolist()
    [0.33, 1.0]
    """
    numerator, denominator = (np.asarray(part, dtype=float) for part in (numerator, denominator))
    total = denominator.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.where(total > 0, numerator.sum(axis=0) / total, np.nan)
        influence = (numerator - value * denominator) * (len(numerator) / total)
    # All rows counted, or none: what is left over is rounding.
    still = np.abs(influence).max(axis=0) <= 1e-9 * np.maximum(np.abs(value), 1e-300)
    influence = np.where(np.isnan(value) | still, 0.0, influence)
    return Linearised(value, influence, denominator, len(numerator) if rows is None else rows)


def contrasts(found: Linearised, weights: np.ndarray, delta: float, method: str = "batch") -> Ends:
    """Intervals for value @ weights, (k,) @ (k, c), each with probability 1 - delta; they hold as n grows.

    Batches last 20 relaxation times of the slowest part. A group that is only in some of them has Student's quantile
    for as many as it is in, (sum B)^2 / sum B^2 with B the denominators by batch (Carter, Schnepel and Steigerwald
    2017). No ends where a part of the contrast shows one value only, rests on too few rare values or on too few
    batches, or the whole record is too short.
    """
    parts, tau, faults = weights != 0, found.tau, found.amiss
    series, taus = found.influence @ weights, np.where(parts, tau[:, None], 0.0).max(axis=0)
    estimate = contrast_values(found.value, weights)
    at = [next((int(i) for i in np.flatnonzero(part) if faults[i]), -1) for part in parts.T]
    fault = [faults[i] if i >= 0 else None for i in at]
    fine, moving = np.array([why is None for why in fault], dtype=bool), np.ptp(series, axis=0) > 0
    low, high = (np.where(fine & ~moving, 0.0, end) for end in (-np.inf, np.inf))  # one group is all rows
    given = fine & moving
    if given.any():
        wider = _wider(found.weight, parts[:, given], taus[given], delta)
        low[given], high[given] = (end * wider for end in METHODS[method](series[:, given], delta, taus[given]))
    for column in np.flatnonzero(given & ~np.isfinite(high - low)):
        fault[column] = _rare(found.rows, np.maximum(*intervals.skewness(series[:, [column]], taus[column]))[0])
    said = [why or ("", 0) for why in fault]
    return Ends(estimate, estimate + low, estimate + high, [why for why, _ in said], [more for _, more in said], at)


def contrast_values(value: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """value @ weights, (c,); NaN where a part of it is."""
    return np.where((weights != 0)[np.isnan(value)].any(axis=0), np.nan, np.nan_to_num(value) @ weights)


def effective_batches(weight: np.ndarray, number: int) -> np.ndarray:
    """Over how many of so many batches each column is spread, (k,)."""
    size = len(weight) // number
    sums = np.abs(weight[: number * size]).reshape(number, size, -1).sum(axis=1)
    return np.square(sums.sum(axis=0)) / np.maximum(np.square(sums).sum(axis=0), 1e-300)


def _wider(weight: np.ndarray, parts: np.ndarray, tau: np.ndarray, delta: float) -> np.ndarray:
    """What Student's quantile grows by where fewer than all batches tell the error, for each contrast of `parts`."""
    numbers = intervals.batch_numbers(len(weight), tau)
    found = np.empty(len(tau))
    for number in np.unique(numbers):
        of = numbers == number
        spread = np.where(parts[:, of], effective_batches(weight, number)[:, None], np.inf).min(axis=0)
        freedom = np.clip(spread, FEWEST, number) - 1
        found[of] = scipy.stats.t.isf(delta / 2, freedom) / scipy.stats.t.isf(delta / 2, number - 1)
    return found


def _rare(rows: int, skewed: float) -> tuple[str, int]:
    wanted = rows * (np.square(skewed / intervals.SKEWED) - 1)
    return "too few rare, large values among its rows", int(np.ceil(max(wanted, 1)))


def column_faults(found: Linearised) -> list[Fault]:
    """Why each column can have no ends."""
    rows, number, tau = found.rows, len(found.value), found.tau
    if rows < LEAST:
        return [(f"{rows} rows in all are too few: at least {LEAST}", LEAST - rows)] * number
    batches = intervals.batch_numbers(len(found.influence), tau)
    spread = [effective_batches(found.weight[:, [i]], batches[i])[0] for i in range(number)]
    skewed = np.maximum(*intervals.skewness(found.influence, tau))
    return [_fault(found, column, tau[column], spread[column], skewed[column]) for column in range(number)]


def _fault(found: Linearised, column: int, tau: float, spread: float, skewed: float) -> Fault:
    if found.faults and found.faults[column]:
        return found.faults[column], NEVER
    if np.isnan(found.value[column]):
        return "no value: nothing in its denominator", NEVER
    if np.ptp(found.influence[:, column]) == 0:
        return "one value in all its rows", NEVER
    if len(found.influence) < NEEDED * tau:
        slow = tau * found.rows / len(found.influence)
        return f"{found.rows:,} rows that stay correlated for about {slow:,.0f}", max(int(200 * slow) - found.rows, 1)
    if spread < FEWEST:
        wanted = found.rows * (2 * FEWEST / max(spread, 0.5) - 1)
        return f"its rows lie in about {spread:.0f} stretches of time only", int(np.ceil(wanted))
    return _rare(found.rows, skewed) if skewed > intervals.SKEWED else None
