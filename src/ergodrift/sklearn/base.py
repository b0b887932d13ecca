"""What classifier and regressor share: a table comes in, is fitted, tightened, certified, or read once."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import (
    _check_sample_weight,  # type: ignore[reportPrivateUsage]  # scikit-learn's own way, for others too
    check_is_fitted,
    check_random_state,
    column_or_1d,
    validate_data,
)

from ergodrift._core import check
from ergodrift.data.passes import ORDERS
from ergodrift.methods.algorithms import Algorithm, sdpp
from ergodrift.sklearn.cells import Asked, Part
from ergodrift.sklearn.certificate import TableCertificate, certified
from ergodrift.sklearn.constraints import BoundedGroupLoss, Constraint, all_of
from ergodrift.sklearn.losses import FAMILIES
from ergodrift.sklearn.solver import Solver
from ergodrift.sklearn.stream import Stream
from ergodrift.sklearn.table import Groups, Scaling, costs, ordered, refuse_text, target_units, together
from ergodrift.sklearn.tighten import Outcome, Tightening
from ergodrift.trust.diagnose import Diagnosis, diagnose

SMALL = 5000  # rows up to which equal ones are put together where their order does not matter
MOST_GROUPS = 64
CONFIDENCE = 0.95  # of `certificate_`


class Constrained(BaseEstimator):
    """What classifier and regressor share."""

    # Set by the constructors, as scikit-learn wants it.
    loss: str
    constraints: Any
    radius: float
    algorithm: str | Algorithm
    epochs: int | str
    order: str
    batch_size: int | str
    validation_fraction: float | str
    random_state: Any

    def fit(
        self, X: Any, y: Any, *, sensitive_features: Any = None, time: Any = None, sample_weight: Any = None
    ) -> Any:
        """Fit, tighten until the constraints are certified on the last rows, and say so in `certificate_`.

        Args:
            X: (n, d) numbers: an array, a table of pandas or a sparse matrix.
            y: (n,) labels of any kind, or targets.
            sensitive_features: one column or several (their intersections are the groups), with one row for each of X.
            time: (n,) when rows were taken, numbers or dates; rows are sorted by it. In the order of time as they are
                unless given.
            sample_weight: (n,) how much each row counts.
        """
        self._check_settings()
        asked = all_of(self.constraints)
        weighed = costs(asked, X, y)
        X, y, weights = self._validated(X, y, sample_weight, reset=True)
        groups, group = self._grouped(asked, sensitive_features, len(y), Groups([], []))
        part = Part(X, y, group, weights, weighed)
        self.timing_ = None
        if time is not None:
            self.timing_, places = ordered(time, len(y))
            part = part.cut(places)
        part = part.cut(part.weights > 0) if (part.weights == 0).any() else part
        if not len(part):
            raise ValueError("sample_weight is 0 for all rows: nothing is left to fit")
        held = self._held_out(len(part), bool(asked))
        self._stream = None
        if self._one_pass:
            return self._fit_once(part, held, groups)
        merged = together(part) if not held and self.order == "shuffled" and len(part) <= SMALL else part
        self._fit_part(merged, held, groups)
        self.diagnosis_ = self._diagnosed(part)
        return self

    def _fit_once(self, part: Part, held: int, groups: Groups) -> Any:
        """Rows read once, in order; what was held out is certified as it is: there is no second pass to tighten in."""
        now, later = part.cut(slice(len(part) - held)), part.cut(slice(len(part) - held, None))
        self._check_target(now)
        self.groups_ = groups
        self._stream = self._new_stream(None)
        self._stream.learn(now, groups.names)
        self._read_off()
        if held:
            self.certificate_ = certified(self._asked_for, self._scores(later.X), later, CONFIDENCE)
        self.diagnosis_ = self._diagnosed(part)
        return self

    def _learn_more(self, X: Any, y: Any, classes: Any, sensitive_features: Any, sample_weight: Any) -> Any:
        """`partial_fit`: the same rows give the same coefficients, bit for bit, however they are cut into calls."""
        self._check_settings()
        fresh = not hasattr(self, "coef_")
        if fresh:
            self._stream = None
            self._begin_classes(classes)
        asked = all_of(self.constraints)
        weighed = costs(asked, X, y)
        X, y, weights = self._validated(X, y, sample_weight, reset=fresh, classes_known=True)
        known = Groups([], []) if fresh else self.groups_
        # Groups may come one by one: a single one is refused by nobody before the end.
        groups, group = self._grouped(asked, sensitive_features, len(y), known, fewest=1)
        part = Part(X, y, group, weights, weighed)
        part = part.cut(part.weights > 0) if (part.weights == 0).any() else part
        stream = self._stream or self._new_stream(None if fresh else self._begun)
        if stream.rows and (group is None) != (not stream.groups):
            raise ValueError("sensitive_features must be given in every call of partial_fit, or in none")
        stream.learn(part, groups.names)
        self._stream, self.groups_ = stream, groups
        self._read_off()
        return self

    def _new_stream(self, begun: Any) -> Stream:
        return Stream(
            all_of(self.constraints),
            getattr(self, "classes_", ()),
            family=self._family,
            loss=self.loss,
            setting=self._inner_setting(),
            radius=self.radius,
            algorithm=self._algorithm(0.02 * self.radius),
            batch=1 if self.batch_size == "auto" else int(self.batch_size),
            begun=begun,
        )

    def _read_off(self) -> None:
        """Coefficients and the rest, from what the stream has learned so far."""
        assert self._stream is not None
        now = self._stream.now()
        learner = now.learner
        assert learner is not None
        self._begun = (now.scaling, now.x, now.unit, now.centre)
        coef, intercept = now.scaling.coefficients(now.x)
        self._set_coefficients(now.unit * coef, now.unit * intercept + now.centre)
        self._unit = now.unit
        self._asked_for = self._asked(self.groups_)
        seen = now.limits_seen()
        self.constraint_names_ = list(seen.values())
        self.multipliers_ = np.asarray(learner.queue, dtype=float)[list(seen)]
        self.result_ = learner.history
        self.certificate_, self.diagnosis_ = None, None
        self.n_rows_seen_ = self._stream.rows

    def _fit_part(self, part: Part, held: int, groups: Groups) -> None:
        now, later = part.cut(slice(len(part) - held)), part.cut(slice(len(part) - held, None))
        self._check_target(now)
        unit, centre = target_units(now) if self._family == "regression" else (1.0, 0.0)
        self._unit = unit
        self.groups_, self._asked_for = groups, self._asked(groups)
        asked, kind = self._asked_for, jax.dtypes.canonicalize_dtype(float)
        scaling = Scaling.of(now.X, now.weights)
        design = scaling.design(now.X, kind)
        solver = Solver(
            design,
            (asked.target(now.y) - centre) / unit,
            now.weights / now.weights.mean(),
            family=self._family,
            loss=self.loss,
            setting=self._inner_setting(),
            radius=self.radius,
            num_limits=len(asked.limits),
            num_classes=asked.num_classes,
            algorithm=self._algorithm,
            epochs=None if self.epochs == "auto" else int(self.epochs),
            order=self.order,
            batch_size=None if self.batch_size == "auto" else int(self.batch_size),
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
        )
        rest = (later, scaling.design(later.X, kind)) if held else None
        found = Tightening(solver, asked, now, design, rest, unit, centre, CONFIDENCE).outcome()
        self._keep(found, scaling, unit, centre)

    def _keep(self, found: Outcome, scaling: Scaling, unit: float, centre: float) -> None:
        coef, intercept = scaling.coefficients(found.model.x)
        self._set_coefficients(unit * coef, unit * intercept + centre)
        self.multipliers_ = found.model.multipliers
        self.constraint_names_ = [limit.name for limit in self._asked_for.limits]
        self.result_ = dataclasses.replace(
            found.model.result, setting=None
        )  # a model does not keep the rows it was fitted on
        self.certificate_ = found.certificate
        if found.certificate is not None:
            found.certificate.notes.extend(found.notes)
        self.fit_notes_ = found.notes
        self.n_runs_ = found.turns
        self._begun = (scaling, found.model.x, unit, centre)

    def _diagnosed(self, part: Part) -> Diagnosis | None:
        """How dependent rows are, by the model's loss and scores along them; None where there are too few to say."""
        scores = self._scores(part.X)
        losses = self._asked_for.loss.value(np, scores, self._asked_for.target(part.y), self._asked_for.setting)
        try:
            return diagnose({"loss": losses, "score": scores if scores.ndim == 1 else scores[:, 0]})
        except ValueError:
            return None

    def certify(
        self,
        X: Any,
        y: Any,
        *,
        sensitive_features: Any = None,
        time: Any = None,
        sample_weight: Any = None,
        confidence: float = 0.95,
    ) -> TableCertificate:
        """Whether the model keeps its constraints on other rows: later ones, or all that have come since.

        Args:
            X, y, sensitive_features, time, sample_weight: as in `fit`; rows that the model has not been fitted on.
            confidence: with which all intervals hold together.
        """
        check_is_fitted(self)
        asked = all_of(self.constraints)
        weighed = costs(asked, X, y)
        X, y, weights = self._validated(X, y, sample_weight, reset=False)
        groups, group = self._grouped(asked, sensitive_features, len(y), self.groups_)
        part = Part(X, y, group, weights, weighed)
        if time is not None:
            part = part.cut(ordered(time, len(y))[1])
        return certified(self._asked(groups), self._scores(part.X), part, confidence)

    # What is asked for

    def _check_settings(self) -> None:
        check.choice("loss", self.loss, tuple(FAMILIES[self._families[0]]))
        check.number("radius", self.radius, above=0)
        check.choice("order", self.order, ORDERS)
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            if not isinstance(value, str):
                check.integer(name, value, at_least=1)
            elif value != "auto":
                raise ValueError(f"{name} must be 'auto' or a whole number, got {value!r}")
        if not isinstance(self.algorithm, Algorithm):
            check.choice("algorithm", self.algorithm, ("auto", "sdpp"))
        if not isinstance(self.validation_fraction, str):
            check.number("validation_fraction", self.validation_fraction, at_least=0, below=1)
        elif self.validation_fraction != "auto":
            raise ValueError(f"validation_fraction must be 'auto' or a number, got {self.validation_fraction!r}")

    @property
    def _one_pass(self) -> bool:
        return self.epochs == 1 and self.order == "given"

    def _held_out(self, count: int, constrained: bool) -> int:
        """Rows to hold out: none where there is nothing to certify, or where rows are read once as a stream is."""
        fraction = self.validation_fraction
        if fraction == "auto":
            fraction = 0.0 if self._one_pass else 0.2
        return min(round(float(fraction) * count), count - 1) if constrained else 0

    def _algorithm(self, distance: float) -> Algorithm:
        return self.algorithm if isinstance(self.algorithm, Algorithm) else sdpp(distance=distance)

    def _grouped(
        self, asked: tuple[Any, ...], features: Any, count: int, known: Groups, fewest: int = 2
    ) -> tuple[Groups, np.ndarray | None]:
        needing = [one for one in asked if isinstance(one, Constraint) and one.needs_groups]
        if features is None:
            if needing:
                raise ValueError(
                    f"sensitive_features must be given: {type(needing[0]).__name__} is about groups of rows; pass "
                    "fit(X, y, sensitive_features=column)"
                )
            return known, None
        groups, numbers_ = known.numbers(features, count)
        parity = [one for one in needing if not isinstance(one, BoundedGroupLoss)]
        if parity and len(groups.names) < fewest:
            raise ValueError(
                f"sensitive_features has one group only, {groups.names[0]!r}: {type(parity[0]).__name__} compares two "
                "or more"
            )
        if needing and len(groups.names) > MOST_GROUPS:
            raise ValueError(
                f"sensitive_features has {len(groups.names):,} groups, and {MOST_GROUPS} at most can be compared: join "
                "rare ones, or bin a number that has many values"
            )
        return groups, numbers_

    def _validated(
        self, X: Any, y: Any, weight: Any, *, reset: bool, classes_known: bool = False
    ) -> tuple[Any, np.ndarray, np.ndarray]:
        refuse_text(X)
        X, y = validate_data(
            self, X, y, accept_sparse="csr", dtype=np.float64, reset=reset, y_numeric=self._family == "regression"
        )
        y = self._encoded(column_or_1d(y, warn=True), reset and not classes_known)
        weights = _check_sample_weight(weight, X, dtype=np.float64, ensure_non_negative=True)
        return X, y, weights

    def _scores(self, X: Any) -> np.ndarray:
        return np.asarray(X @ self.coef_.T + self.intercept_, dtype=float)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "coef_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # Of each kind its own

    _stream: Stream | None
    _families: tuple[str, ...]
    coef_: np.ndarray
    intercept_: Any

    @property
    def _family(self) -> str:
        raise NotImplementedError

    def _encoded(self, y: np.ndarray, reset: bool) -> np.ndarray:
        raise NotImplementedError

    def _asked(self, groups: Groups, *, to_overall: bool = False) -> Asked:
        raise NotImplementedError

    def _check_target(self, part: Part) -> None:
        """Refuse what nothing can be learned from."""

    def _begin_classes(self, classes: Any) -> None:
        """Labels that there can be, where they are told beforehand."""

    def _inner_setting(self) -> float:
        raise NotImplementedError

    def _set_coefficients(self, coef: np.ndarray, intercept: np.ndarray) -> None:
        raise NotImplementedError
