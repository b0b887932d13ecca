"""Intervals that hold at all times together, brought up to date while samples arrive, in memory that does not grow.

`KnownSequence` needs bounds and a mixing time and holds for every n; `LearnedSequence` needs neither and holds as n
grows. Both are looked at after whole blocks only, at times that do not depend on how samples were cut into calls.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import scipy

from ergodrift.trust.blocks import Blocks, Moments, running
from ergodrift.trust.skewness import stretch, tails

FIRST, EARLY = 512, 16  # nothing is said before so many samples, nor before tuned_for / EARLY
FEWEST, MOST = 12, 128  # blocks that a standard error stands on
VISIBLE = 4  # blocks from which a level can show that samples stay correlated for longer
REACH, SLOWER = 5, 0.9  # to be given: integrated times in a block, and a quantile of F that no longer block exceeds
UNSEEN = 1.5  # allowance for skewness, over the number of blocks
SKEWED = 0.35  # to be given: the skewness of the mean at most; some 12 rare events
WIDER = 0.6  # quantile of F beyond which a larger variance of longer blocks widens
TOO_SHORT, TOO_SLOW, TOO_SKEWED = 2, 0.999, 0.7  # the same three for ends to be taken back, as given too early
GIVEN, ONE_VALUE, EARLY_DAYS, SHORT_BLOCKS, FEW_EVENTS = range(5)


def boundary(variance: np.ndarray, delta: float, tuned: np.ndarray | float) -> np.ndarray:
    """A level that |M| stays below for ever with probability 1 - delta, `variance` being that of the martingale so far.

    sqrt((V + rho) log((V + rho) / (rho delta^2))), a mixture of normals (Robbins 1970); rho makes it tightest at V =
    `tuned`.
    """
    rho = tuned / (2 * np.log(1 / delta) + np.log(1 + 2 * np.log(1 / delta)))
    return np.sqrt((variance + rho) * np.log((variance + rho) / (rho * delta**2)))


class KnownSequence:
    """For values in [low, high] and a mixing time: the interval of `intervals.anytime`, sample by sample."""

    def __init__(self, delta: float, tau_mix: float, low: np.ndarray, high: np.ndarray, tuned_for: int) -> None:
        self.delta, self.tau_mix, self.tuned_for = delta, tau_mix, tuned_for
        self.size, self.range = int(np.ceil(2 * tau_mix)), high - low
        self.count, self.total = 0, np.zeros(len(low))
        self.lower, self.upper = np.full(len(low), -np.inf), np.full(len(low), np.inf)

    def add(self, values: np.ndarray) -> None:
        """More samples, (n, k); the intervals at the ends of blocks are intersected."""
        sums = running(self.total, values)
        ends = np.arange(self.size - self.count % self.size, len(values) + 1, self.size)
        if len(ends):
            low, high = self._around(sums[ends - 1], (self.count + ends)[:, None])
            self.lower, self.upper = np.maximum(self.lower, low.max(axis=0)), np.minimum(self.upper, high.min(axis=0))
        self.total, self.count = sums[-1], self.count + len(values)

    def _around(self, sums: np.ndarray, n: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
        step = np.square((self.size + 2 * self.tau_mix) * self.range) / 4
        tuned = np.maximum(step * max(self.tuned_for / self.size, 1), 1e-300)
        reach = (boundary(np.maximum(n / self.size, 1) * step, self.delta, tuned) + 2 * self.tau_mix * self.range) / n
        return sums / n - reach, sums / n + reach

    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper, (k,); within the first block they are further apart than the bounds."""
        if 0 < self.count < self.size:
            return self._around(self.total, self.count)
        return self.lower, self.upper

    @property
    def mean(self) -> np.ndarray:
        """Of all samples, (k,)."""
        return self.total / max(self.count, 1)

    def state(self) -> dict[str, np.ndarray]:
        """All that the next sample needs."""
        return {"count": np.array(self.count), "total": self.total, "lower": self.lower, "upper": self.upper}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from there."""
        self.count, self.total = int(state["count"]), state["total"]
        self.lower, self.upper = state["lower"], state["upper"]


def schedule(tuned_for: int) -> tuple[np.ndarray, np.ndarray]:
    """After how many samples an interval that learns is looked at, and the share of delta that each look has."""
    powers = 2.0 ** np.arange(3, 60)
    looks = np.sort(np.concatenate([powers, 1.5 * powers]))
    looks = looks[looks >= max(FIRST, tuned_for / EARLY)]
    weight = 1 / np.square(1 + np.abs(np.log2(looks / tuned_for)))
    return looks, weight / weight.sum()


class Look(NamedTuple):
    """What one look at k columns says, (k,) each.

    Attributes:
        low, high: ends, or none.
        early: looks after fewer samples were too early.
        reason: why there are no ends where there are none.
        needed: after about how many samples there would be.
    """

    low: np.ndarray
    high: np.ndarray
    early: np.ndarray
    reason: np.ndarray
    needed: np.ndarray


def look(moments: Moments, mean: np.ndarray, n: int, delta: np.ndarray, tau_mix: np.ndarray | float) -> Look:
    """Student's t over blocks, where enough of them are long enough; `delta` is that of this look, (k,)."""
    usable = (moments.numbers >= FEWEST) & (moments.numbers <= MOST)
    fits = long_enough(moments, REACH, SLOWER, tau_mix) & usable[:, None]
    level, found = np.argmax(fits, axis=0), fits.any(axis=0)
    columns, number = np.arange(len(delta)), moments.numbers[level]
    up, down = tails(moments, level, UNSEEN)
    error = np.sqrt(moments.long_run[level, columns] * widening(moments, level) / n)
    # Few blocks know their variance badly: Student's quantile in place of the normal one.
    error = error * scipy.stats.t.isf(delta / 2, number - 1) / scipy.stats.norm.isf(delta / 2)
    skewed, moves = np.maximum(up, down), moments.long_run[0] > 0
    given = moves & found & (skewed <= SKEWED)
    low = np.where(given, mean - error * stretch(down, delta / 2), -np.inf)
    high = np.where(given, mean + error * stretch(up, delta / 2), np.inf)
    lasting = long_enough(moments, TOO_SHORT, TOO_SLOW, tau_mix)
    shortest = np.where(lasting.any(axis=0), moments.lengths[np.argmax(lasting, axis=0)], np.inf)
    early = np.maximum(FEWEST * shortest, n * np.square(skewed / TOO_SKEWED))
    reason = np.select([~moves, ~found], [ONE_VALUE, SHORT_BLOCKS], FEW_EVENTS)
    slow = 2 * FEWEST * REACH * np.max(moments.long_run, axis=0) / np.where(moves, moments.long_run[0], 1.0)
    wanted = [np.inf, np.maximum(2 * n, slow), n * np.square(skewed / SKEWED)]
    needed = np.select([reason == each for each in (ONE_VALUE, SHORT_BLOCKS, FEW_EVENTS)], wanted)
    return Look(low, high, early, reason, needed)


