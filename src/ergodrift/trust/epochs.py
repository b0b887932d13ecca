"""Baselines that double, and windows that are held against them: what a drift alarm does with its samples.

The first `warm_up` samples of a column make an empirical law, and every later sample becomes its rank in it: a number
between 0 and 1, whatever the units and the tails. The mean of the ranks tells a change of level, that of |2 rank - 1|
one of spread. Whenever the samples have doubled, those so far become the baseline of an epoch, which lasts until they
have doubled again. In it the means of windows of 4, 8, 16, ... grains are held against the baseline's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from ergodrift.trust.blocks import Blocks, Moments, running
from ergodrift.trust.sequence import f_quantile
from ergodrift.trust.skewness import stretch

GRAIN = 16  # samples that are averaged before anything else is done with them
CHUNK = 2**16  # samples that are looked at side by side
WINDOW = 4  # how many steps a window is long
STEPS = 40  # windows begin at multiples of 1, 2, 4, ... 2^39 grains
FIRST = 4  # the first baseline is so many times as long as the warm-up
PAIRS = 24  # of neighbouring blocks that a variance stands on
REACH = 10  # integrated autocorrelation times that a block must last
BETWEEN = 0.75  # the part of a block, in integrated times, that correlation between neighbours takes from their spread
USUAL, UNUSUAL = 0.95, 0.99  # quantiles of F: a larger variance of longer blocks counts, or forbids shorter ones


class Found(NamedTuple):
    """A window that differs from the baseline, as numbers: the fields of `Drift`."""

    sample: int
    since: int
    column: int
    spread: int
    before: float
    after: float
    excess: float


class Epochs:
    """The columns of a drift alarm: ranks, baseline and windows.

    Features are (level, spread) of all columns, (2 m,). Beside them stand the values and their distances from the
    median, which are told, and squares of ranks, for variances: (5 m,) in all. `sums` are running totals over grains;
    those at the last four multiples of 2^j grains stand in row j of `marks`.
    """

    def __init__(self, columns: int, delta: float, warm_up: int) -> None:
        self.columns, self.warm_up = columns, warm_up
        self.first, self.delta = FIRST * warm_up // GRAIN, delta / (2 * columns)
        self.grains, self.filled = 0, 0
        self.warm = np.zeros((warm_up, columns))  # in order of time while it fills, then sorted
        self.part = np.zeros((GRAIN, columns))  # an unfinished grain
        self.sums = np.zeros(5 * columns)
        self.marks = np.zeros((STEPS, WINDOW, 5 * columns))
        self.base = np.zeros(5 * columns)  # of the epoch: means, and thresholds by window
        self.limits = np.full((STEPS, 2 * columns), np.inf)
        self.blocks = Blocks(2 * columns)

    def add(self, values: np.ndarray) -> Found | None:
        """More samples, (n, m), until a change is found."""
        if (missing := self.warm_up - self.filled) > 0:
            first, values = values[:missing], values[missing:]
            self.warm[self.filled : self.filled + len(first)] = first
            self.filled += len(first)
            if self.filled < self.warm_up:
                return None
            self.warm = np.sort(self.warm, axis=0)
        for start in range(0, len(values), CHUNK):  # memory does not grow with an update
            if (found := self._take(values[start : start + CHUNK])) is not None:
                return found
        return None

    def _take(self, values: np.ndarray) -> Found | None:
        values = np.concatenate([self.part[: (self.filled - self.warm_up) % GRAIN], values])
        whole = len(values) // GRAIN * GRAIN
        self.filled = self.warm_up + self.grains * GRAIN + len(values)
        self.part[: len(values) - whole] = values[whole:]
        grains = self._grains(values[:whole])
        while len(grains):
            end = 2 * self._epoch() or self.first
            part, grains = grains[: end - self.grains], grains[end - self.grains :]
            if (found := self._scan(part)) is not None:
                return found
            if self.grains == end:
                self._begin_epoch()
        return None

    def _grains(self, values: np.ndarray) -> np.ndarray:
        """Means over grains, (grains, 5 m)."""
        if not len(values):
            return np.empty((0, 5 * self.columns))
        below, upto = (
            np.stack([np.searchsorted(w, v, side) for w, v in zip(self.warm.T, values.T, strict=True)], axis=1)
            for side in ("left", "right")
        )
        ranks = (below + upto) / (2 * self.warm_up)
        centre = self.warm[self.warm_up // 2]
        parts = [ranks, np.abs(2 * ranks - 1), values - centre, np.abs(values - centre), ranks * ranks]
        all_parts = np.concatenate(parts, axis=1).reshape(-1, GRAIN, 5 * self.columns)
        total = all_parts[:, 0].copy()
        for at in range(1, GRAIN):  # one after the other: the order of a sum must not depend on the cutting
            total += all_parts[:, at]
        return total / GRAIN

    def _scan(self, grains: np.ndarray) -> Found | None:
        """Hold the windows that end in these grains, all of one epoch, against its thresholds."""
        totals = running(self.sums, grains)
        first, count, features = self.grains + 1, len(grains), 2 * self.columns
        epoch, best = self._epoch(), None
        for step in range(STEPS):
            stride = 1 << step
            offset = -first % stride
            if offset >= count:
                break  # those of longer steps are further away
            ends = np.concatenate([self.marks[step], totals[offset::stride]])
            times = first + offset + stride * np.arange(len(ends) - WINDOW)
            self.marks[step] = ends[-WINDOW:]
            inside = times - WINDOW * stride >= epoch
            if not epoch or not inside.any() or not np.isfinite(self.limits[step]).any():
                continue
            means = (ends[WINDOW:] - ends[:-WINDOW]) / (WINDOW * stride)
            ratio = np.abs(means[:, :features] - self.base[:features]) / self.limits[step]
            over = np.flatnonzero(inside & (ratio > 1).any(axis=1))
            if len(over) and (best is None or times[over[0]] < best[0]):
                at = int(over[0])
                best = int(times[at]), WINDOW * stride, means[at], ratio[at]
        self.sums, self.grains = totals[-1], self.grains + count
        self.blocks.add(grains[:, :features])
        return None if best is None else self._found(*best)

    def _found(self, time: int, length: int, means: np.ndarray, ratio: np.ndarray) -> Found:
        feature = int(np.argmax(ratio))
        spread, column = divmod(feature, self.columns)
        told, centre = feature + 2 * self.columns, 0.0 if spread else self.warm[self.warm_up // 2, column]
        end = self.warm_up + time * GRAIN
        before, after = float(self.base[told] + centre), float(means[told] + centre)
        return Found(end, end - length * GRAIN, column, spread, before, after, float(ratio[feature]))

    def _epoch(self) -> int:
        """The grain at which the present epoch began; 0 before the first."""
        return 0 if self.grains < self.first else self.first << ((self.grains // self.first).bit_length() - 1)

    def _begin_epoch(self) -> None:
        """All grains so far are the baseline; thresholds for the windows of the next as many."""
        self.base = self.sums / self.grains
        level, long_run, skewness, pairs = self._spread()
        number = (self.grains // self.first).bit_length()  # of the epoch, from 1: shares add up to 1
        share = self.delta * 6 / np.pi**2 / number**2
        for step in range(STEPS):
            window = WINDOW << step
            tested = (level >= 0) & (window >= 2.0**level) & (window <= self.grains)
            windows = np.log2(self.grains / np.maximum(2.0**level, WINDOW)) + 1  # of different lengths
            p = share / np.maximum(windows, 1) / (self.grains / 2**step) / 2
            quantile = stretch(skewness / np.sqrt(window), p) * scipy.stats.t.isf(p, pairs) / scipy.stats.norm.isf(p)
            limit = np.sqrt(long_run * (1 / window + 1 / self.grains)) * quantile
            self.limits[step] = np.where(tested, limit, np.inf)

    def _spread(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Of each feature: which blocks (of 2^level grains) may pass for independent, -1 where none; the long-run
        variance of grains that they show; the skewness of a grain, were grains independent; on how many pairs of
        neighbouring blocks these stand.

        Half the mean square difference of neighbours, as a trend in the baseline leaves it alone (Allan 1966).
        """
        levels = max((self.grains // 4).bit_length(), 2)
        numbers = self.grains >> np.arange(levels)
        squares = self.blocks.sums[:levels, 1] / numbers[:, None]
        lengths, pairs = 2.0 ** np.arange(levels - 1)[:, None], np.maximum(numbers[:-1] // 2, 1)[:, None]
        allan = 2 * lengths * np.maximum(squares[:-1] - squares[1:], 0)
        rank, spread, *_, square = self.base.reshape(5, self.columns)
        variance = np.concatenate([square - rank**2, 4 * square - 4 * rank + 1 - spread**2])
        plain = Moments.of(self.blocks.sums[:levels], numbers)
        lasting, long_run = np.ones(allan.shape, dtype=bool), allan.copy()
        for level in range(levels - 1):
            for longer in range(level + 1, levels):
                ratio = plain.long_run[longer] / np.maximum(allan[level], 1e-300)
                lasting[level] &= ratio <= f_quantile(UNUSUAL, numbers[longer], pairs[level, 0] + 1)
                long_run[level] = np.maximum(
                    long_run[level], plain.long_run[longer] / f_quantile(USUAL, numbers[longer], pairs[level, 0] + 1)
                )
        times = np.maximum(long_run * GRAIN / np.maximum(variance, 1e-12), 1.0)  # integrated, in samples
        fits = lasting & (lengths * GRAIN >= REACH * times) & (pairs >= PAIRS)
        found, chosen, column = fits.any(axis=0), np.argmax(fits, axis=0), np.arange(2 * self.columns)
        kept = 1 - BETWEEN * (times - 1) / (lengths * GRAIN)
        long_run, own = (long_run / np.maximum(kept, 0.5))[chosen, column], pairs[chosen, 0]
        # As if one sample more had been at the other end: of what has hardly moved yet, little is known.
        once = 1 / (self.grains * GRAIN**2)
        long_run = np.maximum(long_run, once)
        skewed = plain.skewness * np.sqrt(numbers)[:, None]
        nearby = [np.minimum(chosen + more, levels - 2) for more in range(3)]
        seen = np.max([np.abs(skewed[at, column]) * np.sqrt(lengths[at, 0]) for at in nearby], axis=0)
        skewness = np.maximum(seen, once / GRAIN / long_run**1.5)
        return np.where(found, chosen, -1), long_run, skewness, own

    def state(self) -> dict[str, np.ndarray]:
        """All that the next sample needs."""
        mine = {name: getattr(self, name).copy() for name in ("warm", "part", "sums", "marks", "base", "limits")}
        blocks = {f"blocks_{name}": getattr(self.blocks, name).copy() for name in ("shift", "sums", "pending")}
        counts = np.array([self.grains, self.filled, self.blocks.count])
        return {**mine, **blocks, "counts": counts}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from there; a state of other shapes is refused."""
        for name, value in self.state().items():
            if (state[name].shape, state[name].dtype) != (value.shape, value.dtype):
                raise ValueError(f"{name} is {state[name].dtype} of shape {state[name].shape}, not {value.shape}")
        for name in ("warm", "part", "sums", "marks", "base", "limits"):
            setattr(self, name, state[name].copy())
        for name in ("shift", "sums", "pending"):
            setattr(self.blocks, name, state[f"blocks_{name}"].copy())
        self.grains, self.filled, self.blocks.count = (int(each) for each in state["counts"])
