"""The periodogram of a series in bins that follow its shape: what Whittle's likelihood is computed from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

SINGLE, PER_OCTAVE = 32, 10  # periodogram ordinates kept apart, and bins in an octave above them
EDGE = 0.05  # part of the series that the taper lets rise, and fall: without it steep spectra leak
UNEVEN = 25.0  # chi-square of the quarters of a bin (3 degrees of freedom) from which it is halved


def taper(n: int) -> np.ndarray:
    """1 in the middle, half a cosine over either end (Tukey 1967); sum of squares 1."""
    rise = int(EDGE * n)
    window = np.ones(n)
    window[:rise] = 0.5 - 0.5 * np.cos(np.pi * (np.arange(rise) + 0.5) / max(rise, 1))
    window[n - rise :] = window[:rise][::-1]
    return window / np.sqrt(window @ window)


class Spectrum(NamedTuple):
    """A periodogram in bins: mean power, mean frequency and number of ordinates of each.

    `spread` is what the taper adds to the variance of sums of ordinates, which it makes depend on their neighbours.
    """

    power: np.ndarray
    frequency: np.ndarray
    size: np.ndarray
    spread: float

    @staticmethod
    def of(transform: NDArray[np.complex128], n: int) -> Spectrum:
        """The spectrum, of mean power 1, of a series of n samples that was `transformed`."""
        window = taper(n)
        power = np.square(transform.real) + np.square(transform.imag)
        edges = _edges(power)
        size = np.diff(edges)
        frequency = 2 * np.pi / n * (edges[:-1] + 1 + (size - 1) / 2)
        # A line of a spectrum that is nothing else leaves empty bins, whose logarithm nothing could fit.
        power = np.add.reduceat(power, edges[:-1]) / size / power.mean() + 1e-13
        return Spectrum(power, frequency, size.astype(float), float(n * np.sum(window**4)))

    def within(self, low: float, high: float) -> Spectrum:
        """The bins whose frequency lies in [low, high]."""
        kept = (self.frequency >= low) & (self.frequency <= high)
        return Spectrum(self.power[kept], self.frequency[kept], self.size[kept], self.spread)


def transformed(series: np.ndarray) -> np.ndarray:
    """The Fourier transform of the tapered series, scaled to 1 at most, at the frequencies strictly within (0, pi)."""
    window = taper(len(series))
    centred = series - (window @ series) / window.sum()
    centred = centred / max(np.abs(centred).max(), np.finfo(float).tiny)  # squares neither vanish nor overflow
    full: NDArray[np.complex128] = scipy.fft.rfft(centred * window)
    return full[1 : (len(series) + 1) // 2]


def _edges(power: np.ndarray) -> np.ndarray:
    """Bins that grow with frequency, and are halved wherever the power changes within them, as it does at a peak."""
    count = len(power)
    edges = np.arange(min(SINGLE, count) + 1)
    if count > SINGLE:
        steps = int(np.ceil(np.log2(count / SINGLE) * PER_OCTAVE)) + 1
        edges = np.union1d(edges, np.geomspace(SINGLE, count, steps).round().astype(int))
    sums = np.concatenate([[0.0], np.cumsum(power)])
    while True:
        start, size = edges[:-1], np.diff(edges)
        quarters = start[:, None] + size[:, None] * np.arange(5) // 4
        part = np.diff(sums[quarters], axis=1) / np.maximum(np.diff(quarters, axis=1), 1)
        mean = np.maximum(part.mean(axis=1, keepdims=True), 1e-300)
        uneven = (np.sum(np.square(part / mean - 1), axis=1) * size / 4 > UNEVEN) & (size >= 8)
        if not uneven.any():
            return edges
        edges = np.union1d(edges, (start + size // 2)[uneven])
