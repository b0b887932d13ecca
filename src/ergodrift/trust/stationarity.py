"""Whether a dependent series keeps its level and its spread: trends and steps against the noise that is left."""

from __future__ import annotations

import numpy as np

from ergodrift.trust.autocorrelation import integrated_time

POINTS = 256  # means of consecutive stretches that the test looks at
STEPS = np.arange(1, 16) / 16  # where a step is looked for
CRITICAL = 7.0  # the largest of 16 scores; a stationary series of 50 mixing times exceeds it about once in 500 (tests)


def shapes(n: int) -> np.ndarray:
    """A line, and a step at each place: (16, n), of mean 0 and mean square 1."""
    time = (np.arange(n) + 0.5) / n
    found = np.stack([time, *(time > place for place in STEPS)]).astype(float)
    found -= found.mean(axis=1, keepdims=True)
    return found / np.sqrt(np.mean(found**2, axis=1, keepdims=True))


def change_scores(series: np.ndarray) -> np.ndarray:
    """How far each column of (n, k) follows each shape, in standard errors: (16, k).

    A shape's least-squares coefficient over the standard error that what is left without it gives, with its integrated
    autocorrelation time: |c| sqrt(n) / sqrt(variance x time).
    """
    length = max(len(series) // POINTS, 1)
    count = len(series) // length
    y = series[: count * length].reshape(count, length, -1).mean(axis=1)
    y = y - y.mean(axis=0)
    basis = shapes(count)
    coefficient = basis @ y / count  # (16, k)
    rest = y[:, None, :] - basis.T[:, :, None] * coefficient
    time = np.maximum(integrated_time(rest, "sokal"), 1.0)
    return np.abs(coefficient) * np.sqrt(count) / np.sqrt(np.maximum(rest.var(axis=0) * time, 1e-300))


def levelled(names: list[str], series: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """The columns with a trend or a step in their level taken off where there is one, and a plain sentence for each.

    A spread that changes is said too, and left as it is.
    """
    warnings, rest = [], series.copy()
    scores, n = change_scores(series), len(series)
    for column in np.flatnonzero(scores.max(axis=0) > CRITICAL):
        best = int(np.argmax(scores[:, column]))
        shape = shapes(n)[best]
        rest[:, column] -= shape * (shape @ series[:, column] / n)
        if best == 0:
            kind = "drifts: its level follows a trend"
        else:
            kind = f"changes regime near sample {round(STEPS[best - 1] * n):,}: its level differs after it"
        warnings.append(
            f"{names[column]} {kind}; the figures are about what is left without it: look at the path first"
        )
    scores = change_scores(np.square(rest - rest.mean(axis=0)))
    for column in np.flatnonzero(scores.max(axis=0) > CRITICAL):
        warnings.append(f"{names[column]} changes its spread along the way: look at the path")
    return rest, warnings