class LearnedSequence:
    """Without bounds or a mixing time: Student's t over blocks, at looks after 2^k and 3 x 2^k samples.

    At a look after n samples the mean of m blocks over its standard error has Student's law with m - 1 degrees of
    freedom as n grows with m fixed, for every stationary series that obeys a functional central limit theorem (Glynn
    and Iglehart 1990). delta is shared out among the looks, in proportion to (1 + |log2(n / tuned_for)|)^-2, so all of
    them hold together, and their intersection does. How long blocks must be, and when there were enough of them, is
    read off the same path (docs/laboratory/coverage.md): until then there are no ends, and ends that later samples show
    to have been given too early are taken back.

    Args:
        delta: of one column, a number or (k,).
        columns: k.
        tuned_for: where it should be tightest.
        tau_mix: a mixing time that blocks must outlast tenfold, where one is known.
    """

    def __init__(self, delta: np.ndarray | float, columns: int, tuned_for: int, tau_mix: float | None = None) -> None:
        self.delta, self.tuned_for, self.tau_mix = np.broadcast_to(delta, columns), tuned_for, tau_mix or 0.0
        self.blocks = Blocks(columns)
        self.looks, self.shares = schedule(tuned_for)
        self.low, self.high = (np.full((len(self.looks), columns), end) for end in (-np.inf, np.inf))  # at each look
        self.early = np.zeros(columns)  # looks after fewer samples turned out to be too early
        self.reason = np.full(columns, EARLY_DAYS)
        self.needed = np.full(columns, np.inf)

    def add(self, values: np.ndarray) -> None:
        """More samples, (n, k)."""
        while len(values):
            at = int(np.searchsorted(self.looks, self.blocks.count, side="right"))
            until = int(self.looks[at]) - self.blocks.count
            self.blocks.add(values[:until])
            values = values[until:]
            if self.blocks.count == self.looks[at]:
                self._look(at)

    def _look(self, at: int) -> None:
        delta = self.delta * self.shares[at]
        found = look(self.blocks.moments(VISIBLE), self.blocks.mean, self.blocks.count, delta, self.tau_mix)
        self.low[at], self.high[at], self.early = found.low, found.high, found.early
        self.reason = np.where(np.isfinite(self.ends()[1]), GIVEN, found.reason)
        self.needed = np.where(self.reason == GIVEN, 0.0, found.needed)

    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper, (k,): those of all looks that were not too early."""
        kept = self.looks[:, None] >= self.early
        return np.where(kept, self.low, -np.inf).max(axis=0), np.where(kept, self.high, np.inf).min(axis=0)

    def inconsistent(self) -> np.ndarray:
        """Where ends exclude each other, or the mean of all samples, (k,); where all were taken back, these count."""
        low, high = self.ends()
        none = np.isinf(high)
        low, high = np.where(none, self.low.max(axis=0), low), np.where(none, self.high.min(axis=0), high)
        return (low > high) | (self.mean < low) | (self.mean > high)

    def why(self, column: int) -> str:
        """Why there are no ends; nothing where there are."""
        seen = f"{self.blocks.count:,} samples"
        return {
            GIVEN: "",
            ONE_VALUE: f"one value in all {seen}",
            EARLY_DAYS: f"nothing is said before {self.looks[0]:,.0f} samples",
            SHORT_BLOCKS: f"{seen} that stay correlated for too long",
            FEW_EVENTS: f"too few rare, large values in {seen}",
        }[int(self.reason[column])]

    def more(self, column: int) -> float:
        """About how many more samples until there are ends."""
        needed = self.looks[0] if self.reason[column] == EARLY_DAYS else self.needed[column]
        return max(needed - self.blocks.count, 1.0) if self.reason[column] else 0.0

    @property
    def count(self) -> int:
        """Samples so far."""
        return self.blocks.count

    @property
    def mean(self) -> np.ndarray:
        """Of all samples, (k,)."""
        return self.blocks.mean

    def state(self) -> dict[str, np.ndarray]:
        """All that the next sample needs."""
        kept = {name: getattr(self, name) for name in ("low", "high", "early", "reason", "needed")}
        blocks = {name: getattr(self.blocks, name) for name in ("shift", "sums", "pending")}
        return {**kept, **blocks, "count": np.array(self.blocks.count)}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from there."""
        for name in ("low", "high", "early", "reason", "needed"):
            setattr(self, name, state[name])
        for name in ("shift", "sums", "pending"):
            setattr(self.blocks, name, state[name])
        self.blocks.count = int(state["count"])


