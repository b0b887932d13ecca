"""prototype"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy

from ergodrift.trust.rational import Band, angle, fitted, log_spectrum, size_of, starts
from ergodrift.trust.spectrum import Spectrum, transformed

MODELS = [(kind, zeros) for kind in ("one", "two", "pair") for zeros in (0, 1, 2)]
CANDIDATES = 3
COST = 2.5
ADMIT = 1.25
OFFSETS = np.array([0.5, 1, 1.5, 2, 2.5, 3, 4, 5.5, 8, 12, 20, 40])
LEAST_BINS = 20
SHRINK = 0.5


class Relaxation(NamedTuple):
    tau: float
    lower: float
    upper: float
    share: float
    warned: bool = False
    model: str = ""


class Fits(NamedTuple):
    """The best fit of each model: parameters (models, 4), whether a pair, what was fitted, deviance."""

    v: np.ndarray
    pair: np.ndarray
    free: np.ndarray
    deviance: np.ndarray

    @property
    def parameters(self):
        return self.free.sum(axis=1)

    def one(self, i):
        return Fits(*(part[[i]] for part in self))


def fit_all(band: Band, n: int) -> Fits:
    z = np.linspace(0.02, np.log(n / 3), 28)
    rows, pairs, frees, which = [], [], [], []
    for number, (kind, zeros) in enumerate(MODELS):
        at = z if band.low == 0 or kind == "pair" else z[:0]
        if kind != "pair" and band.high == np.pi:
            at = np.concatenate([-z[::-2], at])
        if not len(at):
            continue
        v, deviance = starts(at, kind == "pair", zeros, kind == "two", band)
        # The best, and others that are not their neighbours.
        order = np.argsort(deviance)
        kept = []
        for i in order:
            if all(abs(i - j) > 1 for j in kept):
                kept.append(i)
            if len(kept) == CANDIDATES:
                break
        rows += list(v[kept])
        pairs += [kind == "pair"] * len(kept)
        frees += [[1, kind != "one", zeros >= 1, zeros == 2]] * len(kept)
        which += [number] * len(kept)
    v, pair, free, which = np.array(rows), np.array(pairs), np.array(frees, float), np.array(which)
    v, deviance = fitted(v, pair, free, band, 14)
    best = [np.flatnonzero(which == m)[np.argmin(deviance[which == m])] for m in np.unique(which)]
    return Fits(v[best], pair[best], free[best], deviance[best])


def errors(fits: Fits, band: Band):
    """Standard errors of z were the data Gaussian, and the regression of its direction on the others' (models, 4)."""
    size, frequency = band.spectrum.size, band.spectrum.frequency
    _, slopes = log_spectrum(fits.v, fits.pair, band, frequency)
    found, by = [], []
    for row, free in zip(slopes, fits.free):
        basis = np.column_stack([np.ones(len(size)), (row[1:] * free[1:, None]).T]) * np.sqrt(size)[:, None]
        c = np.linalg.lstsq(basis, row[0] * np.sqrt(size), rcond=1e-6)[0]
        rest = row[0] * np.sqrt(size) - basis @ c
        found.append(1 / np.sqrt(max(rest @ rest, 1e-4)))
        by.append(c)
    return np.array(found), np.array(by)


