"""Linear classifiers and regressors with constraints, as scikit-learn's own estimators are."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from ergodrift._core import check
from ergodrift.methods.algorithms import Algorithm
from ergodrift.sklearn.base import Constrained
from ergodrift.sklearn.cells import Asked, Part
from ergodrift.sklearn.constraints import BoundedGroupLoss, Constraint, MeanBelow, all_of
from ergodrift.sklearn.losses import decisions, softmax
from ergodrift.sklearn.table import Groups, refuse_text


class ConstrainedClassifier(ClassifierMixin, Constrained):
    """A linear classifier that keeps constraints, and says with what confidence it does.

    Minimises the mean loss over rows, over coefficients in a ball, subject to `constraints`. The last rows are held
    out: what was asked for, rates of decisions among them, is certified there, by intervals that hold where rows depend
    on each other, and what is optimised is tightened until the certificate says "satisfied".

    Args:
        loss: "logistic" (for several classes: softmax) or "hinge".
        constraints: one or several of `DemographicParity(0.05)` and its like, fairlearn's own objects, text such as
            "demographic_parity <= 0.05", or functions of (score, row) whose mean is to be at most 0; None for none.
        radius: the largest norm of the coefficients, in units in which every feature has standard deviation 1.
        algorithm: "auto" is `ed.sdpp`, which needs no settings; or any algorithm that `ed.run` takes.
        epochs: passes over the rows in each run; "auto" makes some 2,000 steps.
        order: of the rows in a pass: "shuffled", "given" or "blocks" (see `SeriesSource`). With epochs=1 and
            order="given" the rows are read once, as `partial_fit` reads them.
        batch_size: rows of a step; "auto" is 1 for rows read once, else so many that a pass has 256 to 512 steps.
        validation_fraction: of the rows, the last of which are held out; "auto" is 0.2, or 0 for rows read once. No
            rows are held out where there are no constraints.
        random_state: of the order of rows.

    Attributes:
        classes_: labels, in order; with two, the second is the positive one.
        coef_: (1, d), or (classes, d) for several, in the units of X; `intercept_` likewise.
        multipliers_: (m,) of the limits `constraint_names_`: by how much the loss would fall for each unit that a limit
            is raised.
        certificate_: a `TableCertificate` from the held-out rows, printed as a table; None where none were held out.
        diagnosis_: how dependent the rows are (`ed.diagnose`); None where they are too few to say.
        result_: the `ed.Result` of the run that found the coefficients.
        groups_: names of the groups.

    >>> from ergodrift.sklearn import DemographicParity
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(4000, 3))
    >>> group = np.where(X[:, 0] + rng.normal(size=4000) > 0, "a", "b")
    >>> y = np.where(X @ [1.0, 1.0, 0.0] + rng.normal(size=4000) > 0, "yes", "no")
    >>> model = ConstrainedClassifier(constraints=DemographicParity(0.2)).fit(X, y, sensitive_features=group)
    >>> model.certificate_.satisfied, model.score(X, y) > 0.7
    (True, True)
    """

    _families = ("binary", "multiclass")

    def __init__(
        self,
        loss: str = "logistic",
        constraints: Any = None,
        radius: float = 10.0,
        algorithm: str | Algorithm = "auto",
        epochs: int | str = "auto",
        order: str = "shuffled",
        batch_size: int | str = "auto",
        validation_fraction: float | str = "auto",
        random_state: Any = None,
    ) -> None:
        self.loss = loss
        self.constraints = constraints
        self.radius = radius
        self.algorithm = algorithm
        self.epochs = epochs
        self.order = order
        self.batch_size = batch_size
        self.validation_fraction = validation_fraction
        self.random_state = random_state

    @property
    def _family(self) -> str:
        return "binary" if not hasattr(self, "classes_") or len(self.classes_) == 2 else "multiclass"

    def _encoded(self, y: np.ndarray, reset: bool) -> np.ndarray:
        check_classification_targets(y)
        if reset:
            self.classes_ = np.unique(y)
        numbers_ = np.searchsorted(self.classes_, y)
        known = self.classes_[np.minimum(numbers_, len(self.classes_) - 1)] == y
        if not known.all():
            raise ValueError(
                f"y has class {y[~known].tolist()[0]!r}, which the model does not know: {self.classes_.tolist()}"
            )
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has one class only, {self.classes_.tolist()[0]!r}: a classifier needs two or more classes"
            )
        return numbers_

    def _asked(self, groups: Groups, *, to_overall: bool = False) -> Asked:
        asked = all_of(self.constraints)
        for one in asked:
            if isinstance(one, BoundedGroupLoss) and one.loss in ("squared", "absolute"):
                raise ValueError(f"BoundedGroupLoss(loss={one.loss!r}) is for regressors; take 'zero_one', or None")
            if isinstance(one, MeanBelow) and len(self.classes_) > 2:
                raise ValueError(f"MeanBelow is for two classes, and y has {len(self.classes_)}: which would cost?")
        return Asked.of(asked, groups.names, list(self.classes_), (self._family, self.loss), 0.0, to_overall=to_overall)

    def _check_target(self, part: Part) -> None:
        if len(np.unique(part.y)) < 2:
            only = self.classes_.tolist()[int(part.y[0])]
            raise ValueError(
                f"y has one class only, {only!r}, in the {len(part)} rows before those that "
                "are held out: shuffle rows whose order means nothing, or set validation_fraction=0"
            )

    def _inner_setting(self) -> float:
        return 0.0

    def _set_coefficients(self, coef: np.ndarray, intercept: np.ndarray) -> None:
        self.coef_ = coef[None] if coef.ndim == 1 else coef.T
        self.intercept_ = np.atleast_1d(intercept)

    def _scores(self, X: Any) -> np.ndarray:
        found = super()._scores(X)
        return found[:, 0] if len(self.classes_) == 2 else found

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, *, sensitive_features: Any = None, sample_weight: Any = None
    ) -> ConstrainedClassifier:
        """Learn from further rows, in order. The same rows give the same coefficients however they are cut into calls.

        That is what `fit` does with epochs=1 and order="given". Constraints are kept as far as one pass can; `certify`
        tells on later rows.

        Args:
            X, y, sensitive_features, sample_weight: as in `fit`; groups may come as they come.
            classes: all labels there can be; must be given in the first call.
        """
        return self._learn_more(X, y, classes, sensitive_features, sample_weight)

    def _begin_classes(self, classes: Any) -> None:
        if classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit: all labels there can be")
        self.classes_ = np.unique(classes)

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores: (n,) for two classes, positive where the second one is predicted; else (n, classes)."""
        check_is_fitted(self)
        refuse_text(X)
        return self._scores(validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False))

    def predict(self, X: Any) -> np.ndarray:
        """Labels, (n,)."""
        scores = self.decision_function(X)
        return self.classes_[decisions(scores)]

    @available_if(lambda self: self.loss == "logistic")
    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, classes) probabilities; of the logistic loss alone."""
        scores = self.decision_function(X)
        return softmax(np, np.column_stack([np.zeros_like(scores), scores]) if scores.ndim == 1 else scores)

    @available_if(lambda self: self.loss == "logistic")
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Their logarithms."""
        return np.log(self.predict_proba(X))


