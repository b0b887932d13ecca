"""Whether a point is worse than the one that a run began at, and the long-run variance that tells chance from more."""

from __future__ import annotations

import numpy as np

BLOCKS, SURE = 3, 2.0  # that a length of blocks needs to count, and standard errors that are taken off what it shows


def allan_variances(series: np.ndarray) -> list[np.ndarray]:
    """Half the mean square difference of neighbouring block sums over their length, for blocks of 1, 2, 4, ... rows.

    Each (k,) for a series (n, k), and less two of its standard errors. For independent rows all lengths agree; where
    rows depend on each other it grows towards the long-run variance, the sum of all autocovariances.
    """
    sums = np.concatenate([np.zeros((1, series.shape[1])), np.cumsum(series - series.mean(axis=0), axis=0)])
    levels, length = [], 1
    while (blocks := len(series) // length) >= BLOCKS:
        differences = np.diff(sums[: blocks * length + 1 : length], n=2, axis=0)
        levels.append(np.mean(differences**2, axis=0) / (2 * length) / (1 + SURE * np.sqrt(2 / (blocks - 1))))
        length *= 2
    return levels


def long_run_variance(series: np.ndarray) -> np.ndarray:
    """The sum of all autocovariances of each column of (n, k), rather too little than too much, but the variance."""
    return np.max([np.var(series, axis=0), *allan_variances(series)], axis=0)


def loses(losses: np.ndarray, constraints: np.ndarray, start_losses: np.ndarray, start_constraints: np.ndarray) -> bool:
    """Whether x0 is better than a point: less loss by more than chance, and no constraint violated more.

    Args:
        losses, constraints: f(x, xi_t) (n,) and g(x, xi_t) (n, constraints) along samples at the point.
        start_losses, start_constraints: the same at x0.
    """
    more = losses - start_losses
    error = np.sqrt(long_run_variance(more[:, None])[0] / len(more))
    gained = np.maximum(constraints.mean(axis=0), 0) < np.maximum(start_constraints.mean(axis=0), 0)
    return bool(not more.mean() <= SURE * error and not gained.any())  # what is not a number loses
