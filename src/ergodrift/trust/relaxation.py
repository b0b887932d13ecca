"""The relaxation time of a series: how slowly its slowest visible mode decays, with an interval.

Rational spectra of one or two poles and up to two zeros are fitted to the periodogram by Whittle's likelihood, on the
band of frequencies around the slowest mode in which one of them fits. Autocorrelations that are sums of decaying
exponentials, oscillate, or were smoothed by a moving average all have such spectra there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from ergodrift.trust.rational import ANGLES, SHARES, Band, angle, fitted, log_spectrum, starts
from ergodrift.trust.spectrum import Spectrum, transformed

KINDS = {"one": np.zeros(1), "two": SHARES, "pair": np.log(ANGLES / (1 - ANGLES))}
SIZES, CANDIDATES, STEPS = 28, 3, 14  # relaxation times a search starts from, how many are followed, and how far
CHOSEN, ADMITTED = 4.0, 2.9  # what a parameter must gain in deviance to be in the estimate, and in the interval
LOOSER, LOOSEST = 1.15, 10.0  # data that are not Gaussian: what all intervals, and at most, are widened by
BLOCKS, LONG = (8, 50), 8  # blocks, of so many relaxation times, that the spread of the score is seen from
LOCAL = 15.0  # how far from its mode, in multiples of 1 / tau, frequencies are looked at
NARROWER, BINS = 0.6, 20  # a band that no model fits becomes so much narrower, down to so many bins
ONCE = 1e-3  # how often a model that is true is said not to fit
OFFSETS = np.array([0.5, 1, 1.5, 2, 2.5, 3, 4, 5.5, 8, 12, 20, 40])  # standard errors at which the profile is taken


class Relaxation(NamedTuple):
    """tau = 1 / (1 - |lambda|) with its interval, the frequency at which the mode turns, and whether the model fits."""

    tau: float
    lower: float
    upper: float
    frequency: float
    fits: bool


class Fits(NamedTuple):
    """The best fit of each model: parameters (models, 4), whether a pair, which were free, and the deviance."""

    v: np.ndarray
    pair: np.ndarray
    free: np.ndarray
    deviance: np.ndarray

    def at(self, rows: np.ndarray) -> Fits:
        return Fits(*(part[rows] for part in self))

    def cost(self, each: float) -> np.ndarray:
        """What a model costs: its parameters; a pair may lie at some tau angles, and chance finds it at one of them."""
        places = np.exp(np.abs(self.v[:, 0])) * angle(self.v, self.pair) / np.pi
        return each * self.free.sum(axis=1) + np.where(self.pair, 2 * np.log1p(places), 0.0)


def relaxation(series: np.ndarray, confidence: float = 0.95) -> Relaxation:
    """tau = 1 / (1 - |lambda|) of the slowest visible mode of one series (n,), with an interval.

    The autocorrelation is taken to be a sum of terms lambda^k, or lambda^k cos(theta k + phi), but for its first few
    lags; a mode is visible if it makes up half of the power at its own frequency. Spectra with one pole, two, or a
    pair, and up to two zeros (ARMA(1, 0) to ARMA(2, 2); on a band, anything that looks like it there) are fitted by
    Whittle's likelihood (Whittle 1953; Dzhaparidze 1986), and compared by an information criterion (Akaike 1974). The
    interval holds all tau whose profile likelihood, in any model that the data do not clearly speak against, is near
    the best.
    Its quantile is widened by as much as the score varies more, from block to block, than it would for Gaussian data
    (Godambe 1960; White 1982).

    Independent data have 1, and so have those whose correlation ends after a lag or two. A longer moving average of
    independent data has no mode; what is found is the exponential whose spectrum bends alike at 0, which for a plain
    average of L has tau (tau - 1) = (L^2 - 1) / 12.
    """
    n, transform = len(series), transformed(series)
    spectrum = Spectrum.of(transform, n)
    low, high, last = 0.0, np.pi, False
    while True:
        band = Band(spectrum.within(low, high), low, high, n)
        found = _fit(band)
        errors, directions = _directions(found, band)
        looser, best, before = 1.0, -1, -2
        for _ in range(3):
            before, best = best, int(np.argmin(found.deviance / looser + found.cost(CHOSEN)))
            if best == before:
                break
            looser = (
                LOOSER * spectrum.spread * _looseness(found.at(np.array([best])), directions[best], band, transform)
            )
        chosen = found.at(np.array([best]))
        tau, centre = float(np.exp(abs(chosen.v[0, 0]))), float(angle(chosen.v, chosen.pair)[0])
        fits = _fits(chosen, looser, band)
        width = NARROWER * (high - low)
        if fits:
            # Once more close to the mode: what is far off may fit well enough and still pull the mode its way.
            sides = 1 if centre in (0.0, np.pi) else 2
            width = min(LOCAL * sides / tau, (high - low) * (0.75 if high - low < np.pi else 1))
        start = float(np.clip(centre - width / 2, 0, max(np.pi - width, 0)))
        start = 0.0 if centre == 0 else np.pi - width if centre == np.pi else start
        stop = min(start + width, np.pi) if start + width < np.pi - 1e-9 else np.pi
        if last or width >= high - low or len(spectrum.within(start, stop).size) < BINS:
            break
        low, high, last = start, stop, fits
    least = np.min(found.deviance + found.cost(ADMITTED)) + looser * scipy.stats.chi2.ppf(confidence, 1)
    limit = least - found.cost(ADMITTED)
    kept = np.flatnonzero(found.deviance <= limit)
    z = _ends(found.at(kept), errors[kept], limit[kept], band)
    taus = np.exp(np.abs(np.append(z, chosen.v[0, 0])))
    crosses = (z < 0).any() and (z > 0).any()  # then lambda = 0 is among what is kept
    return Relaxation(tau, 1.0 if crosses else float(taus.min()), float(taus.max()), centre, fits)


def _fit(band: Band) -> Fits:
    """The best fit of every model on a band."""
    z = np.linspace(0.02, np.log(band.n / 3), SIZES)
    both = np.concatenate([-z[::-2] if band.high == np.pi else z[:0], z if band.low == 0 else z[:0]])
    rows, pairs, frees = [], [], []
    for kind, places in KINDS.items():
        at = z if kind == "pair" else both  # slow alternating series are rare: fewer of them
        for zeros, (v, deviance) in enumerate(starts(at, places, kind == "pair", band) if len(at) else []):
            kept: list[int] = []
            for i in np.argsort(deviance):  # the best, and others that are not their neighbours
                if len(kept) < CANDIDATES and all(abs(i - j) > 1 for j in kept):
                    kept.append(int(i))
            rows.append(v[kept])
            pairs += [kind == "pair"] * len(kept)
            frees += [[1, kind != "one", zeros >= 1, zeros == 2]] * len(kept)
    pair, free = np.array(pairs), np.array(frees, dtype=float)
    model = np.concatenate([np.full(len(part), i) for i, part in enumerate(rows)])
    v, deviance = fitted(np.concatenate(rows), pair, free, band, STEPS)
    best = np.array([np.flatnonzero(model == m)[np.argmin(deviance[model == m])] for m in np.unique(model)])
    return Fits(v[best], pair[best], free[best], deviance[best])


def _directions(fits: Fits, band: Band) -> tuple[np.ndarray, np.ndarray]:
    """Standard errors of z as for Gaussian data, and what the scale and the other parameters can do of its effect."""
    root = np.sqrt(band.spectrum.size)
    _, slopes = log_spectrum(fits.v, fits.pair, band, band.spectrum.frequency)
    errors, found = [], []
    for slope, free in zip(slopes, fits.free, strict=True):
        others = np.vstack([root, slope[1:] * free[1:, None] * root]).T
        coefficient = np.linalg.lstsq(others, slope[0] * root, rcond=1e-6)[0]
        errors.append(1 / max(np.linalg.norm(slope[0] * root - others @ coefficient), 0.01))
        found.append(coefficient)
    return np.array(errors), np.array(found)


def _looseness(fit: Fits, direction: np.ndarray, band: Band, transform: np.ndarray) -> float:
    """The variance of the score of z over what it is for Gaussian data; between 1 and `LOOSEST`.

    The score, a sum over frequencies of (power / f) x slope, is also the sum over time of a product of two filtered
    series: blocks of it show how it varies.
    """
    n, bins = band.n, band.spectrum.frequency
    log, slopes = log_spectrum(fit.v, fit.pair, band, bins)
    slope = slopes[0, 0] - direction[0] - direction[1:] @ (slopes[0, 1:] * fit.free[0, 1:, None])
    frequency = 2 * np.pi / n * np.arange(1, len(transform) + 1)
    inside = np.flatnonzero((frequency >= band.low) & (frequency <= band.high))
    slope = np.interp(frequency[inside], bins, slope)  # the bins are where f changes
    white = transform[inside] * np.interp(frequency[inside], bins, np.exp((log.mean() - log[0]) / 2))
    white = white / np.sqrt(np.mean(np.square(np.abs(white))))
    both = np.zeros((2, n // 2 + 1), dtype=complex)
    both[:, inside + 1] = np.stack([white, white * slope])
    first, second = np.asarray(scipy.fft.irfft(both, n, axis=1)) * np.sqrt(n)
    blocks = int(np.clip(n / (LONG * np.exp(abs(fit.v[0, 0]))), *BLOCKS))
    sums = np.add.reduceat(first * second, np.arange(blocks) * (n // blocks))
    return float(np.clip(blocks * sums.var(ddof=1) / (4 * slope @ slope + 1e-3), 1, LOOSEST))


def _fits(fit: Fits, looser: float, band: Band) -> bool:
    """Whether power over f, in groups of neighbouring bins, is 1 but for noise: a chi-square test."""
    size = band.spectrum.size
    log, _ = log_spectrum(fit.v, fit.pair, band, band.spectrum.frequency)
    excess = np.cumsum(np.append(0, size * (band.deviance(log)[1][0] - 1)))
    count = np.cumsum(np.append(0, size))
    edges = np.unique(np.linspace(0, len(size), int(np.clip(len(size) // 5, 4, 40)) + 1).round().astype(int))
    scores = np.square(np.diff(excess[edges])) / (np.diff(count[edges]) * band.spectrum.spread)
    freedom = max(len(scores) - int(fit.free.sum()), 1)
    return bool(np.minimum(scores, 20).sum() <= looser * scipy.stats.chi2.isf(ONCE, freedom))


def _ends(fits: Fits, errors: np.ndarray, limit: np.ndarray, band: Band) -> np.ndarray:
    """Both ends of {z: profile deviance <= limit} of each model, one after the other."""
    middle, count, top = len(OFFSETS), 2 * len(OFFSETS) + 1, np.log(band.n / 3)
    z = fits.v[:, :1] + np.minimum(errors, 1.5)[:, None] * np.concatenate([-OFFSETS[::-1], [0.0], OFFSETS])
    z = np.clip(z, -top, top)
    # On the whole band a real pole may pass through 0; elsewhere it keeps its sign.
    keeps, sign = fits.pair | (band.high - band.low < np.pi), np.sign(fits.v[:, :1])
    z = np.where(keeps[:, None], sign * np.maximum(sign * z, 1e-2), z)
    v, pair, free = np.repeat(fits.v, count, axis=0), np.repeat(fits.pair, count), np.repeat(fits.free, count, axis=0)
    v[:, 0], free[:, 0] = z.ravel(), 0
    v, deviance = fitted(v, pair, free, band, 10)
    # Again from where the neighbour nearer to the middle has come to: a profile is followed from its best point.
    inner = np.concatenate([np.arange(1, middle + 1), [middle], np.arange(middle, 2 * middle)])
    again = v.reshape(-1, count, 4)[:, inner].reshape(-1, 4)
    again[:, 0] = v[:, 0]
    deviance = np.minimum(deviance, fitted(again, pair, free, band, 5)[1]).reshape(-1, count)
    found = []
    for row, profile, most in zip(z, deviance, limit, strict=True):
        for side in (np.arange(middle, -1, -1), np.arange(middle, count)):
            inside = np.flatnonzero(profile[side] <= most)
            if not len(inside):
                continue
            here, beyond = side[inside[-1]], side[min(inside[-1] + 1, middle)]
            part = (most - profile[here]) / max(profile[beyond] - profile[here], 1e-9)
            found.append(row[here] + min(part, 1.0) * (row[beyond] - row[here]))
    return np.array(found)
