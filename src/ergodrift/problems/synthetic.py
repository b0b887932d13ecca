"""Synthetic data for fair classification, spread over the states of a chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import multivariate_normal

from ergodrift._core import check

MEAN = np.array([2.0, 2.0])
COVARIANCES = {1.0: np.array([[5.0, 1.0], [1.0, 5.0]]), -1.0: np.array([[10.0, 1.0], [1.0, 3.0]])}


class SyntheticData(NamedTuple):
    """Rows of a classification problem: features (n, 2), labels in {-1, 1}, sensitive feature in {0, 1}, state."""

    X: np.ndarray
    y: np.ndarray
    z: np.ndarray
    state: np.ndarray


def synthetic(
    seed: int = 0,
    *,
    angles: Sequence[float] = (-30.0, 0.0, 30.0),
    scale: float = 2.0,
    phi: float = 90.0,
    points: int = 1000,
) -> SyntheticData:
    """The clusters of Zafar et al. (2019), one pair per state, with the means scaled and rotated.

    A state has two clusters of `points` rows: label +1 around scale (2, 2) with covariance [[5, 1], [1, 5]], label -1
    around -scale (2, 2) with covariance [[10, 1], [1, 3]]; the pair of means is rotated by the state's angle, the
    covariances are not. The sensitive feature of a row x is 1 with probability p(x'|+1) / (p(x'|+1) + p(x'|-1)), with
    the densities of its own state's clusters and x' = x rotated by phi.

    Args:
        seed: fixes the data.
        angles: rotation of the means in each state, in degrees.
        scale: factor on the means; 1 with angles 0 is as published.
        phi: rotation in the sensitive feature, in degrees; smaller is less fair.
        points: rows in each cluster.

    >>> data = synthetic(points=5)
    >>> data.X.shape, sorted(set(data.state.tolist()))
    ((30, 2), [0, 1, 2])
    """
    points = check.integer("points", points, at_least=2)
    rng = np.random.default_rng(check.integer("seed", seed, at_least=0))
    X, y, z, states = [], [], [], []
    for state, angle in enumerate(angles):
        mean = _rotation(angle) @ (check.number("scale", scale, above=0) * MEAN)
        normal: Any = multivariate_normal  # scipy's stubs take the covariance for a number
        clusters = {label: normal(label * mean, cov) for label, cov in COVARIANCES.items()}
        rows = np.concatenate([rng.multivariate_normal(c.mean, c.cov, size=points) for c in clusters.values()])
        turned = rows @ _rotation(phi).T
        odds = np.exp(clusters[-1.0].logpdf(turned) - clusters[1.0].logpdf(turned))
        X.append(rows)
        y.append(np.repeat(list(clusters), points))
        z.append((rng.random(len(rows)) < 1 / (1 + odds)).astype(float))
        states.append(np.full(len(rows), state))
    return SyntheticData(*(np.concatenate(parts) for parts in (X, y, z, states)))


def _rotation(degrees: float) -> np.ndarray:
    c, s = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    return np.array([[c, -s], [s, c]])
