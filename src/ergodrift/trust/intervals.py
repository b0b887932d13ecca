"""Intervals for the stationary mean of dependent series, column by column of (n, k).

`batch`, `overlapping` and `bootstrap` hold as n grows, whatever the law, and have no ends (-inf, inf) where rare, large
values decide and too few of them were seen; `hoeffding`, `bernstein` and `anytime` hold for every n, for values in
known bounds and a known mixing time. `iid_normal` and `iid_bootstrap` ignore the dependence; they are here to be
compared with.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import scipy

from ergodrift.trust.autocorrelation import block_length, integrated_time
from ergodrift.trust.sequence import KnownSequence, LearnedSequence
from ergodrift.trust.skewness import mean_skewness, stretch

STRETCHES = 2**13  # a longer series is first cut into so many means: batches are far longer than that anyway
REACH = 20  # relaxation times that a batch should last
# Intervals are widened by 1 + ALLOWANCE tau / n, for what skewness and an estimated tau cost at small n. The number was
# set by the study of docs/laboratory/coverage.md; at n = 1,000 tau it is 1 %.
ALLOWANCE = 12
# How many batches there may be, with the law of |mean| / standard error for overlapping batches of n / m samples of
# Brownian motion, as scale x |Student t| with so many degrees of freedom; tests/test_intervals.py simulates it.
FIXED_B = {
    5: (1.0441, 9.183),
    8: (1.0186, 13.20),
    10: (1.0078, 15.46),
    14: (1.0057, 21.67),
    20: (1.0038, 30.76),
    28: (1.0041, 45.72),
    40: (1.0024, 62.84),
}
RESAMPLES = 999
SKEWED = 0.7  # skewness of the mean from which on no interval is given; N rare events have 1 / sqrt(N)

Bounds = tuple[np.ndarray, np.ndarray]
Times: TypeAlias = (
    np.ndarray | float | None
)  # relaxation times in samples, where they are known better than by a column


def _cut(values: np.ndarray) -> np.ndarray:
    length = -(-len(values) // STRETCHES)
    count = len(values) // length
    return values[: count * length].reshape(count, length, -1).mean(axis=1)


def decay_time(series: np.ndarray) -> np.ndarray:
    """(integrated time + 1) / 2 of each column: the relaxation time, if one mode decays."""
    return (np.maximum(integrated_time(series, "sokal"), 0.2) + 1) / 2


def relaxation_time(values: np.ndarray) -> float:
    """The longest `decay_time` of the columns, in samples; a long series is cut first."""
    return float(decay_time(_cut(values)).max()) * -(-len(values) // STRETCHES)


def _flat(length: np.ndarray | int, tau: np.ndarray) -> np.ndarray:
    """c with Var(mean of `length`) = c x long-run variance / length, for autocorrelation exp(-k / tau)."""
    return 1 - tau / length * (1 - np.exp(-length / tau))


def _decays(values: np.ndarray, y: np.ndarray, tau: Times) -> np.ndarray:
    """Relaxation times of the columns in stretches: those given in samples, else as the stretches `y` show them."""
    if tau is None:
        return decay_time(y)
    return np.broadcast_to(np.asarray(tau, dtype=float) / -(-len(values) // STRETCHES), y.shape[1])


def batch_numbers(n: int, tau: np.ndarray) -> np.ndarray:
    """How many batches of n samples last 20 relaxation times each, between 5 and 40."""
    choices = np.array(sorted(FIXED_B))
    wanted = np.maximum(n / (REACH * tau), choices[0])
    numbers = choices[np.searchsorted(choices, wanted, side="right") - 1]
    return np.minimum(numbers, choices[choices <= max(n // 2, choices[0])].max())


def batch_errors(values: np.ndarray, overlap: bool, tau: Times = None) -> tuple[np.ndarray, np.ndarray]:
    """Standard errors of the means, (k,), and the number of batches that each stands on.

    As many batches as last 20 relaxation times each, between 5 and 40. What correlation between neighbouring batches
    takes from their spread is put back, as for autocorrelation exp(-k / tau): at 20 relaxation times it is 5 % of the
    variance. Relaxation times are read off the columns unless they are given.
    """
    y = _cut(values)
    n = len(y)
    tau = _decays(values, y, tau)
    numbers = batch_numbers(n, tau)
    errors = np.empty(y.shape[1])
    for m in np.unique(numbers):
        of, size = numbers == m, n // m
        part, t = y[:, of], tau[of]
        if overlap:
            sums = np.concatenate([np.zeros((1, part.shape[1])), np.cumsum(part, axis=0)])
            means = (sums[size:] - sums[:-size]) / size
            spread = np.mean(np.square(means - part.mean(axis=0)), axis=0) * size / (n - size)
        else:
            means = part[: m * size].reshape(m, size, -1).mean(axis=1)
            spread = means.var(axis=0, ddof=1) / m
        kept = (_flat(size, t) / size - _flat(n, t) / n) / (1 / size - 1 / n) / _flat(n, t)
        errors[of] = np.sqrt(spread / np.maximum(kept, 0.05)) * (1 + ALLOWANCE * t / n)
    return errors, numbers


def batch(values: np.ndarray, delta: float, tau: Times = None) -> Bounds:
    """Batch means: mean +- t_{m-1} x standard error from m batches (Schmeiser 1982), `stretched` for skewed values."""
    error, m = batch_errors(values, overlap=False, tau=tau)
    return stretched(values, scipy.stats.t.ppf(1 - delta / 2, m - 1) * error, delta, tau)


def overlapping(values: np.ndarray, delta: float, tau: Times = None) -> Bounds:
    """Overlapping batch means (Meketon and Schmeiser 1984); fixed-b critical values (Kiefer and Vogelsang 2005);
    `stretched` for skewed values."""
    error, numbers = batch_errors(values, overlap=True, tau=tau)
    scale, freedom = np.array([FIXED_B[m] for m in numbers]).T
    return stretched(values, scale * scipy.stats.t.ppf(1 - delta / 2, freedom) * error, delta, tau)


def skewness(values: np.ndarray, tau: Times = None) -> tuple[np.ndarray, np.ndarray]:
    """That of the mean of each column, towards high and towards low values; above `SKEWED` too little was seen."""
    y = _cut(values)
    return mean_skewness(y, _decays(values, y, tau))


def stretched(values: np.ndarray, reach: np.ndarray, delta: float, tau: Times = None) -> Bounds:
    """mean +- reach, longer towards the side on which rare, large values lie (`skewness.stretch`); no ends where there
    were too few of them to say."""
    up, down = skewness(values, tau)
    plain = scipy.stats.norm.isf(delta / 2)
    reach = np.where(np.maximum(up, down) <= SKEWED, reach, np.inf)
    mean = values.mean(axis=0)
    return mean - reach * stretch(down, delta / 2) / plain, mean + reach * stretch(up, delta / 2) / plain


def bootstrap(values: np.ndarray, delta: float, tau: Times = None, seed: int = 0) -> Bounds:
    """The stationary bootstrap (Politis and Romano 1994), studentised by its blocks (Goetze and Kuensch 1996).

    Blocks have the length of `block_length`, at least 3 relaxation times; the bootstrap variance, which is short by the
    factor 1 / (1 + tau / length), is put right.
    """
    y = _cut(values)
    n, tau = len(y), _decays(values, y, tau)
    lengths = np.clip(np.maximum(block_length(y), 3 * tau), 1, n / 8)
    rng = np.random.default_rng(seed)
    reach = np.empty(y.shape[1])
    for column, length in enumerate(lengths):
        deviation, error = _resample(y[:, column], float(length), rng)
        spread = deviation.std()
        # A resample of blocks that are all alike has no spread of its own: it must not blow the ratio up.
        ratio = np.quantile(np.abs(deviation) / np.maximum(error, spread / 4 + 1e-300), 1 - delta)
        reach[column] = ratio * spread * np.sqrt(1 + tau[column] / length) * (1 + ALLOWANCE * tau[column] / n)
    return _around(values, np.where(np.maximum(*mean_skewness(y, tau)) <= SKEWED, reach, np.inf))


def _resample(y: np.ndarray, length: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """mean* - mean and its standard error from the spread of its blocks, for each resample; blocks wrap around."""
    n = len(y)
    count = int(1.5 * n / length + 20)
    sizes = rng.geometric(1 / length, size=(RESAMPLES, count)) if length > 1 else np.ones((RESAMPLES, count + n), int)
    ends = np.minimum(np.cumsum(sizes, axis=1), n)
    ends[:, -1] = n
    sizes = np.diff(ends, axis=1, prepend=0)
    starts = rng.integers(n, size=sizes.shape)
    centred = y - y.mean()
    sums = np.concatenate([[0.0], np.cumsum(np.concatenate([centred, centred]))])
    blocks = sums[starts + sizes] - sums[starts]
    deviation = blocks.sum(axis=1) / n
    error = np.sqrt(np.sum(np.square(blocks - sizes * deviation[:, None]), axis=1)) / n
    return deviation, error


def hoeffding(
    values: np.ndarray,
    delta: float,
    tau_mix: float,
    low: np.ndarray,
    high: np.ndarray,
    *,
    fixed_start: bool = False,
    clip: bool = True,
) -> Bounds:
    """mean +- (b - a) sqrt(9 tau_mix log(2 / delta) / (2 n)) for values in [a, b] (Paulin 2015, corollary 2.10).

    This is about the mean from where the path starts. From a `fixed_start`, not drawn from the stationary law, that is
    up to (b - a) / n x the sum of distances to it, at most 2 tau_mix (b - a) / n, away: this is added.
    """
    n = len(values)
    reach = (high - low) * np.sqrt(9 * tau_mix * np.log(2 / delta) / (2 * n))
    if fixed_start:
        reach = reach + 2 * tau_mix * (high - low) / n
    return _around(values, reach, low, high) if clip else _around(values, reach)


def bernstein(
    values: np.ndarray, delta: float, tau_mix: float, low: np.ndarray, high: np.ndarray, *, clip: bool = True
) -> Bounds:
    """Paulin's Bernstein inequality (2015, theorem 3.4), with the variance bounded from the same path.

    P(|S - n mu| >= t) <= 2 exp(-t^2 gamma / (8 (n + 1/gamma) V + 20 t C)), pseudo spectral gap gamma >= 1 / (2 tau_mix)
    (proposition 3.4 there), C = b - a. V is at most the mean of h = (f - c)^2 for every c; the same inequality with
    Var h <= M E h, M = max h, bounds the mean of h for c = a, (a + b) / 2 and b, at delta / 9 each; two thirds
    of delta go to the mean of f. The path must start in the stationary law.
    """
    n, gamma = len(values), 1 / (2 * tau_mix)

    def deviation(variance: np.ndarray, size: np.ndarray, weight: float) -> np.ndarray:
        """t / n at which one side of the bound is exp(-weight)."""
        linear, constant = 10 * size * weight, 8 * (n + 1 / gamma) * variance * weight
        return (linear + np.sqrt(linear**2 + gamma * constant)) / gamma / n

    variance = np.square((high - low) / 2)
    for centre in (low, (low + high) / 2, high):
        most = np.square(np.maximum(high - centre, centre - low))
        seen, bound = np.mean(np.square(values - centre), axis=0), most.copy()
        for _ in range(100):  # falls towards the largest mean of h that the path allows
            bound = np.minimum(most, seen + deviation(most * bound, most, np.log(9 / delta)))
        variance = np.minimum(variance, bound)
    reach = deviation(variance, high - low, np.log(3 / delta))
    return _around(values, reach, low, high) if clip else _around(values, reach)


def anytime(
    values: np.ndarray,
    delta: float,
    tau_mix: float,
    low: np.ndarray,
    high: np.ndarray,
    tuned_for: int | None = None,
    *,
    clip: bool = True,
) -> Bounds:
    """An interval that may be looked at after every sample: it holds at all times together.

    With g the solution of the Poisson equation, whose values lie within 2 tau_mix (b - a) of each other, S_n - n mu is
    a martingale but for twice that range at most. Over a block of L = 2 tau_mix samples the martingale moves within
    (L + 2 tau_mix)(b - a), so `boundary` applies with the variance 2 tau_mix (b - a)^2 a sample
    (docs/laboratory/coverage.md). The intervals at all block ends so far are intersected. From any start.

    It is tightest at `tuned_for` samples, which must stay the same from look to look; the length of the series unless
    given, which is for one look alone.
    """
    low, high = (np.broadcast_to(end, values.shape[1]) for end in (low, high))
    found = KnownSequence(delta, tau_mix, low, high, len(values) if tuned_for is None else tuned_for)
    found.add(values)
    least, most = found.ends()
    return (np.maximum(least, low), np.minimum(most, high)) if clip else (least, most)


def anytime_asymptotic(values: np.ndarray, delta: float, tuned_for: int | None = None) -> Bounds:
    """The same without bounds or a mixing time, as n grows: `sequence.LearnedSequence`.

    Columns that have not shown enough have no ends; where those at different times exclude each other, the lower one is
    above the upper one.
    """
    found = LearnedSequence(delta, values.shape[1], len(values) if tuned_for is None else tuned_for)
    found.add(values)
    return found.ends()


def iid_normal(values: np.ndarray, delta: float) -> Bounds:
    """mean +- z s / sqrt(n), as if samples were independent."""
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return _around(values, scipy.stats.norm.ppf(1 - delta / 2) * error)


def iid_bootstrap(values: np.ndarray, delta: float, resamples: int = 200, seed: int = 0) -> Bounds:
    """Percentiles of the means of samples drawn again one by one, as if they were independent."""
    rng, n = np.random.default_rng(seed), len(values)
    means = []
    for start in range(0, resamples, 20):  # at once they would take resamples x n numbers
        drawn = rng.integers(n, size=(min(20, resamples - start), n))
        times = np.stack([np.bincount(row, minlength=n) for row in drawn]).astype(float)
        means.append(times @ values / n)
    found = np.quantile(np.concatenate(means), [delta / 2, 1 - delta / 2], axis=0)
    return found[0], found[1]


def _around(
    values: np.ndarray, reach: np.ndarray, low: np.ndarray | float = -np.inf, high: np.ndarray | float = np.inf
) -> Bounds:
    mean = values.mean(axis=0)
    return np.maximum(mean - reach, low), np.minimum(mean + reach, high)
