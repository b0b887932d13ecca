"""Whether a dependent series keeps its level and its spread, and has no cycle: trends, steps and lines in the spectrum
against the noise that is left."""

from __future__ import annotations

import numpy as np
import scipy

from ergodrift.trust.autocorrelation import integrated_time

POINTS = 256  # means of consecutive stretches that the test looks at
STEPS = np.arange(1, 16) / 16  # where a step is looked for
CRITICAL = 7.0  # the largest of 16 scores; a stationary series of 50 mixing times exceeds it about once in 500 (tests)

BESIDE = 8  # frequencies on either side that a line in the spectrum is compared with, its neighbours left out
WITHOUT = "the figures are about what is left without it"
FALSE = 1e-3  # how often a series without a cycle may be said to have one
LINES = 24  # most that are taken off: a daily cycle and its overtones, a weekly one and its own


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


def _step(y: np.ndarray) -> int:
    """Where a step fits a series best, in least squares: looked for on 1/16 of it, a step some samples off would leave
    a stretch that looks like slow mixing."""
    n = len(y)
    before = np.arange(1, n)
    return int(before[np.argmax(np.abs(np.cumsum(y - y.mean())[:-1]) / np.sqrt(before * (n - before)))])


def cycle(y: np.ndarray) -> float | None:
    """The period of a line in the spectrum of a series (n,), where there is one.

    Where the spectrum is smooth, a frequency's power over the mean of 2 `BESIDE` others near it is F-distributed with
    2 and 4 `BESIDE` degrees of freedom: P(F > q) = (1 + q / m)^-m, m = 2 `BESIDE`; the largest of n/2 is judged. A
    strong line between two of Fourier's frequencies covers those beside it: it is looked for under a taper, too, where
    neighbours depend on each other and count for half.
    """
    centred = y - y.mean()
    return _line(centred, apart=1, degrees=2 * BESIDE) or _line(centred * np.hanning(len(y)), apart=3, degrees=BESIDE)


def _line(y: np.ndarray, apart: int, degrees: int) -> float | None:
    """The period at which the periodogram stands out from `BESIDE` ordinates on either side, `apart` of them left."""
    n = len(y)
    power = np.square(np.abs(np.asarray(scipy.fft.rfft(y))))[1 : (n + 1) // 2]
    if len(power) < 8 * BESIDE:
        return None
    sums = np.concatenate([[0.0], np.cumsum(power)])
    at = np.arange(BESIDE + apart, len(power) - BESIDE - apart)
    beside = sums[at + BESIDE + apart + 1] - sums[at - BESIDE - apart] - (sums[at + apart + 1] - sums[at - apart])
    ratio = power[at] * 2 * BESIDE / np.maximum(beside, 1e-12 * sums[-1])
    best = int(np.argmax(ratio))
    limit = degrees * ((2 * len(power) / FALSE) ** (1 / degrees) - 1)
    return n / (at[best] + 1) if ratio[best] > limit else None


def without_cycle(y: np.ndarray, period: float) -> np.ndarray:
    """A series (n,) without the line of about this period, in least squares.

    The frequency between two of Fourier's is read off the three ordinates around the line (Jacobsen and Kootsookos
    2007); an amplitude and a phase that may change linearly make up for what is still missing from it.
    """
    n = len(y)
    nearest = round(n / period)
    before, here, after = np.asarray(scipy.fft.rfft(y - y.mean()))[nearest - 1 : nearest + 2]
    shift = float(np.clip(((before - after) / (2 * here - before - after)).real, -1, 1))
    time = (np.arange(n) - (n - 1) / 2) / n
    phase = 2 * np.pi * (nearest + shift) * time
    waves = np.column_stack([np.cos(phase), np.sin(phase)])
    basis = np.hstack([waves, time[:, None] * waves])
    return y - basis @ np.linalg.lstsq(basis, y - y.mean(), rcond=None)[0]


def without_cycles(y: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """A series without the lines in its spectrum, and their periods, that of the largest wave first."""
    found: list[tuple[float, float]] = []
    moved = np.ptp(y)
    while len(found) < LINES and np.ptp(y) > 1e-9 * moved and (period := cycle(y)):
        rest = without_cycle(y, period)
        found.append((float(np.var(y) - np.var(rest)), period))
        y = rest
    return y, [period for _, period in sorted(found, reverse=True)]


def without_change(y: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, str]:
    """A series (n,) without the trend or the step that it follows most, by its scores (16,), and what that was."""
    if np.argmax(scores) == 0:
        line = shapes(len(y))[0]
        return y - line * (line @ y / len(y)), "drifts: its level follows a trend"
    place = _step(y)
    rest = np.concatenate([y[:place] - y[:place].mean(), y[place:] - y[place:].mean()])
    return rest, f"changes regime near sample {place:,}: its level differs after it"


def detrend(names: list[str], series: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """The columns without a trend or a step in their level and without cycles, where they have any, and a sentence for
    each; a spread that changes is said too, and left as it is."""
    warnings, rest = [], series.copy()
    scores = change_scores(series)
    for column in np.flatnonzero(scores.max(axis=0) > CRITICAL):
        rest[:, column], kind = without_change(series[:, column], scores[:, column])
        _refuse_constant(f"{names[column]} {kind}", rest[:, column], series[:, column])
        warnings.append(f"{names[column]} {kind}; {WITHOUT}: look at the path first")
    scores = change_scores(np.square(rest - rest.mean(axis=0)))
    for column in np.flatnonzero(scores.max(axis=0) > CRITICAL):
        warnings.append(f"{names[column]} changes its spread along the way: look at the path")
    for column, name in enumerate(names):
        rest[:, column], periods = without_cycles(rest[:, column])
        if periods:
            others = f" (and {len(periods) - 1} more)" if len(periods) > 1 else ""
            said = f"{name} has a cycle of about {periods[0]:.4g} samples{others}"
            _refuse_constant(said, rest[:, column], series[:, column])
            warnings.append(f"{said}, which does not die out as mixing does; {WITHOUT}")
    return rest, warnings


def _refuse_constant(said: str, rest: np.ndarray, series: np.ndarray) -> None:
    if np.ptp(rest) <= 1e-9 * np.ptp(series):
        raise ValueError(f"{said}, and nothing else moves: this says nothing about mixing; record for longer")
