"""Losses of a row's score, with their slopes: for NumPy and JAX alike, so that what is learned is what is reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ergodrift.types import PyTree

SHARPNESS = 4.0  # of the sigmoid that stands for a decision, in units of the score: 1/(1 + exp(-4 s))


class Loss(NamedTuple):
    """A convex loss of scores (..., ) or (..., K) and targets (...).

    Attributes:
        value: (xp, scores, y, setting) -> (...), with xp NumPy or JAX's.
        slope: likewise the derivative by the scores, in the shape of the scores.
    """

    value: Callable[[Any, PyTree, PyTree, PyTree], PyTree]
    slope: Callable[[Any, PyTree, PyTree, PyTree], PyTree]


def _sigmoid(xp: Any, s: PyTree) -> PyTree:
    return 0.5 * (1 + xp.tanh(0.5 * s))


def _picked(xp: Any, scores: PyTree, y: PyTree) -> PyTree:
    """(..., K) with 1 at the row's own class."""
    return (y[..., None] == _numbers(xp, scores, y.dtype)).astype(scores.dtype)


def _numbers(xp: Any, scores: PyTree, kind: Any) -> PyTree:
    return xp.arange(scores.shape[-1], dtype=kind).reshape(*(1,) * (scores.ndim - 1), -1)


def _logsumexp(xp: Any, s: PyTree) -> PyTree:
    top = s.max(axis=-1, keepdims=True)
    return xp.log(xp.exp(s - top).sum(axis=-1)) + top[..., 0]


def softmax(xp: Any, s: PyTree) -> PyTree:
    """Probabilities (..., K)."""
    raised = xp.exp(s - s.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def _rivals(xp: Any, s: PyTree, y: PyTree) -> PyTree:
    """Scores with 1 added for all classes but the row's own (Crammer and Singer 2001)."""
    return s + 1 - _picked(xp, s, y)


def _best(xp: Any, s: PyTree) -> PyTree:
    best = s.argmax(axis=-1)[..., None]
    return (best == _numbers(xp, s, best.dtype)).astype(s.dtype)


# Of two classes y is -1 or 1, of several their number.
BINARY = {
    "logistic": Loss(
        lambda xp, s, y, _: xp.logaddexp(0.0, -y * s),
        lambda xp, s, y, _: -y * _sigmoid(xp, -y * s),
    ),
    "hinge": Loss(
        lambda xp, s, y, _: xp.maximum(1 - y * s, 0.0),
        lambda xp, s, y, _: xp.where(y * s < 1, -y, 0.0 * y),
    ),
}
MULTICLASS = {
    "logistic": Loss(
        lambda xp, s, y, _: _logsumexp(xp, s) - (s * _picked(xp, s, y)).sum(axis=-1),
        lambda xp, s, y, _: softmax(xp, s) - _picked(xp, s, y),
    ),
    "hinge": Loss(
        lambda xp, s, y, _: _rivals(xp, s, y).max(axis=-1) - (s * _picked(xp, s, y)).sum(axis=-1),
        lambda xp, s, y, _: _best(xp, _rivals(xp, s, y)) - _picked(xp, s, y),
    ),
}
# The setting is the threshold of Huber's loss, or the quantile.
REGRESSION = {
    "squared": Loss(lambda xp, s, y, _: (s - y) ** 2, lambda xp, s, y, _: 2 * (s - y)),
    "huber": Loss(
        lambda xp, s, y, e: xp.where(abs(s - y) <= e, (s - y) ** 2, 2 * e * abs(s - y) - e * e),
        lambda xp, s, y, e: 2 * xp.clip(s - y, -e, e),
    ),
    "quantile": Loss(
        lambda xp, s, y, q: xp.maximum(q * (y - s), (q - 1) * (y - s)),
        lambda xp, s, y, q: xp.where(y > s, -q, 1 - q),
    ),
    "absolute": Loss(lambda xp, s, y, _: abs(s - y), lambda xp, s, y, _: xp.sign(s - y)),
}


FAMILIES = {"binary": BINARY, "multiclass": MULTICLASS, "regression": REGRESSION}


def decisions(scores: np.ndarray) -> np.ndarray:
    """The number of the class that is predicted, (n,)."""
    return (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)


def smooth_decision(scores: np.ndarray, cls: int) -> tuple[np.ndarray, np.ndarray]:
    """The sigmoid (or softmax) that stands for "class `cls` is predicted", and its slope in the shape of the scores."""
    if scores.ndim == 1:
        sign = 1.0 if cls == 1 else -1.0
        p = _sigmoid(np, SHARPNESS * sign * scores)
        return p, SHARPNESS * sign * p * (1 - p)
    p = softmax(np, SHARPNESS * scores)
    own = p[:, cls]
    slope = -SHARPNESS * own[:, None] * p
    slope[:, cls] += SHARPNESS * own
    return own, slope
