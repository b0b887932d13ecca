"""fairlearn, where the task is a classifier: reductions over the whole table, whose answer is a randomised classifier.

It has no point x, so no Lagrangian gap. What it has is a loss, that of the mixture's probabilities, and the true
violation of what it limits, a difference of rates.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ergodrift.peers.rival import NotForThisError, Rival, Trial
from ergodrift.peers.task import Table

ROWS = 40_000  # of a table: each of fairlearn's rounds fits a classifier to all of them
LEAST = 1e-6  # probabilities are kept this far from 0 and 1, as scikit-learn's own log loss does


def _reduction(kind: str, table: Table) -> tuple[Any, Callable[[np.ndarray], np.ndarray]]:
    """A fitted fairlearn reduction, and the probabilities that it gives."""
    from fairlearn import reductions  # type: ignore[import-not-found]
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-not-found]

    kinds = {
        "demographic_parity": reductions.DemographicParity,
        "false_positive_rate": reductions.FalsePositiveRateParity,
    }
    if table.metric not in kinds:
        raise NotForThisError(f"fairlearn has no limit on {table.metric}")
    constraint, learner = kinds[table.metric](), LogisticRegression(max_iter=1000)
    fitted = getattr(reductions, kind)(learner, constraint)
    fitted.fit(table.X, table.y > 0, sensitive_features=table.sensitive)
    if kind == "GridSearch":
        return fitted, lambda X: fitted.predict_proba(X)[:, 1]

    def mixture(X: np.ndarray) -> np.ndarray:
        chosen = [(w, p) for w, p in zip(fitted.weights_, fitted.predictors_, strict=True) if w > 0]
        return np.sum([weight * predictor.predict_proba(X)[:, 1] for weight, predictor in chosen], axis=0)

    return fitted, mixture


def classifier(kind: str) -> Callable[[Trial], dict[str, Any]]:
    """A reduction at its defaults."""

    def run(trial: Trial) -> dict[str, Any]:
        table = trial.task.table
        if table is None:
            raise NotForThisError("the task is no classifier")
        table = _first(table)
        began = time.monotonic()
        _, probabilities = _reduction(kind, table)
        seconds = time.monotonic() - began
        loss, violation = _values(table, probabilities(table.X))
        row: dict[str, Any] = {
            "loss": [loss],
            "violation": [violation],
            "seconds": seconds,
            "setting": None,
            "note": f"violation is the difference of rates between groups; {len(table.y):,} rows, all at once",
            "later": {},
        }
        if table.later is not None:
            loss, violation = _values(table.later, probabilities(table.later.X))
            row["later"] = {"loss": loss, "violation": violation, "verdict": "rates"}
        return row

    return run


def _first(table: Table) -> Table:
    return table._replace(X=table.X[:ROWS], y=table.y[:ROWS], sensitive=table.sensitive[:ROWS])


def _values(table: Table, probabilities: np.ndarray) -> tuple[float, float]:
    """Log loss, and the largest difference between groups of the rate at which a row is called positive."""
    p = np.clip(probabilities, LEAST, 1 - LEAST)
    loss = -np.mean(np.where(table.y > 0, np.log(p), np.log1p(-p)))
    asked = table.y < 0 if table.metric == "false_positive_rate" else np.full(len(table.y), True)
    groups = [asked & (table.sensitive == group) for group in np.unique(table.sensitive)]
    rates = [np.mean(p[group] > 0.5) for group in groups if group.any()]
    return float(loss), float(max(rates) - min(rates))


CLASSIFIERS = tuple(
    Rival(
        f"fairlearn {kind}", "library", False, settings,
        f"fairlearn's {kind} over scikit-learn's LogisticRegression at its defaults; no point x, so no gap.",
        classifier(kind), ("fairlearn", "sklearn"), ("peers/classifiers",),
    )
    for kind, settings in [("ExponentiatedGradient", 1), ("GridSearch", 2)]
)  # fmt: skip