def looseness(fit: Fits, coefficient, band: Band, series: np.ndarray) -> float:
    """How much larger the variance of the score is than it would be were the data Gaussian."""
    n = len(series)
    transform = transformed(series)
    frequency = 2 * np.pi / n * np.arange(1, len(transform) + 1)
    inside = (frequency >= band.low) & (frequency <= band.high)
    log, slopes = log_spectrum(fit.v, fit.pair, band, frequency[inside])
    g = slopes[0, 0] - coefficient[0] - coefficient[1:] @ (slopes[0, 1:] * fit.free[0, 1:, None])
    white = transform[inside] * np.exp(-log[0] / 2)
    white = white / np.sqrt(np.mean(np.abs(white) ** 2))
    whole = np.zeros((2, n // 2 + 1), complex)
    whole[0, 1 : len(transform) + 1][inside] = white
    whole[1, 1 : len(transform) + 1][inside] = white * g
    e, d = scipy.fft.irfft(whole, n, axis=1) * np.sqrt(n)
    tau = np.exp(abs(fit.v[0, 0]))
    blocks = int(np.clip(n / (8 * tau), 8, 50))
    sums = np.add.reduceat(e * d, np.arange(blocks) * (n // blocks))
    return float(np.clip(blocks * sums.var(ddof=1) / (4 * np.sum(g**2) + 1e-3), 1, 10))


def ends(fits: Fits, error, limit, band: Band, n: int):
    """The ends of {z: profile deviance <= limit} of each model."""
    offsets = np.concatenate([-OFFSETS[::-1], [0.0], OFFSETS])
    mid, count = len(OFFSETS), len(offsets)
    z = fits.v[:, :1] + np.minimum(error, 1.5)[:, None] * offsets
    top = np.log(n / 3)
    fixed = fits.pair | (band.low > 0) | (band.high < np.pi)
    sign = np.sign(fits.v[:, :1])
    z = np.clip(z, -top, top)
    z = np.where(fixed[:, None], sign * np.maximum(sign * z, 1e-2), z)
    v = np.repeat(fits.v, count, axis=0)
    v[:, 0] = z.ravel()
    pair, free = np.repeat(fits.pair, count), np.repeat(fits.free, count, axis=0)
    free[:, 0] = 0
    v, deviance = fitted(v, pair, free, band, 10)
    # again, from the neighbour nearer to the middle
    inner = np.concatenate([np.arange(1, mid + 1), [mid], np.arange(mid, 2 * mid)])
    again = v.reshape(-1, count, 4)[:, inner].reshape(-1, 4).copy()
    again[:, 0] = v[:, 0]
    deviance = np.minimum(deviance, fitted(again, pair, free, band, 5)[1]).reshape(-1, count)
    found = []
    for row, dev, lim in zip(z, deviance, limit):
        for order in (np.arange(mid, -1, -1), np.arange(mid, 2 * mid + 1)):
            inside = np.flatnonzero(dev[order] <= lim)
            if not len(inside):
                continue
            last = inside[-1]
            if last == len(order) - 1:
                found.append(row[order[-1]])
                continue
            a, b = order[last], order[last + 1]
            found.append(row[a] + (lim - dev[a]) / max(dev[b] - dev[a], 1e-12) * (row[b] - row[a]))
    return np.array(found)


def misfit(fit: Fits, looser: float, band: Band) -> bool:
    spectrum = band.spectrum
    log, _ = log_spectrum(fit.v, fit.pair, band, spectrum.frequency)
    ratio = band.deviance(log)[1][0]
    excess = np.concatenate([[0], np.cumsum(spectrum.size * (ratio - 1))])
    count = np.concatenate([[0], np.cumsum(spectrum.size)])
    groups = int(np.clip(len(ratio) // 5, 4, 40))
    at = np.unique(np.linspace(0, len(ratio), groups + 1).round().astype(int))
    score = np.diff(excess[at]) / np.sqrt(np.diff(count[at]) * spectrum.spread)
    statistic = np.sum(np.minimum(np.square(score), 20))
    return bool(statistic > scipy.stats.chi2.ppf(0.999, max(len(score) - int(fit.parameters[0]), 1)) * looser)


def costs(fits: Fits, each: float) -> np.ndarray:
    # A pair may lie at some tau places: looked for at all of them, one is found by chance.
    places = np.where(fits.pair, 2 * np.log1p(np.exp(np.abs(fits.v[:, 0])) * angle(fits.v, fits.pair) / np.pi), 0.0)
    return each * fits.parameters + places


def relaxation(series: np.ndarray, confidence: float = 0.95) -> Relaxation:
    n = len(series)
    spectrum = Spectrum.of(series)
    low, high = 0.0, np.pi
    tries = 0
    settle = False
    while True:
        band = Band(spectrum.within(low, high), low, high)
        fits = fit_all(band, n)
        error, coefficient = errors(fits, band)
        i = int(np.argmin(fits.deviance + costs(fits, COST)))
        looser = looseness(fits.one(i), coefficient[i], band, series) * spectrum.spread
        i = int(np.argmin(fits.deviance / looser + costs(fits, COST)))
        bad = misfit(fits.one(i), looser, band)
        if (not bad and not tries) or settle:
            break
        settle = not bad
        tries += 1
        centre = float(angle(fits.v[[i]], fits.pair[[i]])[0])
        width = (high - low) * SHRINK
        start = float(np.clip(centre - width / 2, 0, np.pi - width)) if centre > 0 else 0.0
        stop = start + width if start + width < np.pi - 1e-9 else np.pi
        if len(spectrum.within(start, stop).size) < LEAST_BINS:
            break
        low, high = start, stop
    quantile = scipy.stats.chi2.ppf(confidence, 1)
    admitted = fits.deviance / looser + costs(fits, ADMIT)
    floor = admitted.min() if True else 0
    kept = np.flatnonzero(admitted <= floor + quantile)
    zs = ends(Fits(*(p[kept] for p in fits)), error[kept], (floor + quantile - costs(fits, ADMIT)[kept]) * looser, band, n)
    tau = np.exp(np.abs(zs))
    crosses = (zs < 0).any() and (zs > 0).any()
    kind = "pair" if fits.pair[i] else "two" if fits.free[i, 1] else "one"
    return Relaxation(
        float(np.exp(abs(fits.v[i, 0]))), 1.0 if crosses else float(tau.min()), float(tau.max()), 1.0, bad,
        f"{kind}{int(fits.free[i,2:].sum())}@{high - low:.2f} {looser:.0f}",
    )
