"""Logistic regression under a fairness constraint, on data spread over the states of a chain."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ergodrift._core import check
from ergodrift.geometry import Ball
from ergodrift.problem import LinearModel, Rows


class FairnessBounds(NamedTuple):
    """Bounds that hold for every state and every point of the ball: F, G and H of the paper, by sample."""

    loss_grad: float
    constraint_jac: float
    constraints: float

    def delta(self, diameter: float) -> float:
        """S_0 of the paper's experiment, F^2/4 + 2 R^2 G^2 + 2 H^2 (Kim and Lee, section 5)."""
        return self.loss_grad**2 / 4 + 2 * diameter**2 * self.constraint_jac**2 + 2 * self.constraints**2


def fairness(
    X: ArrayLike, y: ArrayLike, z: ArrayLike, state: ArrayLike, *, limit: float = 0.5, radius: float = 5.0
) -> tuple[LinearModel, Rows, FairnessBounds]:
    """Logistic regression whose scores may hardly covary with a sensitive feature (Zafar et al. 2019; section 5).

    Minimise the mean of log(1 + exp(-y_i (w.x_i + b))) over ||(w, b)|| <= radius, subject to
    -c <= mean of (z_i - z̄)(w.x_i + b) <= c, where state j shows the means over its own rows and z̄ is the mean over all.

    Args:
        X: features, (n, d).
        y: labels, -1 or 1.
        z: the sensitive feature of each row.
        state: 0..S-1, which state holds the row; each holds at least one.
        limit: c > 0.
        radius: of the ball that (w, b) lies in.

    Returns:
        The problem, with x = (w, b) in one vector; the data for a `MarkovSource`, with a leading axis of states; and
        bounds on gradients and constraints.

    >>> import ergodrift as ed
    >>> from ergodrift.problems import synthetic
    >>> problem, data, bounds = fairness(*synthetic(points=50))
    >>> source = ed.MarkovSource(ed.MarkovChain(np.full((3, 3), 1 / 3)), data)
    >>> ed.solve_reference(problem, source, np.zeros(3)).x.shape
    (3,)
    """
    X, y, z, state = (np.asarray(array) for array in (X, y, z, state))
    count = len(X)
    if X.ndim != 2 or count == 0:
        raise ValueError(f"X must have shape (rows, features) with at least one row, got {X.shape}")
    for name, array in [("y", y), ("z", z), ("state", state)]:
        if array.shape != (count,):
            raise ValueError(f"{name} must have one entry for each of the {count} rows of X, got shape {array.shape}")
    for name, array in [("X", X), ("y", y), ("z", z)]:
        check.finite(name, array)
    if not np.isin(y, (-1, 1)).all():
        raise ValueError(f"y must hold -1 and 1 only, got {np.unique(y)[:5]}")
    if not np.issubdtype(state.dtype, np.integer) or state.min() != 0 or len(np.unique(state)) != state.max() + 1:
        raise ValueError(f"state must hold 0, 1, ..., S-1, each at least once, got {np.unique(state)[:5]}")
    limit, radius = check.number("limit", limit, above=0), check.number("radius", radius, above=0)

    features = np.hstack([X, np.ones((count, 1))])
    centred = (z - z.mean())[:, None] * features
    members = [np.flatnonzero(state == j) for j in range(state.max() + 1)]
    covariance = np.stack([centred[held].mean(axis=0) for held in members])
    model = LinearModel("logistic", Ball(radius))
    data = model.data(
        [features[held] for held in members],
        [y[held] for held in members],
        normals=np.stack([covariance, -covariance], axis=1),  # g_j and h_j: the covariance and its negative
        limits=[limit, limit],
    )
    steepest = max(np.linalg.norm(features[held], axis=1).mean() for held in members)
    slope = np.linalg.norm(covariance, axis=1).max()
    return model, data, FairnessBounds(float(steepest), float(slope), float(radius * slope + limit))
