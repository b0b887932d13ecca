"""Metrics of groups in logged predictions, with intervals that are right for dependent rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ergodrift._core import check
from ergodrift.trust.audits.estimates import Estimates, Form
from ergodrift.trust.audits.families import Family, Groups
from ergodrift.trust.audits.inputs import Rows, column, in_order, same_length
from ergodrift.trust.audits.linear import METHODS, Ends, contrasts
from ergodrift.trust.audits.measures import Measure, measure
from ergodrift.trust.audits.metrics import Metric, name_of, named
from ergodrift.trust.guards import changes

Metrics = Metric | str | Mapping[str, Metric | str]
Evidence = Callable[[Family, int], Ends]


class Audit:
    """What an audit found; prints as a table.

    `by_group`, `overall`, `difference()`, `ratio()`, `group_min()` and `group_max()` are named as in fairlearn's
    MetricFrame and have its values in `estimate`; beside them `lower` and `upper`, which hold together over all groups,
    pairs of groups and metrics of a table at the confidence asked for. `difference().at_most(0.1)` is a verdict.

    Attributes:
        rows: how many there were.
        confidence: of each table.
        method: of the intervals.
        warnings: plain sentences about what stands against them.
    """

    def __init__(
        self,
        form: Form,
        groups: Groups,
        evidence: Evidence,
        measures: list[Measure],
        *,
        rows: int,
        confidence: float,
        method: str,
        warnings: list[str],
    ) -> None:
        self.rows, self.confidence, self.method, self.warnings = rows, confidence, method, warnings
        self._form, self._groups, self._evidence, self._measures = form, groups, evidence, measures

    @functools.cached_property
    def by_group(self) -> Estimates:
        """Every metric in every group."""
        size = len(self._groups.cells.keys)
        return self._table(
            "by group", Family("value"), slice(0, size), self._groups.cells.keys, self._groups.cells.names
        )

    @functools.cached_property
    def overall(self) -> Estimates:
        """Every metric over all rows, for each value of the control features."""
        cells = self._groups.cells
        return self._table("overall", Family("overall"), slice(len(cells.keys), None), cells.parents[0], self._controls)

    def difference(self, method: str = "between_groups") -> Estimates:
        """The largest difference between two groups, or with "to_overall" between a group and all rows."""
        return self._gap("difference", method, log=False)

    def ratio(self, method: str = "between_groups") -> Estimates:
        """The smallest ratio of two groups, at most 1; with "to_overall" of a group and all rows, either way round."""
        return self._gap("ratio", method, log=True)

    def group_min(self) -> Estimates:
        """The smallest value of a group."""
        return self._extreme("smallest value of a group", np.fmin)

    def group_max(self) -> Estimates:
        """The largest value of a group."""
        return self._extreme("largest value of a group", np.fmax)

    @property
    def _controls(self) -> list[str]:
        return self._groups.cells.names[: self._groups.cells.controls]

    def _ends(self, family: Family) -> list[Ends]:
        return [self._evidence(family, number) for number in range(len(self._measures))]

    def _table(self, title: str, family: Family, part: slice, index: Any, names: list[str]) -> Estimates:
        found = self._ends(family)
        value = np.stack([each.estimate for each in found], axis=1)
        bounds = np.array([each.bounds for each in self._measures]).T
        low = np.maximum(np.stack([each.lower for each in found], axis=1), bounds[0])
        high = np.minimum(np.stack([each.upper for each in found], axis=1), bounds[1])
        counts, effective = (
            np.stack([column[part] for column in columns], axis=1)
            for columns in ([each.counted for each in self._measures], [each.effective() for each in self._measures])
        )
        why, more = _matrix([each.reason for each in found], object), _matrix([each.more for each in found], np.int64)
        return self._estimates(title, index, names, (value, low, high), why, more, counts, effective)

    def _estimates(
        self,
        title: str,
        index: Any,
        names: list[str],
        ends: Any,
        why: np.ndarray,
        more: np.ndarray,
        *counted: np.ndarray,
    ) -> Estimates:
        return Estimates(title, self.confidence, self.rows, self._form, index, names, ends, why, more, *counted)

    def _gap(self, title: str, method: str, log: bool) -> Estimates:
        kind = check.choice("method", method, ("between_groups", "to_overall"))
        family = Family("pairs" if kind == "between_groups" else "to_overall", log)
        found, levels = self._ends(family), self._groups.cells.parents[0]
        of = self._groups.levels(family)
        shape = (len(levels), len(found))
        value, low, high = (np.full(shape, np.nan), np.zeros(shape), np.full(shape, np.inf))
        why, more = np.full(shape, "", dtype=object), np.zeros(shape, dtype=np.int64)
        for metric, ends in enumerate(found):
            for level in range(len(levels)):
                inside = np.flatnonzero(of == level)
                value[level, metric] = self._groups.gap(self._measures[metric].linear.value, level, kind, log)
                if not len(inside):
                    why[level, metric], high[level, metric] = "one group only", 0.0
                    value[level, metric] = (
                        float(log) if np.isfinite(self._measures[metric].linear.value).any() else np.nan
                    )
                    continue
                # |d| of an interval (l, u) for d lies between max(l, -u, 0) and max(u, -l).
                lower, upper = (
                    np.nan_to_num(ends.lower[inside], nan=-np.inf),
                    np.nan_to_num(ends.upper[inside], nan=np.inf),
                )
                low[level, metric] = max(np.maximum(lower, -upper).max(), 0.0)
                high[level, metric] = np.maximum(upper, -lower).max()
                weak = [int(column) for column in inside if ends.reason[column]]
                if weak:
                    worst = max(weak, key=lambda column: ends.more[column])
                    why[level, metric] = f"{self._groups.label(family, ends, worst)}: {ends.reason[worst]}"
                    more[level, metric] = ends.more[worst]
        if log:
            low, high = np.exp(-high), np.exp(-low)
        else:
            high = np.minimum(high, [each.bounds[1] - each.bounds[0] for each in self._measures])
        words = "between groups" if kind == "between_groups" else "from all rows"
        title = f"largest difference {words}" if not log else f"smallest ratio {words}"
        return self._estimates(title, levels, self._controls, (value, low, high), why, more)

    def _extreme(self, title: str, pick: np.ufunc) -> Estimates:
        groups, levels = self._groups.cells.parents[1], self._groups.cells.parents[0]
        inside = [np.flatnonzero(groups == level) for level in range(len(levels))]
        unknown = -np.inf if pick is np.fmin else np.inf
        table = self.by_group
        value, low, high = (np.stack([pick.reduce(end[rows], axis=0) for rows in inside]) for end in table.ends)
        # A group without a value may be anything: it leaves one end open.
        missing = np.stack([np.isnan(table.ends[0][rows]).any(axis=0) for rows in inside])
        low, high = (np.where(missing & (end == unknown), end, ends) for end, ends in ((unknown, low), (unknown, high)))
        why = np.stack([_first_text(table.why[rows]) for rows in inside])
        more = np.stack([table.more[rows].max(axis=0) for rows in inside])
        return self._estimates(title, levels, self._controls, (value, low, high), why, more)

    def to_dict(self) -> dict[str, Any]:
        """All tables as plain values, for JSON."""
        tables = {"by_group": self.by_group, "overall": self.overall, "difference": self.difference()}
        tables |= {"ratio": self.ratio()}
        return {
            "rows": self.rows,
            "confidence": self.confidence,
            "method": self.method,
            "metrics": list(self._form.metrics),
            **{name: table.records() for name, table in tables.items()},
            "warnings": list(self.warnings),
        }

    def __str__(self) -> str:
        how = f"{self.method}; each table holds as a whole, as rows grow"
        head = f"{self.confidence:.0%} audit of {self.rows:,} rows ({how})"
        tables = [self.by_group, self.overall, self.difference(), self.ratio()]
        return "\n\n".join([head, *map(str, tables), *(f"warning: {each}" for each in self.warnings)])

    __repr__ = __str__


def audit(
    metrics: Metrics,
    y_true: Any,
    y_pred: Any,
    *,
    sensitive_features: Any,
    time: Any = None,
    control_features: Any = None,
    sample_params: Mapping[str, Any] | None = None,
    confidence: float = 0.95,
    method: str = "batch",
    pos_label: Any = None,
) -> Audit:
    """Metrics of groups in the logged predictions of any model, with intervals for dependent rows.

    A metric that is a ratio of means, r = E[a] / E[b], has the interval of the mean of psi_t = (a_t - r b_t) / E[b]
    along all rows in the order of time (`linear`); any other function of (y_true, y_pred) that of its values with
    blocks of time left out in turn. Intervals hold as rows grow, for stationary records.

    Args:
        metrics: a function of scikit-learn's or fairlearn's form, a name such as "accuracy", "selection_rate",
            "true_positive_rate", "mean_squared_error", a `RatioOfMeans`, or a dict of these by name.
        y_true, y_pred: (n,) labels or numbers; predictions as the metrics want them.
        sensitive_features: (n,), or a table or dict of several: groups are rows that agree in all of them.
        time: (n,) numbers or dates by which rows are sorted; in order already unless given.
        control_features: as in fairlearn: groups are compared within each of their values.
        sample_params: arguments with a value a row, such as {"sample_weight": w}; with several metrics, by metric, or
            one for all.
        confidence: with which all intervals of a table hold together (Bonferroni).
        method: "batch" means, "overlapping" batch means, or the stationary "bootstrap".
        pos_label: of metrics that are given by name: the label that counts as positive; 1 of 0 and 1 or -1 and 1.

    >>> rng = np.random.default_rng(0)
    >>> group, truth = rng.integers(2, size=4000), rng.integers(2, size=4000)
    >>> found = audit("selection_rate", truth, rng.random(4000) < 0.3 + 0.2 * group, sensitive_features=group)
    >>> found.difference().at_most(0.1).verdict, found.difference().at_most(0.3).verdict
    ('violated', 'satisfied')
    """
    confidence = check.number("confidence", confidence, above=0.5, below=1)
    method = check.choice("method", method, tuple(METHODS))
    rows = in_order(y_true, y_pred, sensitive_features, control_features, time)
    chosen, single = metrics_by_name(metrics)
    built = {
        name: named(metric, rows.y_true, rows.y_pred, pos_label) if isinstance(metric, str) else metric
        for name, metric in chosen.items()
    }
    given = row_params(sample_params, list(chosen), single, rows)
    measures = [measure(name, metric, rows, given[name]) for name, metric in built.items()]
    groups = Groups(rows.cells)

    @functools.cache
    def evidence(family: Family, number: int) -> Ends:
        found = measures[number].linear
        delta = (1 - confidence) / max(groups.size(family) * len(measures), 1)
        return groups.ends(found, family, lambda linear, weights: contrasts(linear, weights, delta, method))

    form = Form(tuple(chosen), single, rows.pandas)
    warnings = [*rows.notes, *_unsteady(measures, len(rows.y_true))]
    return Audit(
        form, groups, evidence, measures, rows=len(rows.y_true), confidence=confidence, method=method, warnings=warnings
    )


def metrics_by_name(metrics: Metrics) -> tuple[dict[str, Metric | str], bool]:
    """As a dict, and whether one was given by itself."""
    if isinstance(metrics, Mapping):
        if not metrics:
            raise ValueError("metrics must not be empty")
        found = {str(name): metric for name, metric in metrics.items()}
    else:
        found = {name_of(metrics): metrics}
    for name, metric in found.items():
        if not (callable(metric) or isinstance(metric, str)):
            raise TypeError(f"metrics[{name!r}] must be a function, a RatioOfMeans or a name, got {metric!r}")
    return found, not isinstance(metrics, Mapping)


def row_params(
    given: Mapping[str, Any] | None, metrics: list[str], single: bool, rows: Rows
) -> dict[str, dict[str, np.ndarray]]:
    """For each metric the arguments that have a value a row, in the order of time."""
    given = given or {}
    apart = not single and bool(given) and all(isinstance(value, Mapping) for value in given.values())
    if apart and (unknown := [name for name in given if name not in metrics]):
        raise ValueError(f"sample_params names metrics {unknown} that are not there: {metrics}")
    found: dict[str, dict[str, np.ndarray]] = {}
    for name in metrics:
        wanted = given.get(name, {}) if apart else given
        found[name] = {}
        for key, values in wanted.items():
            array = column(f"sample_params[{key!r}]", values)
            same_length(f"sample_params[{key!r}]", array, len(rows.y_true))
            if key == "sample_weight" and (array.dtype.kind not in "iufb" or (array < 0).any()):
                raise ValueError("sample_params['sample_weight'] must be numbers that are nowhere negative")
            found[name][str(key)] = array[rows.order]
    return found


def _unsteady(measures: list[Measure], rows: int) -> list[str]:
    """What says that a metric over all rows does not follow one law along the record."""
    found = []
    for each in measures:
        series = each.linear.influence[:, -1]
        if len(each.linear.influence) >= 50 and np.ptp(series) > 0:
            found += [f"{each.name} {said}" for said in changes(series, "record", rows / len(series))]
    return found


def _matrix(columns: list[list[Any]], dtype: Any) -> np.ndarray:
    return np.array(columns, dtype=dtype).T.reshape(-1, len(columns))


def _first_text(texts: np.ndarray) -> np.ndarray:
    return np.array([next((text for text in column if text), "") for column in texts.T], dtype=object)
