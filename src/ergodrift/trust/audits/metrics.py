"""Metrics as ratios of means: those with names, and scikit-learn's and fairlearn's functions that are such ratios."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy

RATE, POSITIVE, ANY = (0.0, 1.0), (0.0, np.inf), (-np.inf, np.inf)
Values = Callable[[np.ndarray, np.ndarray], np.ndarray]
Metric = Callable[..., Any]


@dataclasses.dataclass(frozen=True, eq=False)
class RatioOfMeans:
    """A metric E[a] / E[b], with a and b functions of (y_true, y_pred) that have one number for each row.

    Args:
        numerator: a.
        denominator: b, nowhere negative; 1 for every row unless given.
        bounds: between which the ratio lies, where that is known.

    >>> late = RatioOfMeans(lambda y, p: p == 1, lambda y, p: y == 1, bounds=(0, 1))  # the true positive rate
    >>> late(np.array([1, 1, 0]), np.array([1, 0, 1]))
    0.5
    """

    numerator: Values
    denominator: Values | None = None
    bounds: tuple[float, float] = ANY

    def parts(
        self, name: str, y_true: np.ndarray, y_pred: np.ndarray, sample_weight: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """a and b of every row, (n,) each; a counts only where b does, so a rate needs no zeros in its numerator."""
        below = np.ones(len(y_true)) if self.denominator is None else _checked(name, self.denominator, y_true, y_pred)
        above = np.where(below != 0, _checked(name, self.numerator, y_true, y_pred), 0.0)
        if (below < 0).any():
            raise ValueError(f"the denominator of metric {name!r} is {below.min():g} in a row: it must not be negative")
        return (above, below) if sample_weight is None else (above * sample_weight, below * sample_weight)

    def __call__(self, y_true: np.ndarray, y_pred: np.ndarray, sample_weight: np.ndarray | None = None) -> float:
        above, below = self.parts("ratio", np.asarray(y_true), np.asarray(y_pred), sample_weight)
        return float(above.sum() / below.sum()) if below.sum() > 0 else np.nan


def _checked(name: str, function: Values, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.asarray(function(y_true, y_pred), dtype=float)
    if found.shape != (len(y_true),):
        raise ValueError(f"metric {name!r} must give one number a row, ({len(y_true)},), got shape {found.shape}")
    return found


def _squared(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    return np.square(y - p)


def _mean(values: Values, bounds: tuple[float, float] = POSITIVE) -> Callable[..., RatioOfMeans]:
    """A mean over all rows."""
    return lambda: RatioOfMeans(values, None, bounds)


def _rate(chosen: Callable[[np.ndarray, np.ndarray], np.ndarray], given: Values | None) -> Callable[..., RatioOfMeans]:
    """How often a row is `chosen`, of those `given`; both see which rows are and which are said to be positive."""

    def build(pos_label: Any = 1) -> RatioOfMeans:
        def above(y: np.ndarray, p: np.ndarray) -> np.ndarray:
            return chosen(y == pos_label, p == pos_label)

        def below(y: np.ndarray, p: np.ndarray) -> np.ndarray:
            return np.ones(len(y)) if given is None else given(y == pos_label, p == pos_label)

        return RatioOfMeans(above, below, RATE)

    return build


def _fbeta(beta: float = 1.0, pos_label: Any = 1) -> RatioOfMeans:
    """(1 + beta^2) TP / (beta^2 P + predicted)."""
    square = beta**2
    return RatioOfMeans(
        lambda y, p: (1 + square) * ((y == pos_label) & (p == pos_label)),
        lambda y, p: square * (y == pos_label) + (p == pos_label),
        RATE,
    )


def _pinball(alpha: float = 0.5) -> RatioOfMeans:
    return RatioOfMeans(lambda y, p: np.where(y >= p, alpha * (y - p), (1 - alpha) * (p - y)), None, POSITIVE)


def _log_loss(pos_label: Any = 1) -> RatioOfMeans:
    def loss(y: np.ndarray, p: np.ndarray) -> np.ndarray:
        p = p[:, 1] if p.ndim == 2 and p.shape[1] == 2 else p
        least = np.finfo(p.dtype if p.dtype.kind == "f" else float).eps
        return -np.log(np.clip(np.where(y == pos_label, p, 1 - p), least, 1 - least))

    return RatioOfMeans(loss, None, POSITIVE)


def _brier(pos_label: Any = 1) -> RatioOfMeans:
    return RatioOfMeans(lambda y, p: np.square((y == pos_label) - p), None, RATE)


# Under the names that they have in scikit-learn and fairlearn, each made from the options that its function takes.
RATIOS: dict[str, Callable[..., RatioOfMeans]] = {
    "accuracy_score": _mean(lambda y, p: y == p, RATE),
    "zero_one_loss": _mean(lambda y, p: y != p, RATE),
    "mean_squared_error": _mean(_squared),
    "mean_absolute_error": _mean(lambda y, p: np.abs(y - p)),
    "mean_absolute_percentage_error": _mean(
        lambda y, p: np.abs(y - p) / np.maximum(np.abs(y), np.finfo(np.float64).eps)
    ),
    "mean_squared_log_error": _mean(lambda y, p: _squared(np.log1p(y), np.log1p(p))),
    "mean_pinball_loss": _pinball,
    "mean_prediction": _mean(lambda y, p: p, ANY),
    "log_loss": _log_loss,
    "brier_score_loss": _brier,
    "selection_rate": _rate(lambda y, p: p, None),
    "base_rate": _rate(lambda y, p: y, None),
    "true_positive_rate": _rate(lambda y, p: p, lambda y, p: y),
    "false_negative_rate": _rate(lambda y, p: ~p, lambda y, p: y),
    "false_positive_rate": _rate(lambda y, p: p, lambda y, p: ~y),
    "true_negative_rate": _rate(lambda y, p: ~p, lambda y, p: ~y),
    "precision_score": _rate(lambda y, p: y, lambda y, p: p),
    "recall_score": _rate(lambda y, p: p, lambda y, p: y),
    "jaccard_score": _rate(lambda y, p: y & p, lambda y, p: y | p),
    "f1_score": lambda pos_label=1: _fbeta(1.0, pos_label),
    "fbeta_score": _fbeta,
}
SHORT = {
    "accuracy": "accuracy_score",
    "error_rate": "zero_one_loss",
    "recall": "recall_score",
    "precision": "precision_score",
    "f1": "f1_score",
    "jaccard": "jaccard_score",
    "brier_score": "brier_score_loss",
    "mse": "mean_squared_error",
    "mae": "mean_absolute_error",
    "roc_auc": "roc_auc_score",
}
# Those that ask which label counts as positive.
OF_CLASSES = {
    name for name in RATIOS if not name.startswith("mean_") and name not in ("accuracy_score", "zero_one_loss")
}


@dataclasses.dataclass(frozen=True)
class RocAuc:
    """The area under the ROC curve of scores, for two classes."""

    pos_label: Any = 1

    def __call__(self, y_true: np.ndarray, y_pred: np.ndarray) -> float:
        return placements(y_true == self.pos_label, y_pred)[0]


def is_auc(metric: Metric) -> bool:
    """Whether a function is the area under the ROC curve, as it is called without options."""
    return isinstance(metric, RocAuc) or getattr(metric, "__name__", "") == "roc_auc_score"


def placements(y_true: np.ndarray, scores: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """The area, what each row adds to its error, (n,), and which rows are positive: those of the larger label."""
    labels = np.unique(y_true)
    positive = y_true == labels[-1]
    if len(labels) > 2 or scores.ndim != 1:
        raise ValueError("the area under the ROC curve takes two labels and one score a row")
    number, ours = len(y_true), int(positive.sum())
    if ours in (0, number):
        return np.nan, np.zeros(number), positive
    ranks, others = scipy.stats.rankdata(scores), number - ours
    within = np.empty(number)
    within[positive], within[~positive] = (scipy.stats.rankdata(scores[part]) for part in (positive, ~positive))
    share = np.where(positive, (ranks - within) / others, 1 - (ranks - within) / ours)  # of the other class, beaten
    area = float(share[positive].mean())
    return area, (share - area) / np.where(positive, ours, others), positive


def named(name: str, y_true: np.ndarray, y_pred: np.ndarray, pos_label: Any) -> RatioOfMeans | RocAuc:
    """The metric of this name; which label is positive is given, or 1 of 0 and 1 or of -1 and 1."""
    key = SHORT.get(name, name)
    if key == "roc_auc_score":
        return RocAuc(positive_label(name, y_true, y_true, pos_label))
    if key not in RATIOS:
        known = ", ".join(sorted({*RATIOS, *SHORT, "roc_auc_score"}))
        raise ValueError(f"metrics must be functions, RatioOfMeans or names among {known}; got {name!r}")
    if key not in OF_CLASSES:
        return RATIOS[key]()
    scores = key in ("log_loss", "brier_score_loss")
    return RATIOS[key](pos_label=positive_label(name, y_true, y_true if scores else y_pred, pos_label))


def positive_label(name: str, y_true: np.ndarray, y_pred: np.ndarray, pos_label: Any) -> Any:
    """`pos_label`, which must occur; 1 unless given, where labels are 0 and 1 or -1 and 1."""
    labels = {*np.unique(y_true).tolist(), *np.unique(y_pred).tolist()}
    shown = ", ".join(map(repr, sorted(labels, key=str)[:5])) + (", ..." if len(labels) > 5 else "")
    if pos_label is None:
        if labels <= {0, 1} or labels <= {-1, 1}:
            return 1
        raise ValueError(
            f"metric {name!r} needs pos_label: y_true and y_pred hold {shown}, neither 0 and 1 nor -1 and 1"
        )
    if pos_label not in labels:
        raise ValueError(f"pos_label={pos_label!r} is in neither y_true nor y_pred, which hold {shown}")
    return pos_label


def recognised(metric: Metric) -> RatioOfMeans | None:
    """What a function of scikit-learn or fairlearn, or a `functools.partial` of one, is as a ratio of means; None where
    it is none that we know. Whether values agree is for the caller to see."""
    options: Mapping[str, Any] = {}
    if isinstance(metric, functools.partial):
        if metric.args:
            return None
        metric, options = metric.func, metric.keywords
    build = RATIOS.get(getattr(metric, "__name__", ""))
    kept = {key: value for key, value in options.items() if key != "zero_division"}
    try:
        return None if build is None else build(**{k: v for k, v in kept.items() if (k, v) != ("pos_label", None)})
    except TypeError:  # an option that makes another metric of it, such as average="macro"
        return None


def name_of(metric: Metric | str) -> str:
    """As it is shown: the name of a function, as in fairlearn."""
    if isinstance(metric, str):
        return metric
    inner = metric.func if isinstance(metric, functools.partial) else metric
    return getattr(inner, "__name__", None) or ("ratio" if isinstance(metric, RatioOfMeans) else type(inner).__name__)
