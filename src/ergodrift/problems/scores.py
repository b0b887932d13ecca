"""Logistic regression whose mean score may hardly differ between groups: three tables, and agents on a graph, share it.

Minimise the mean of log(1 + exp(-y_i a_i.x)) over ||x|| <= radius, subject to |mean of c_ik a_i.x| <= limit for each
contrast k: weights c_ik that make it a difference of mean scores (Zafar et al. 2019 have the covariance).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ergodrift.geometry import Ball
from ergodrift.problem import LinearModel, Rows


class Scores(NamedTuple):
    """Rows for a classifier.

    Attributes:
        X: (n, d) features, an intercept in the first column.
        y: (n,) labels, -1 or 1.
        contrasts: (n, k).
    """

    X: np.ndarray
    y: np.ndarray
    contrasts: np.ndarray

    def cut(self, rows: slice | np.ndarray) -> Scores:
        return Scores(self.X[rows], self.y[rows], self.contrasts[rows])


def between(group: np.ndarray) -> np.ndarray:
    """(n, 1): the mean over the group minus the mean over all others."""
    share = group.mean()
    return np.where(group, 1 / share, -1 / (1 - share))[:, None]


def from_all(groups: np.ndarray, names: np.ndarray) -> np.ndarray:
    """(n, k): the mean over each of the named groups minus the mean over all."""
    member = groups[:, None] == names[None]
    return member / member.mean(axis=0) - 1


def model_of(radius: float) -> LinearModel:
    """The problem, with x one vector."""
    return LinearModel("logistic", Ball(radius))


def batches(model: LinearModel, rows: Scores, size: int, limit: float) -> Rows:
    """Consecutive rows, `size` to a sample; what is left over at the end is dropped."""
    count = len(rows.y) // size
    X = rows.X[: count * size].reshape(count, size, -1)
    y = rows.y[: count * size].reshape(count, size)
    contrasts = rows.contrasts[: count * size].reshape(count, size, -1)
    return states(model, list(X), list(y), list(contrasts), limit)


def states(
    model: LinearModel, X: list[np.ndarray], y: list[np.ndarray], contrasts: list[np.ndarray], limit: float
) -> Rows:
    """One sample for each entry of the lists, of as many rows as it has."""
    means = np.stack([c.T @ a / len(a) for c, a in zip(contrasts, X, strict=True)])
    normals = np.concatenate([means, -means], axis=1)
    return model.data(X, y, normals=normals, limits=np.full(normals.shape[1], limit))


def z_scores(columns: np.ndarray, of: np.ndarray | None = None) -> np.ndarray:
    """Columns minus their mean, over their standard deviation; of other rows where `of` is given."""
    known = columns if of is None else of
    return (columns - known.mean(axis=0)) / known.std(axis=0)
