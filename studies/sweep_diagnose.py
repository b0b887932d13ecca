"""Does `diagnose` find the relaxation time of series whose truth is known, and does its interval cover?

Series of many kinds: one mode, two, oscillating ones, smoothed ones, noise on top, squares of GARCH, functions of
chains and of Gaussian series. `study_diagnose` simulates and fits them, `table` is its Markdown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.signal

from ergodrift._core import markdown
from ergodrift.trust.relaxation import relaxation

BURN = 15  # relaxation times that are dropped before a series begins
CHUNK = 2e6  # numbers held at once

Simulate = Callable[[np.random.Generator, int, int], np.ndarray]


class Series(NamedTuple):
    """A kind of data with a known relaxation time; `simulate(rng, n, count)` returns (n, count)."""

    name: str
    truth: float
    n: int
    simulate: Simulate


def arma(name: str, poles: Sequence[complex], n: int, zeros: Sequence[float] = (1.0,)) -> Series:
    """Noise through prod 1 / (1 - pole B) and a moving average with weights `zeros`."""
    tau = 1 / (1 - max(abs(pole) for pole in poles))
    burn = int(BURN * tau) + len(zeros)

    def simulate(rng: np.random.Generator, n: int, count: int) -> np.ndarray:
        noise = rng.standard_normal((n + burn, count))
        return np.asarray(scipy.signal.lfilter(zeros, np.real(np.poly(poles)), noise, axis=0))[burn:]

    return Series(name, tau, n, simulate)


def mixed(name: str, parts: Sequence[tuple[float, float]], n: int) -> Series:
    """A sum of AR(1) series of given (tau, part of the variance); tau = 1 is noise."""

    def simulate(rng: np.random.Generator, n: int, count: int) -> np.ndarray:
        total = np.zeros((n, count))
        for tau, share in parts:
            lam = 1 - 1 / tau
            total += np.sqrt(share * (1 - lam**2)) * arma("", [lam], n).simulate(rng, n, count)
        return total

    return Series(name, parts[0][0], n, simulate)


def garch_squares(name: str, a: float, b: float, n: int) -> Series:
    """r_t^2 with r_t = sqrt(h_t) e_t, h_t = 0.05 + a r_{t-1}^2 + b h_{t-1}: autocorrelation ~ (a + b)^k after lag 1."""
    burn = int(BURN / (1 - a - b))

    def simulate(rng: np.random.Generator, n: int, count: int) -> np.ndarray:
        noise = np.square(rng.standard_normal((n + burn, count)))
        found, h = np.empty_like(noise), np.full(count, 0.05 / (1 - a - b))
        for t, square in enumerate(noise):
            found[t] = h * square
            h = 0.05 + a * found[t] + b * h
        return found[burn:]

    return Series(name, 1 / (1 - a - b), n, simulate)


def of_gaussian(name: str, tau: float, function: Callable[[np.ndarray], np.ndarray], power: int, n: int) -> Series:
    """A function of an AR(1) series of variance 1 whose slowest mode is lambda^power."""
    lam = 1 - 1 / tau
    series = arma("", [lam], n)
    return Series(
        name, 1 / (1 - lam**power), n, lambda rng, n, k: function(np.sqrt(1 - lam**2) * series.simulate(rng, n, k))
    )


def of_chain(name: str, P: np.ndarray, values: np.ndarray, n: int) -> Series:
    """A function of the states of a chain."""
    tau = 1 / (1 - np.sort(np.abs(np.linalg.eigvals(P)))[-2])
    bounds, burn = np.cumsum(P, axis=1)[:, :-1], int(BURN * tau)

    def simulate(rng: np.random.Generator, n: int, count: int) -> np.ndarray:
        state, found = rng.integers(len(P), size=count), np.empty((n + burn, count))
        for t, drawn in enumerate(rng.random((n + burn, count, 1))):
            state = np.sum(drawn >= bounds[state], axis=1)
            found[t] = values[state]
        return found[burn:]

    return Series(name, float(tau), n, simulate)


def averaged_noise(name: str, length: int, n: int) -> Series:
    """A plain moving average of noise: it has no mode; the truth is what `relaxation` says it looks for."""
    truth = (1 + np.sqrt(1 + (length**2 - 1) / 3)) / 2
    return arma(name, [0.0], n, np.ones(length).tolist())._replace(truth=float(truth))


def _walk(size: int, move: float) -> np.ndarray:
    P = move * (np.eye(size, k=1) + np.eye(size, k=-1))
    return P + np.diag(1 - P.sum(axis=1))


def _turned(modulus: float, angle: float) -> list[complex]:
    return [modulus * np.exp(1j * angle), modulus * np.exp(-1j * angle)]


def kinds() -> list[Series]:
    """All data of the study."""
    average = {length: (np.ones(length) / length).tolist() for length in (2, 3, 5, 20)}
    clumps = np.array([[0.95, 0.03, 0.02, 0], [0.03, 0.95, 0, 0.02], [0.02, 0, 0.68, 0.3], [0, 0.02, 0.3, 0.68]])
    return [
        arma("AR(1), noise", [0.0], 1000),
        arma("AR(1)", [1 - 1 / 3], 1000),
        arma("AR(1)", [0.95], 2000),
        arma("AR(1)", [0.95], 20_000),
        arma("AR(1)", [1 - 1 / 300], 60_000),
        arma("AR(1), alternating", [-0.8], 2000),
        arma("AR(2), 0.99 and 0.9", [0.99, 0.9], 20_000),
        arma("AR(2), 0.98 and 0.97", [0.98, 0.97], 20_000),
        arma("AR(2), 0.95 and 0.5", [0.95, 0.5], 4000),
        arma("AR(2), 0.9 and -0.7", [0.9, -0.7], 4000),
        arma("AR(2), 0.95 at 1 rad", _turned(0.95, 1.0), 4000),
        arma("AR(2), 0.99 at 0.1 rad", _turned(0.99, 0.1), 20_000),
        arma("ARMA(1,1), 0.95, -0.5", [0.95], 8000, [1, -0.5]),
        arma("ARMA(1,1), 0.95, 0.8", [0.95], 8000, [1, 0.8]),
        arma("ARMA(2,1), 0.98 and 0.6, -0.8", [0.98, 0.6], 10_000, [1, -0.8]),
        *(arma(f"AR(1), averages of {length}", [0.95], 20_000, average[length]) for length in average),
        arma("AR(1), averages of 20", [0.95], 4000, average[20]),
        mixed("two modes, 100 (10 %) and 5", [(100, 0.1), (5, 0.9)], 50_000),
        mixed("two modes, 100 (50 %) and 5", [(100, 0.5), (5, 0.5)], 20_000),
        mixed("two modes, 100 (90 %) and 5", [(100, 0.9), (5, 0.1)], 20_000),
        mixed("two modes, 100 (30 %) and 20", [(100, 0.3), (20, 0.7)], 50_000),
        mixed("mode (50 %) and noise", [(50, 0.5), (1, 0.5)], 20_000),
        mixed("mode (10 %) and noise", [(50, 0.1), (1, 0.9)], 20_000),
        garch_squares("GARCH squares, 0.1, 0.85", 0.1, 0.85, 20_000),
        garch_squares("GARCH squares, 0.05, 0.9", 0.05, 0.9, 20_000),
        of_gaussian("square of AR(1)", 40, np.square, 2, 20_000),
        of_gaussian("sign of AR(1)", 20, np.sign, 1, 20_000),
        of_gaussian("exp of AR(1)", 20, np.exp, 1, 20_000),
        of_chain("two states", np.array([[0.98, 0.02], [0.02, 0.98]]), np.arange(2.0), 5000),
        of_chain("four states in clumps", clumps, np.array([0.0, 1.0, 3.0, 5.0]), 10_000),
        of_chain("walk on 10 states, squared", _walk(10, 0.4), np.square(np.arange(10.0)), 10_000),
        averaged_noise("noise, averages of 5", 5, 4000),
        averaged_noise("noise, averages of 20", 20, 10_000),
    ]


def study_diagnose(repetitions: int, seed: int = 0, which: Sequence[Series] | None = None) -> list[dict[str, Any]]:
    """Coverage of the 95 % interval and where the estimate lies, one row for each kind of data."""
    return [_study(series, repetitions, seed + 1000 * i) for i, series in enumerate(which or kinds())]


def _study(series: Series, repetitions: int, seed: int) -> dict[str, Any]:
    rng, found = np.random.default_rng(seed), []
    while len(found) < repetitions:
        count = int(min(repetitions - len(found), max(CHUNK / series.n, 1)))
        found += [relaxation(column) for column in series.simulate(rng, series.n, count).T]
    tau, low, high, _, fits = np.array(found).T
    ratio = tau / series.truth
    return {
        "data": series.name,
        "truth": series.truth,
        "n": series.n,
        "repetitions": repetitions,
        "coverage": float(np.mean((low <= series.truth * (1 + 1e-9)) & (series.truth <= high * (1 + 1e-9)))),
        "median_ratio": float(np.median(ratio)),
        "q10_ratio": float(np.quantile(ratio, 0.1)),
        "q90_ratio": float(np.quantile(ratio, 0.9)),
        "lower_ratio": float(np.median(low) / series.truth),
        "upper_ratio": float(np.median(high) / series.truth),
        "warned": float(np.mean(fits == 0)),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The study as Markdown."""
    head = ["data", "relaxation time", "n", "repetitions", "coverage", "median / truth", "10 % to 90 %"]
    head += ["interval / truth", "said not to fit"]
    lines = []
    for row in rows:
        cells = [row["data"], f"{row['truth']:.3g}", f"{row['n']:,}", f"{row['repetitions']}"]
        cells += [f"{100 * row['coverage']:.1f} %", f"{row['median_ratio']:.2f}"]
        cells += [f"{row['q10_ratio']:.2f} to {row['q90_ratio']:.2f}"]
        cells += [f"{row['lower_ratio']:.2f} to {row['upper_ratio']:.2f}", f"{100 * row['warned']:.1f} %"]
        lines.append(cells)
    return markdown.table(head, lines)
