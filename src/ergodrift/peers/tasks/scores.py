"""The optimum of a logistic regression with parity of scores (`ergodrift.problems.scores`), in NumPy and by SLSQP."""

from __future__ import annotations

import numpy as np

from ergodrift.peers.task import Optimum
from ergodrift.peers.tasks.solvers import slsqp
from ergodrift.problems.scores import Scores


def optimum(rows: Scores, limit: float, radius: float, weights: np.ndarray | None = None) -> Optimum:
    """The optimum over all rows, with equal weights unless given, in NumPy and by SLSQP."""
    share = np.full(len(rows.y), 1 / len(rows.y)) if weights is None else weights
    signed = rows.X * rows.y[:, None]
    means = (rows.contrasts * share[:, None]).T @ rows.X
    normals = np.vstack([means, -means])

    def loss(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        margins = signed @ x
        slopes = -share / (1 + np.exp(margins))
        return np.array([share @ np.logaddexp(0, -margins)]), (slopes @ signed)[None]

    def constraints(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return normals @ x - limit, normals

    return slsqp(loss, constraints, np.zeros(rows.X.shape[1]), radius)
