"""Autocorrelation of recorded series: integrated time, effective sample size, block length. Time is the leading
axis."""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from ergodrift._core import check

LEAST = 30  # samples below which no statement about dependence is made
WINDOW = 6  # how many times what it sums a window of lags is long: e^-6 of one mode is left out


def checked_series(name: str, series: ArrayLike, least: int = LEAST) -> np.ndarray:
    """`series` as a float64 array (n, k); too short, constant or not finite is refused."""
    values = np.asarray(series)
    if values.dtype.kind not in "iufb":
        raise TypeError(f"{name} must hold numbers, got {values.dtype}")
    values = values.astype(np.float64, copy=False)
    if values.ndim not in (1, 2) or values.size == 0:
        raise ValueError(f"{name} must have shape (n,) or (n, k), got {values.shape}")
    values = values.reshape(len(values), -1)
    check.finite(name, values)
    if len(values) < least:
        raise ValueError(f"{name} has {len(values)} samples, too few to say anything; record at least {least}")
    constant = np.ptp(values, axis=0) == 0
    if constant.any():
        column = int(np.argmax(constant))
        where = f" in column {column}" if values.shape[1] > 1 else ""
        raise ValueError(
            f"{name} is constant{where}: it is {values[0, column]:g} in all {len(values)} samples; a series that never "
            "moves says nothing about mixing: drop it, or record for longer"
        )
    return values


def autocovariance(series: np.ndarray, lags: int | None = None) -> np.ndarray:
    """gamma(k) = 1/n sum over t of (y_t - mean)(y_{t+k} - mean), k = 0..lags - 1 (all unless given), by FFT.

    >>> autocovariance(np.array([1.0, -1.0, 1.0, -1.0]))
    array([ 1.  , -0.75,  0.5 , -0.25])
    """
    series = np.asarray(series, dtype=np.float64)
    n = len(series)
    lags = n if lags is None else min(lags, n)
    centred = series - series.mean(axis=0)
    size = scipy.fft.next_fast_len(n + lags - 1, real=True)
    spectrum: NDArray[np.complex128] = scipy.fft.rfft(centred, size, axis=0)
    power = np.square(spectrum.real) + np.square(spectrum.imag)
    return np.asarray(scipy.fft.irfft(power, size, axis=0))[:lags] / n


def integrated_time(series: np.ndarray, method: str = "geyer") -> np.ndarray:
    """The integrated autocorrelation time 1 + 2 sum over k >= 1 of rho(k), one entry a column.

    n samples have the variance of n / integrated_time independent ones in their mean.

    - "geyer": the initial monotone sequence: sums of neighbours gamma(2k) + gamma(2k+1), which a reversible chain keeps
      positive and decreasing, up to the first that is not positive (Geyer 1992, section 3.3);
    - "sokal": summed up to the first M >= 6 (1/2 + sum over k <= M of rho(k)) (Sokal 1997, section 3), and on to 6
      times the mean lag, sum k rho(k) / sum rho(k), which a slow mode under much noise or under faster modes makes far
      longer than the sum; but not past the end of Geyer's sequence, where noise begins.

    >>> rng = np.random.default_rng(0)
    >>> bool(abs(integrated_time(rng.normal(size=100_000)) - 1) < 0.05)
    True
    """
    check.choice("method", method, ("geyer", "sokal"))
    series = np.asarray(series, dtype=np.float64)
    flat = series.reshape(len(series), -1)
    gamma = autocovariance(flat)
    rho = gamma / np.where(gamma[0] > 0, gamma[0], 1)
    found = _geyer(rho) if method == "geyer" else _sokal(rho)
    found = np.maximum(found, 1 / len(flat))  # an alternating series may have next to none
    return found.reshape(series.shape[1:])[()]


def _pairs(rho: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums of neighbours, and from which of them on Geyer's sequence has ended."""
    pairs = rho[: len(rho) // 2 * 2].reshape(-1, 2, rho.shape[1]).sum(axis=1)
    return pairs, np.cumsum(pairs <= 0, axis=0) > 0


def _geyer(rho: np.ndarray) -> np.ndarray:
    pairs, ended = _pairs(rho)
    return 2 * np.where(ended, 0, np.minimum.accumulate(pairs, axis=0)).sum(axis=0) - 1


def _sokal(rho: np.ndarray) -> np.ndarray:
    lags, columns = np.arange(len(rho))[:, None], np.arange(rho.shape[1])
    half = np.cumsum(rho, axis=0) - 0.5
    window = _first(lags >= WINDOW * half)
    # lag x sum of rho >= 6 sum of k rho: the same as lag >= 6 mean lags where the sum is positive.
    long = (lags >= window) & (lags * (half - 0.5) >= WINDOW * np.cumsum(lags * rho, axis=0))
    end = 2 * _first(_pairs(rho)[1])
    window = np.maximum(window, np.minimum(_first(long), end))
    return 2 * half[np.minimum(window, len(rho) - 1), columns]


def _first(true: np.ndarray) -> np.ndarray:
    """The first lag of each column that is true, the last where none is."""
    return np.where(true.any(axis=0), np.argmax(true, axis=0), len(true) - 1)


def block_length(series: np.ndarray) -> np.ndarray:
    """Mean block length for the stationary bootstrap of a mean, one entry a column.

    b = (G^2 n / g^2)^(1/3) with G = sum |k| gamma(k), g = sum gamma(k) under a flat-top window twice as long as the
    lags that are clearly not zero (Politis and White 2004, with the correction of Patton, Politis and White 2009).
    """
    series = np.asarray(series, dtype=np.float64)
    flat = series.reshape(len(series), -1)
    n = len(flat)
    gamma = autocovariance(flat, n // 2 + 1)
    run = max(5, int(np.ceil(np.sqrt(np.log10(n)))))
    small = np.abs(gamma[1:]) < 2 * np.sqrt(np.log10(n) / n) * gamma[0]
    counts = np.cumsum(np.concatenate([np.zeros((1, flat.shape[1])), small]), axis=0)
    quiet = counts[run:] - counts[:-run] == run  # from this lag on, `run` lags in a row are small
    last = np.where(quiet.any(axis=0), np.argmax(quiet, axis=0), len(gamma) - 1)
    cut = np.clip(2 * last, 1, len(gamma) - 1)
    k = np.arange(len(gamma))[:, None]
    window = np.clip(2 * (1 - k / cut), 0, 1) * np.where(k == 0, 1, 2)
    bend, level = np.sum(window * k * gamma, axis=0), np.sum(window * gamma, axis=0)
    length = np.cbrt(np.square(bend) * n / np.maximum(np.square(level), 1e-300))
    return np.clip(length, 1, n / 3).reshape(series.shape[1:])[()]
