"""An audit that is brought up to date while a log grows, in constant memory."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ergodrift._core import check, saved
from ergodrift.trust.audits.audit import Audit, Metrics, metrics_by_name
from ergodrift.trust.audits.estimates import Form
from ergodrift.trust.audits.families import FAMILIES, Family, Groups
from ergodrift.trust.audits.inputs import Cells, Rows, in_order
from ergodrift.trust.audits.linear import Ends, ratio_of_means
from ergodrift.trust.audits.looks import Looks
from ergodrift.trust.audits.measures import CLOSE, Measure
from ergodrift.trust.audits.metrics import OF_CLASSES, RATIOS, SHORT, Metric, RatioOfMeans, positive_label, recognised
from ergodrift.trust.audits.record import Record
from ergodrift.trust.certificate import TUNED_FOR

FORMAT = "ergodrift audit monitor v1"
OPTIONS = ("confidence", "tuned_for", "pos_label")


class AuditMonitor:
    """An anytime-valid audit that is brought up to date while rows arrive, in the order of time.

    What it says depends on the rows alone, not on how they were cut into updates. All intervals of a table hold
    together, at all times together, as rows grow (docs/laboratory/audit.md says what is theorem in this, and what is
    not). Groups may turn up at any time. An update costs the same however many came before, and so does the memory.

    Args:
        metrics: ratios of means: names, `RatioOfMeans`, or functions of scikit-learn or fairlearn that are such ratios;
            one, or a dict by name.
        confidence: of each table.
        tuned_for: the number of rows at which intervals should be tightest.
        pos_label: of metrics that are given by name; 1 unless given.

    >>> rng = np.random.default_rng(0)
    >>> monitor = AuditMonitor("selection_rate", tuned_for=4000)
    >>> for _ in range(8):
    ...     group = rng.integers(2, size=1000)
    ...     found = monitor.update(group, rng.random(1000) < 0.2 + 0.3 * group, group)
    >>> found.difference().at_most(0.1).verdict
    'violated'
    """

    def __init__(
        self,
        metrics: Metrics,
        confidence: float = 0.95,
        *,
        tuned_for: int = TUNED_FOR,
        pos_label: Any = None,
    ) -> None:
        self.confidence = check.number("confidence", confidence, above=0.5, below=1)
        self.tuned_for = check.integer("tuned_for", tuned_for, at_least=1)
        self.pos_label = pos_label
        self._given, self._single = metrics_by_name(metrics)
        self.metrics = {name: _ratio(name, metric, pos_label) for name, metric in self._given.items()}
        self._record = Record(len(self.metrics))
        self._looks = Looks(len(self.metrics), 1 - self.confidence, self.tuned_for)
        self._names: list[str] = []
        self._keys: dict[tuple[Any, ...], int] = {}
        self._first: dict[str, np.ndarray] = {}  # the first row, by which a file is checked
        self._pandas = False

    @property
    def num_rows(self) -> int:
        """How many rows there were."""
        return self._record.count

    def update(self, y_true: Any, y_pred: Any, sensitive_features: Any, sample_weight: Any = None) -> Audit:
        """More rows, and where things stand after them."""
        rows = in_order(y_true, y_pred, sensitive_features, None, None)
        weight = None if sample_weight is None else np.asarray(sample_weight, dtype=float)
        if weight is not None and (weight.shape != (len(rows.y_true),) or not (weight >= 0).all()):
            raise ValueError("sample_weight must be one number a row, nowhere negative")
        parts = self._parts(rows, weight)
        if not self._names:
            self._names, self._pandas = rows.cells.names, rows.pandas
            self._first = {
                "y_true": rows.y_true[:1],
                "y_pred": rows.y_pred[:1],
                "parts": self._parts(first(rows), None),
            }
        elif rows.cells.names != self._names:
            raise ValueError(f"sensitive_features are {rows.cells.names}, those before were {self._names}")
        of = self._groups_of(rows.cells)
        while len(parts):
            until = self._looks.until(self._record.count)
            self._record.add(parts[:until], of[:until])
            parts, of = parts[until:], of[until:]
            if self._looks.due(self._record.count):
                self._looks.take(self._record)
        return self.audit()

    def _parts(self, rows: Rows, weight: np.ndarray | None) -> np.ndarray:
        """Numerators and denominators of every row, (n, metrics, 2); nothing is kept of rows that are refused."""
        found = []
        for name, metric in self.metrics.items():
            given = self._given[name]
            if isinstance(given, str) and self.pos_label is None and SHORT.get(given, given) in OF_CLASSES:
                scores = SHORT.get(given, given) in ("log_loss", "brier_score_loss")
                positive_label(name, rows.y_true, rows.y_true if scores else rows.y_pred, None)
            above, below = metric.parts(name, rows.y_true, rows.y_pred, weight)
            if not (np.isfinite(above).all() and np.isfinite(below).all()):
                raise ValueError(f"metric {name!r} is not finite in row {int(np.argmin(np.isfinite(above + below)))}")
            if callable(given) and not isinstance(given, RatioOfMeans) and weight is None and below.sum() > 0:
                theirs, ours = float(given(rows.y_true, rows.y_pred)), float(above.sum() / below.sum())
                if not np.isclose(theirs, ours, rtol=CLOSE, atol=CLOSE):
                    raise ValueError(f"metric {name!r} is {theirs:g} on these rows, not {ours:g}: give a RatioOfMeans")
            found.append(np.stack([above, below], axis=1))
        return np.stack(found, axis=1)

    def _groups_of(self, cells: Cells) -> np.ndarray:
        """The number of each row's group; new ones get theirs in the order in which they turn up."""
        order = np.unique(cells.of, return_index=True)[1]
        for cell in np.argsort(order):
            self._keys.setdefault(cells.keys[cell], len(self._keys))
        if len(self._keys) > self._record.powers.shape[-1]:
            self._record.widen(len(self._keys))
            self._looks.widen(len(self._keys))
        return np.array([self._keys[key] for key in cells.keys])[cells.of]

    def audit(self) -> Audit:
        """Where things stand."""
        if not self.num_rows:
            raise ValueError("there is no audit yet: this monitor has seen no rows")
        groups = Groups(Cells(np.empty(0, dtype=int), list(self._keys), self._names, 0))
        measures = [self._measure(number, name) for number, name in enumerate(self.metrics)]
        ends, count = {}, self.num_rows

        def evidence(family: Family, number: int) -> Ends:
            if (family, number) not in ends:
                ends[family, number] = self._ends(groups, family, number, measures[number].linear.value, count)
            return ends[family, number]

        for family in FAMILIES:  # at once: the monitor goes on
            for number in range(len(measures)):
                evidence(family, number)
        form = Form(tuple(self.metrics), self._single, self._pandas)
        return Audit(
            form, groups, evidence, measures, rows=count, confidence=self.confidence, method="anytime", warnings=[]
        )

    def _ends(self, groups: Groups, family: Family, number: int, value: np.ndarray, count: int) -> Ends:
        pairs = groups.contrasts(family)
        with np.errstate(divide="ignore", invalid="ignore"):
            level = np.log(np.where(value > 0, value, np.nan)) if family.log else value
        found = np.array([level[i] - (level[j] if j >= 0 else 0.0) for i, j in pairs])
        return self._looks.ends(number, family.log, pairs, found, count)

    def _measure(self, number: int, name: str) -> Measure:
        above, below = self._record.blocks(number)
        linear = ratio_of_means(above, below, self.num_rows)
        squares, crosses, weights, counted = np.append(
            self._record.powers[number], self._record.powers[number].sum(axis=1, keepdims=True), axis=1
        )
        value = np.nan_to_num(linear.value)
        with np.errstate(divide="ignore", invalid="ignore"):
            independent = (squares - 2 * value * crosses + value**2 * weights) / np.square(below.sum(axis=0))
        return Measure(name, linear, np.maximum(independent, 0), counted, self.metrics[name].bounds)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all that goes on with the next row, and the settings; not the metrics, and no rows but the first. The
        file is there whole or not at all, and holds arrays and text only."""
        if not self.num_rows:
            raise ValueError("there is nothing to save: this monitor has seen no rows")
        content = {
            "options": {name: getattr(self, name) for name in OPTIONS},
            "metrics": list(self.metrics),
            "single": self._single,
            "names": self._names,
            "keys": [list(key) for key in self._keys],
            "pandas": self._pandas,
            "first": self._first,
            "record": self._record.state(),
            "looks": self._looks.state(),
        }
        saved.write(path, FORMAT, content, {})

    @classmethod
    def load(cls, path: str | os.PathLike[str], metrics: Metrics) -> AuditMonitor:
        """Go on where a saved monitor was, bit for bit. The metrics are not in the file: they must be those it had, and
        are refused where they have other names or say something else of the first row."""
        stored = saved.read(path, FORMAT, {})
        try:
            found = cls(metrics, **stored["options"])
            found._names, found._pandas, found._first = stored["names"], bool(stored["pandas"]), stored["first"]
            found._keys = {tuple(key): number for number, key in enumerate(stored["keys"])}
            found._record.restore(stored["record"])
            found._looks.restore(stored["looks"])
            before, single = stored["metrics"], stored["single"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"audit monitor {os.fspath(path)} cannot be used: {error}") from error
        if (list(found.metrics), found._single) != (before, bool(single)):
            raise ValueError(f"audit monitor {os.fspath(path)} had metrics {before}, not {list(found.metrics)}")
        row = found._first
        once = in_order(row["y_true"], row["y_pred"], ["-"], None, None)
        if not np.allclose(found._parts(once, None), row["parts"]):
            raise ValueError(
                f"audit monitor {os.fspath(path)} had other metrics: of its first row these say other things"
            )
        return found


def first(rows: Rows) -> Rows:
    """The first row by itself."""
    return rows._replace(y_true=rows.y_true[:1], y_pred=rows.y_pred[:1])


def _ratio(name: str, metric: Metric | str, pos_label: Any) -> RatioOfMeans:
    if isinstance(metric, RatioOfMeans):
        return metric
    key = SHORT.get(metric, metric) if isinstance(metric, str) else ""
    if key in RATIOS:
        return RATIOS[key](**({} if pos_label is None or key not in OF_CLASSES else {"pos_label": pos_label}))
    found = None if isinstance(metric, str) else recognised(metric)
    if found is None:
        raise ValueError(
            f"metric {name!r} is no ratio of means that is known: a monitor keeps sums, so give a "
            f"RatioOfMeans(numerator, denominator) or one of {', '.join(sorted({*RATIOS, *SHORT} - {'roc_auc'}))}"
        )
    return found
