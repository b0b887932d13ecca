"""Moments of the means of consecutive blocks of 1, 2, 4, ... samples, kept as samples arrive.

The memory is the same however many samples there were, and so is every number however they were cut into calls: sums
run strictly in the order of time, and blocks are aligned with the first sample.
"""

from __future__ import annotations

import numpy as np

LEVELS = 44  # blocks of up to 2^43 samples: more than will ever be seen


class Blocks:
    """Sums of the first three powers of block means, column by column of (n, k).

    Values are taken relative to the first sample: an offset costs no digits, and a series that never moves has moments
    that are exactly zero.
    """

    def __init__(self, columns: int) -> None:
        self.count = 0
        self.shift = np.zeros(columns)
        self.sums = np.zeros((LEVELS, 3, columns))
        self.pending = np.zeros((LEVELS, columns))  # a block whose neighbour is not complete; bit j of count says if

    def add(self, values: np.ndarray) -> None:
        """More samples, (n, k)."""
        if not self.count:
            self.shift = values[0].copy()
        rest = values - self.shift
        for level in range(LEVELS):
            square = rest * rest
            for power, terms in enumerate((rest, square, square * rest)):
                self.sums[level, power] = running(self.sums[level, power], terms)[-1]
            if self.count >> level & 1:
                rest = np.concatenate([self.pending[level][None], rest])
            self.pending[level] = rest[-1] if len(rest) % 2 else 0.0
            pairs = len(rest) // 2
            if not pairs:
                break
            rest = (rest[: 2 * pairs : 2] + rest[1 : 2 * pairs : 2]) / 2
        self.count += len(values)

    @property
    def mean(self) -> np.ndarray:
        """Of all samples, (k,)."""
        return self.shift + self.sums[0, 0] / max(self.count, 1)

    def moments(self, least: int) -> Moments:
        """Of the levels that have `least` whole blocks."""
        levels = max((self.count // least).bit_length(), 1)
        numbers = self.count >> np.arange(levels)
        return Moments.of(self.sums[:levels], numbers)


class Moments:
    """Per level (rows) and column: long-run variance as blocks of this level see it, and the skewness of the mean.

    Attributes:
        numbers: (levels,) whole blocks.
        lengths: (levels,) samples in one.
        long_run: (levels, k) length x variance of a block's mean; grows towards the long-run variance where samples
            are positively correlated.
        skewness: (levels, k) that of the mean of all of them, as if blocks were independent: a block's / sqrt(number).
    """

    def __init__(self, numbers: np.ndarray, variance: np.ndarray, third: np.ndarray) -> None:
        self.numbers, self.lengths = numbers, 2.0 ** np.arange(len(numbers))
        self.long_run = variance * self.lengths[:, None]
        scale = np.where(variance > 0, variance, 1.0) ** 1.5
        self.skewness = third / scale / np.sqrt(np.maximum(numbers, 1))[:, None]

    @staticmethod
    def of(sums: np.ndarray, numbers: np.ndarray) -> Moments:
        """From sums of powers (levels, 3, k)."""
        m = np.maximum(numbers, 1)[:, None]
        mean, second, third = (sums[:, power] / m for power in range(3))
        variance = np.maximum(second - mean**2, 0) * (m / np.maximum(m - 1, 1))
        return Moments(numbers, variance, third - 3 * mean * second + 2 * mean**3)


def running(start: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """Sums so far, one after the other: numpy's own sum adds in an order that depends on how many there are."""
    return np.cumsum(np.concatenate([start[None], terms]), axis=0)[1:]
