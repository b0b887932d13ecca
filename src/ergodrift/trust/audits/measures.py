"""A metric along a record: its value in every cell and how each stretch of time moves it."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from ergodrift.trust.audits.inputs import Cells, Rows, coded
from ergodrift.trust.audits.linear import Linearised, ratio_of_means, stretches
from ergodrift.trust.audits.metrics import ANY, RATE, Metric, RatioOfMeans, is_auc, placements, recognised
from ergodrift.trust.intervals import relaxation_time

BLOCKS = 120  # of time, that are left out in turn of a metric that is no ratio of means
DRAWN = 40  # blocks of rows drawn at random, to see what independent rows would do
CLASSES = 8  # labels of which each is looked at by itself
CLOSE = 1e-9  # two computations of one number


class Measure(NamedTuple):
    """One metric in k columns: the cells, then all rows of each value of the control features.

    Attributes:
        name: of the metric.
        linear: value and influence.
        independent: (k,) the variance that values would have if rows were independent.
        counted: (k,) rows in the denominator.
        bounds: between which values lie.
    """

    name: str
    linear: Linearised
    independent: np.ndarray
    counted: np.ndarray
    bounds: tuple[float, float]

    def effective(self) -> np.ndarray:
        """How many independent rows each value is worth, (k,): rows x variance if independent / variance."""
        variance = self.linear.long_run()
        with np.errstate(divide="ignore", invalid="ignore"):
            found = self.counted * self.independent / variance
        return np.where((variance > 0) & np.isfinite(found), np.minimum(found, 1e15), np.nan)


def measure(name: str, metric: Metric, rows: Rows, given: Mapping[str, np.ndarray]) -> Measure:
    """By its numerators and denominators where it is a ratio of means, else by leaving out blocks of time in turn."""
    ratio = metric if isinstance(metric, RatioOfMeans) else recognised(metric)
    weighted = set(given) <= {"sample_weight"}
    if isinstance(metric, RatioOfMeans):
        if not weighted:
            raise ValueError(f"metric {name!r}: a ratio of means takes sample_weight alone, got {sorted(given)}")
        return of_ratio(name, metric, rows, given.get("sample_weight"))
    own = Function(name, metric, rows, given)
    try:
        if ratio is not None and weighted:
            found = of_ratio(name, ratio, rows, given.get("sample_weight"))
        elif is_auc(metric) and not given:
            found = of_auc(own)
        else:
            return by_blocks(own)
    except (TypeError, ValueError):  # labels that cannot be subtracted, several outputs
        return by_blocks(own)
    # Groups whose denominator is empty have no value here; scikit-learn says 0, and warns.
    theirs, ours = own.values(), found.linear.value
    defined = np.isfinite(ours)
    if not np.allclose(theirs[defined], ours[defined], rtol=CLOSE, atol=CLOSE):
        return by_blocks(own)
    return found._replace(linear=dataclasses.replace(found.linear, value=np.where(defined, theirs, ours)))


def of_ratio(name: str, metric: RatioOfMeans, rows: Rows, weight: np.ndarray | None) -> Measure:
    """Sums over stretches of time, cell by cell."""
    above, below = metric.parts(name, rows.y_true, rows.y_pred, weight)
    if not (np.isfinite(above).all() and np.isfinite(below).all()):
        bad = int(np.argmin(np.isfinite(above) & np.isfinite(below)))
        raise ValueError(f"metric {name!r} is {above[bad]:g} / {below[bad]:g} in row {int(rows.order[bad])}")
    cells, parents = rows.cells, rows.cells.parents
    time = stretches(len(below))
    size, number = len(cells.keys), int(time[-1]) + 1

    def summed(values: np.ndarray) -> np.ndarray:
        found = np.bincount(time * size + cells.of, weights=values, minlength=number * size).reshape(number, size)
        return with_parents(found, cells)

    linear = ratio_of_means(summed(above), summed(below), len(below))

    def whole(values: np.ndarray) -> np.ndarray:
        return with_parents(np.bincount(cells.of, weights=values, minlength=size)[None], cells)[0]

    # Rows of a cell have one ratio as part of it, another as part of all rows.
    value = np.nan_to_num(linear.value)
    own = whole(np.square(above - value[cells.of] * below))[:size]
    every = whole(np.square(above - value[size + parents[1][cells.of]] * below))[size:]
    with np.errstate(divide="ignore", invalid="ignore"):
        independent = np.concatenate([own, every]) / np.square(linear.weight.sum(axis=0))
    return Measure(name, linear, independent, whole((below != 0).astype(float)), metric.bounds)


def with_parents(values: np.ndarray, cells: Cells) -> np.ndarray:
    """(n, cells) and beside them the sums over the cells of each value of the control features."""
    levels, of = cells.parents
    return np.concatenate([values, values @ (of[:, None] == np.arange(len(levels)))], axis=1)


class Function:
    """A metric function and the rows it is asked about."""

    def __init__(self, name: str, metric: Metric, rows: Rows, given: Mapping[str, np.ndarray]) -> None:
        self.name, self.metric, self.rows, self.given = name, metric, rows, given
        self.faults: dict[int, str] = {}  # why there is no value, by column

    def columns(self) -> Iterator[np.ndarray]:
        """The rows of every cell, and of every value of the control features."""
        of, (levels, parents) = self.rows.cells.of, self.rows.cells.parents
        order, ends = np.argsort(of, kind="stable"), np.cumsum(np.bincount(of, minlength=len(self.rows.cells.keys)))
        yield from np.split(order, ends[:-1])
        for level in range(len(levels)):
            yield np.arange(len(of)) if len(levels) == 1 else np.flatnonzero(parents[of] == level)

    def at(self, kept: np.ndarray, column: int) -> float:
        """Of these rows; NaN where there is none, with the reason kept."""
        options = {key: values[kept] for key, values in self.given.items()}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = np.asarray(self.metric(self.rows.y_true[kept], self.rows.y_pred[kept], **options), dtype=float)
        except Exception as error:
            self.faults.setdefault(
                column, f"{type(error).__name__}: {str(error).splitlines()[0]}" if str(error) else repr(error)
            )
            return np.nan
        if found.shape != ():
            raise TypeError(f"metric {self.name!r} must give one number, got an array of shape {found.shape}")
        return float(found)

    def values(self) -> np.ndarray:
        """Of all columns, (k,). One that fails on all rows is refused."""
        found = np.array([self.at(kept, column) for column, kept in enumerate(self.columns())])
        if np.isnan(found).all():
            why = next(iter(self.faults.values()), "it is nan in every group")
            raise ValueError(f"metric {self.name!r} has no value in any group: {why}")
        return found


def of_auc(metric: Function) -> Measure:
    """The area under the ROC curve, by where each score lies among those of the other class (DeLong, DeLong and
    Clarke-Pearson 1988)."""
    rows, time = metric.rows, stretches(len(metric.rows.y_true))
    number, n = int(time[-1]) + 1, len(rows.y_true)
    value, independent, counted, influence, weight = ([] for _ in range(5))
    for kept in metric.columns():
        area, each, positive = placements(rows.y_true[kept], rows.y_pred[kept])
        rarer = positive if positive.sum() * 2 <= len(kept) else ~positive
        value.append(area)
        independent.append(np.sum(np.square(each)))
        counted.append(len(kept))
        influence.append(np.bincount(time[kept], weights=each, minlength=number) * number)
        weight.append(np.bincount(time[kept], weights=rarer, minlength=number))
    linear = Linearised(np.array(value), np.stack(influence, axis=1), np.stack(weight, axis=1), n)
    return Measure(metric.name, linear, np.array(independent), np.array(counted, dtype=float), RATE)


def by_blocks(metric: Function) -> Measure:
    """Influence of blocks of time: what a value changes by when a block is left out (Kuensch 1989, the jackknife of
    blocks). With B_j of a group's B rows in block j of m, m (1 - B_j / B) (value - value without j) is what
    `ratio_of_means` finds, where the metric is a mean."""
    n, value = len(metric.rows.y_true), metric.values()
    number = max(min(BLOCKS, n // 2), 1)
    influence, weight = _left_out(metric, value, np.arange(n) * number // n, number)
    drawn = np.random.default_rng(0).permutation(np.arange(n) % DRAWN)
    independent = _left_out(metric, value, drawn, DRAWN)[0].var(axis=0, ddof=1) / DRAWN
    faults = tuple(metric.faults.get(column, "") for column in range(len(value)))
    linear = Linearised(value, influence, weight, n, faults, slowest=relaxation(metric.rows) * number / n)
    return Measure(metric.name, linear, independent, weight.sum(axis=0), ANY)


def relaxation(rows: Rows) -> float:
    """For how many rows labels and predictions stay correlated, the slowest of them: what is made of them decays no
    more slowly, and few blocks would show it badly."""
    series = [part for values in (rows.y_true, rows.y_pred) for part in _series(values)]
    moving = [part for part in series if np.ptp(part) > 0]
    return relaxation_time(np.stack(moving, axis=1)) if moving else 1.0


def _series(values: np.ndarray) -> list[np.ndarray]:
    if values.ndim == 2:
        return [part for column in values.T[:CLASSES] for part in _series(column)]
    if values.dtype.kind == "f":
        return [values]
    labels, of = coded(values)
    if len(labels) <= CLASSES:
        return [(of == label).astype(float) for label in range(1, len(labels))]
    return [values.astype(float) if values.dtype.kind in "iu" else of.astype(float)]


def _left_out(metric: Function, value: np.ndarray, time: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Influence of each block and the rows that each cell has in it, (blocks, k) both."""
    cells = metric.rows.cells
    weight = np.bincount(time * len(cells.keys) + cells.of, minlength=number * len(cells.keys))
    weight = with_parents(weight.reshape(number, -1).astype(float), cells)
    total, found = weight.sum(axis=0), np.zeros(weight.shape)
    for column, kept in enumerate(metric.columns()):
        if np.isnan(value[column]):
            continue
        for block in np.flatnonzero((weight[:, column] > 0) & (weight[:, column] < total[column])):
            without = metric.at(kept[time[kept] != block], column)
            if np.isnan(without):
                metric.faults.setdefault(column, "no value without one stretch of its rows")
                found[:, column] = 0.0
                break
            share = weight[block, column] / total[column]
            found[block, column] = number * (1 - share) * (value[column] - without)
    return found - found.mean(axis=0), weight