def long_enough(moments: Moments, reach: float, quantile: float, tau_mix: np.ndarray | float) -> np.ndarray:
    """Which blocks may pass for independent, (levels, k).

    They must last `reach` integrated times, twice as many mixing times where one is known, and no longer blocks may
    show a larger long-run variance than chance allows (a quantile of F): a slow mode hides under fast noise in short
    blocks.
    """
    long_run = moments.long_run
    base = np.where(long_run[0] > 0, long_run[0], 1.0)
    fits = moments.lengths[:, None] >= np.maximum(reach * long_run / base, 2 * reach * tau_mix)
    for j in range(len(long_run)):
        for longer in range(j + 1, len(long_run)):
            limit = f_quantile(quantile, moments.numbers[longer], moments.numbers[j])
            fits[j] &= long_run[longer] <= limit * long_run[j]
    return fits


def widening(moments: Moments, level: np.ndarray) -> np.ndarray:
    """By how much longer blocks than those of this level, one a column, show a larger long-run variance, beyond what is
    usual by chance; (k,), 1 at least."""
    columns, found = np.arange(len(level)), np.ones(len(level))
    chosen = moments.long_run[level, columns]
    for longer in range(1, len(moments.numbers)):
        usual = np.array([f_quantile(WIDER, moments.numbers[longer], number) for number in moments.numbers[level]])
        ratio = moments.long_run[longer] / np.where(chosen > 0, chosen, np.inf) / usual
        found = np.where(longer > level, np.maximum(found, ratio), found)
    return found


@functools.cache
def f_quantile(quantile: float, above: int, below: int) -> float:
    """Of the ratio of two variances of so many blocks each."""
    return float(scipy.stats.f.ppf(quantile, above - 1, below - 1))
