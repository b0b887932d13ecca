"""The relaxation time of a series: how slowly its slowest visible mode decays, with an interval.

The spectrum of a series whose autocorrelation is lambda^k is a Lorentzian; whatever decays much faster adds a flat
floor under it. Both are fitted to the periodogram by Whittle's likelihood, on the lowest frequencies alone where a
slower mode shows there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy

SINGLE, PER_OCTAVE = 48, 16  # periodogram ordinates kept apart, and bins in an octave above them
FLOORS = np.concatenate([[0.0], 10.0 ** np.arange(-5.0, 2.1, 0.25)])  # odds of the floor's share of the variance
BAND = 2.0  # how far, in multiples of 1 / tau, frequencies are looked at for a slower mode
LOOSER = 1.3  # the likelihood is that of a Gaussian series: intervals for others must be wider (docs/trust.md)
CLEARLY = 9.0  # twice the log-likelihood that one more parameter must gain


class Relaxation(NamedTuple):
    """tau = 1 / (1 - |lambda|) with its interval, and the share of the variance that decays with it."""

    tau: float
    lower: float
    upper: float
    share: float


class Spectrum(NamedTuple):
    """A periodogram in bins: mean power, mean frequency and number of ordinates of each."""

    power: np.ndarray
    frequency: np.ndarray
    size: np.ndarray

    @staticmethod
    def of(series: np.ndarray) -> Spectrum:
        n = len(series)
        full: Any = scipy.fft.rfft(series - series.mean())
        transform = full[1 : (n + 1) // 2]
        power = (np.square(transform.real) + np.square(transform.imag)) / n
        edges = np.arange(min(SINGLE, len(power)) + 1)
        if len(power) > SINGLE:
            steps = int(np.ceil(np.log2(len(power) / SINGLE) * PER_OCTAVE)) + 1
            edges = np.union1d(edges, np.geomspace(SINGLE, len(power), steps).round().astype(int))
        size = np.diff(edges)
        frequency = 2 * np.pi / n * (edges[:-1] + 1 + (size - 1) / 2)
        return Spectrum(np.add.reduceat(power, edges[:-1]) / size, frequency, size.astype(float))

    def below(self, frequency: float) -> Spectrum:
        kept = self.frequency <= frequency
        return Spectrum(self.power[kept], self.frequency[kept], self.size[kept])

    def deviance(self, lam: np.ndarray, odds: np.ndarray) -> np.ndarray:
        """-2 log-likelihood of shapes K(lambda) + odds, the scale fitted; (lambda, odds)."""
        lam = lam[:, None, None]
        shape = (1 - lam**2) / (1 - 2 * lam * np.cos(self.frequency) + lam**2) + odds[:, None]
        total = self.size.sum()
        scale = np.sum(self.size * (self.power / shape), axis=2) / total
        return 2 * (np.sum(self.size * np.log(shape), axis=2) + total * np.log(scale))


def relaxation(series: np.ndarray, confidence: float = 0.95) -> Relaxation:
    """tau = 1 / (1 - |lambda|) of the slowest visible mode of one series (n,), autocorrelation ~ lambda^k.

    Whittle's likelihood of f(omega) = a (1 - lambda^2) / (1 - 2 lambda cos omega + lambda^2) + b (Whittle 1953); b = 0
    unless the data clearly ask for a floor. The interval is that of the profile likelihood. For an AR(1) series and for
    a two-state chain this is the relaxation time; independent data have 1.
    """
    spectrum = Spectrum.of(series)
    limit = LOOSER * scipy.stats.chi2.ppf(confidence, 1)
    slow = 1 - 1 / np.geomspace(1, len(series) / 3, 240)
    lam = np.concatenate([-slow[:0:-1], slow])
    pure = spectrum.deviance(lam, np.zeros(1))[:, 0]
    best, kept = float(lam[np.argmin(pure)]), lam[pure <= pure.min() + limit]
    share = 1.0
    # A floor under the Lorentzian; then again on lower frequencies for as long as a slower mode shows there.
    band, before = spectrum, pure.min()
    while band.size.sum() >= 12:
        profile = band.deviance(slow, FLOORS)
        lowest = profile.min(axis=1)
        slower = float(slow[np.argmin(lowest)])
        if lowest.min() < before - CLEARLY and slower > best:
            best, kept = slower, slow[lowest <= lowest.min() + limit]
            share = 1 / (1 + float(FLOORS[np.argmin(profile[np.argmin(lowest)])]))
        elif band is not spectrum:
            break
        band = spectrum.below(BAND * (1 - abs(best)))
        if not band.size.size:
            break
        before = band.deviance(np.array([best]), FLOORS).min()
    sizes = 1 / (1 - np.abs(kept))
    crosses = (kept < 0).any() and (kept > 0).any()  # then lambda = 0 is among what is kept
    return Relaxation(1 / (1 - abs(best)), 1.0 if crosses else float(sizes.min()), float(sizes.max()), share)
