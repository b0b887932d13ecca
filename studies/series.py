"""Stationary series whose mean is known, many at once: what the sweeps of `sweeps.py` run on."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy
import scipy.signal

Simulate = Callable[[np.random.Generator, int, int], np.ndarray]  # (rng, n, columns) -> (n, columns)


class Series(NamedTuple):
    """A kind of data."""

    name: str
    simulate: Simulate
    mean: float


def ar1(tau: float) -> Simulate:
    """Gaussian, autocorrelation (1 - 1/tau)^k, unit variance, from its stationary law."""
    lam = 1 - 1 / tau

    def simulate(rng: np.random.Generator, n: int, columns: int) -> np.ndarray:
        noise = rng.standard_normal((n, columns)) * np.sqrt(1 - lam**2)
        noise[0] = rng.standard_normal(columns)
        return np.asarray(scipy.signal.lfilter([1.0], [1.0, -lam], noise, axis=0))

    return simulate


def ar2(first: complex, second: complex) -> Simulate:
    """Gaussian AR(2) with these roots, after 12 relaxation times of burn-in."""
    poly = np.real(np.poly([first, second]))
    burn = int(12 / (1 - max(abs(first), abs(second))))

    def simulate(rng: np.random.Generator, n: int, columns: int) -> np.ndarray:
        return np.asarray(scipy.signal.lfilter([1.0], poly, rng.standard_normal((n + burn, columns)), axis=0))[burn:]

    return simulate


def moving(base: Simulate, length: int) -> Simulate:
    """The moving average over `length` samples."""

    def simulate(rng: np.random.Generator, n: int, columns: int) -> np.ndarray:
        sums = np.cumsum(base(rng, n + length, columns), axis=0)
        return (sums[length:] - sums[:-length]) / length

    return simulate


def two_states(share: float, tau: float) -> Simulate:
    """1 with this probability, else 0: stays with probability 1 - 1/tau, else is drawn anew."""

    def simulate(rng: np.random.Generator, n: int, columns: int) -> np.ndarray:
        drawn = rng.random((n, columns), dtype=np.float32) < share
        renewed = rng.random((n, columns), dtype=np.float32) < 1 / tau
        renewed[0] = True
        since = np.maximum.accumulate(np.where(renewed, np.arange(n, dtype=np.int32)[:, None], 0), axis=0)
        return np.take_along_axis(drawn, since, axis=0).astype(float)

    return simulate


def bursts(share: float, length: float) -> Simulate:
    """1 in bursts of geometric length with this mean, else 0; burst for this share of the time."""
    return two_states(share, length * (1 - share))


def fixed_bursts(share: float, length: int) -> Simulate:
    """The same with bursts of one length, which merge where they overlap."""
    rate = 1 - (1 - share) ** (1 / length)

    def simulate(rng: np.random.Generator, n: int, columns: int) -> np.ndarray:
        begun = np.cumsum(rng.random((n + length, columns), dtype=np.float32) < rate, axis=0)
        return (begun[length:] > begun[:-length]).astype(float)

    return simulate


def mapped(base: Simulate, function: Callable[[np.ndarray], np.ndarray]) -> Simulate:
    """A function of each value."""
    return lambda rng, n, columns: function(base(rng, n, columns))


def lognormal(tau: float, sigma: float) -> Simulate:
    """exp(sigma x), x AR(1); mean exp(sigma^2 / 2)."""
    return mapped(ar1(tau), lambda x: np.exp(sigma * x))


def exponential(tau: float) -> Simulate:
    """Exponential with mean 1, correlated as AR(1) through its quantiles."""
    return mapped(ar1(tau), lambda x: -scipy.special.log_ndtr(-x))


def sums(base: Simulate, other: Simulate, weight: float) -> Simulate:
    """sqrt(1 - weight) x one + sqrt(weight) x the other."""

    def simulate(rng: np.random.Generator, n: int, columns: int) -> np.ndarray:
        return np.sqrt(1 - weight) * base(rng, n, columns) + np.sqrt(weight) * other(rng, n, columns)

    return simulate


def garch_squares(rng: np.random.Generator, n: int, columns: int) -> np.ndarray:
    """r^2 of a GARCH(1, 1) series with alpha = 0.1, beta = 0.85 and variance 1: relaxation time 20, heavy tails."""
    variance, burn = np.ones(columns), 400
    squares = np.square(rng.standard_normal((n + burn, columns)))
    for t in range(n + burn):
        squares[t] *= variance
        variance = 0.05 + 0.1 * squares[t] + 0.85 * variance
    return squares[burn:]


def negative(kind: Series) -> Series:
    """The other tail."""
    return Series(f"-({kind.name})", mapped(kind.simulate, np.negative), -kind.mean)


LOGNORMAL = Series("lognormal AR(1), 20", lognormal(20, 1), float(np.exp(0.5)))
EXPONENTIAL = Series("exponential AR(1), 20", exponential(20), 1.0)
RARE = Series("rare, 1 %", two_states(0.01, 1), 0.01)
BURSTS = Series("bursts, 2 %, length 20", bursts(0.02, 20), 0.02)

# Relaxation times 1 to 300, smooth series, both tails, rare events and bursts.
WATCHED = [
    *(Series(f"AR(1), {tau}", ar1(tau), 0.0) for tau in (1, 5, 20, 50, 100, 300)),
    *(Series(f"two states, {tau}", two_states(0.5, tau), 0.5) for tau in (1, 20, 300)),
    *(Series(f"two states 4:1, {tau}", two_states(0.2, tau), 0.2) for tau in (10, 50, 300)),
    negative(Series("two states 4:1, 50", two_states(0.2, 50), 0.2)),
    Series("AR(2), roots 0.99 and 0.9", ar2(0.99, 0.9), 0.0),
    Series("AR(2), roots 0.95 twice", ar2(0.95, 0.95), 0.0),
    Series("AR(2), roots 0.98 e^(±0.1i)", ar2(0.98 * np.exp(0.1j), 0.98 * np.exp(-0.1j)), 0.0),
    Series("average of 5, AR(1), 20", moving(ar1(20), 5), 0.0),
    Series("average of 20, AR(1), 100", moving(ar1(100), 20), 0.0),
    Series("exponential", exponential(1), 1.0),
    EXPONENTIAL,
    negative(EXPONENTIAL),
    LOGNORMAL,
    negative(LOGNORMAL),
    RARE,
    negative(RARE),
    Series("rare, 0.1 %", two_states(0.001, 1), 0.001),
    BURSTS,
    negative(BURSTS),
    Series("bursts, 2 %, fixed length 20", fixed_bursts(0.02, 20), 0.02),
    Series("GARCH squares", garch_squares, 1.0),
    Series("AR(1), 2, and 30 % AR(1), 20", sums(ar1(2), ar1(20), 0.3), 0.0),
]

# What no look at the path can tell: the part that decides has not been seen, or moves too slowly to be seen.
HIDDEN = [
    Series("noise and 5 % AR(1), 300", sums(ar1(1), ar1(300), 0.05), 0.0),
    Series("noise and bursts, 2 %, length 20", sums(ar1(1), bursts(0.02, 20), 0.99), np.sqrt(0.99) * 0.02),
]

SKEWED = [
    *(Series(f"rare, {100 * p:g} %", two_states(p, 1), p) for p in (0.005, 0.01, 0.05)),
    *(
        Series(f"bursts, {100 * p:g} %, length {length}", bursts(p, length), p)
        for p, length in [(0.005, 10), (0.01, 5), (0.02, 20), (0.05, 50)]
    ),
    negative(BURSTS),
    Series("bursts, 2 %, fixed length 20", fixed_bursts(0.02, 20), 0.02),
    Series("lognormal", lognormal(1, 1), float(np.exp(0.5))),
    LOGNORMAL,
    negative(LOGNORMAL),
    EXPONENTIAL,
    Series("two states 4:1, 10", two_states(0.2, 10), 0.2),
    Series("AR(1), 20", ar1(20), 0.0),
    Series("GARCH squares", garch_squares, 1.0),
]