class ConstrainedRegressor(RegressorMixin, Constrained):
    """A linear regression that keeps constraints, and says with what confidence it does; see `ConstrainedClassifier`.

    Args:
        loss: "squared", (y - ŷ)²; "huber", the same up to `epsilon` and linear beyond it; or "quantile".
        constraints: `BoundedGroupLoss`, `MeanBelow` or plain functions.
        epsilon: of Huber's loss, in standard deviations of y.
        quantile: that is predicted by the quantile loss.
        radius, algorithm, epochs, order, batch_size, validation_fraction, random_state: as for the classifier; here the
            norm of the coefficients is also in standard deviations of y.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 2))
    >>> ConstrainedRegressor().fit(X, X @ [1.0, -2.0]).coef_.round(2)
    array([ 1., -2.])
    """

    _families = ("regression",)

    def __init__(
        self,
        loss: str = "squared",
        constraints: Any = None,
        epsilon: float = 1.35,
        quantile: float = 0.5,
        radius: float = 10.0,
        algorithm: str | Algorithm = "auto",
        epochs: int | str = "auto",
        order: str = "shuffled",
        batch_size: int | str = "auto",
        validation_fraction: float | str = "auto",
        random_state: Any = None,
    ) -> None:
        self.loss = loss
        self.constraints = constraints
        self.epsilon = epsilon
        self.quantile = quantile
        self.radius = radius
        self.algorithm = algorithm
        self.epochs = epochs
        self.order = order
        self.batch_size = batch_size
        self.validation_fraction = validation_fraction
        self.random_state = random_state

    @property
    def _family(self) -> str:
        return "regression"

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.loss == "absolute":
            raise ValueError("loss must be 'squared', 'huber' or 'quantile', got 'absolute': that is quantile=0.5")
        check.number("epsilon", self.epsilon, above=0)
        check.number("quantile", self.quantile, above=0, below=1)

    def _encoded(self, y: np.ndarray, reset: bool) -> np.ndarray:
        return np.asarray(y, dtype=float)

    def _asked(self, groups: Groups, *, to_overall: bool = False) -> Asked:
        asked = all_of(self.constraints)
        for one in asked:
            if isinstance(one, Constraint) and (one.needs_decisions or getattr(one, "loss", None) == "zero_one"):
                raise ValueError(f"{one!r} is about decisions, and a regressor makes none: take ConstrainedClassifier")
        setting = self.epsilon * self._unit if self.loss == "huber" else self.quantile
        return Asked.of(asked, groups.names, [], ("regression", self.loss), setting, to_overall=to_overall)

    def _inner_setting(self) -> float:
        return self.epsilon if self.loss == "huber" else self.quantile

    def _set_coefficients(self, coef: np.ndarray, intercept: np.ndarray) -> None:
        self.coef_, self.intercept_ = coef, float(intercept)

    def partial_fit(
        self, X: Any, y: Any, *, sensitive_features: Any = None, sample_weight: Any = None
    ) -> ConstrainedRegressor:
        """Learn from further rows, in order; see `ConstrainedClassifier.partial_fit`. The first 256 rows tell the units
        of X and y."""
        return self._learn_more(X, y, None, sensitive_features, sample_weight)

    def predict(self, X: Any) -> np.ndarray:
        """Numbers, (n,)."""
        check_is_fitted(self)
        refuse_text(X)
        return self._scores(validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False))
