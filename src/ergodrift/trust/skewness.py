"""Ends of an interval for the mean of skewed values.

A mean of few rare, large values (a burst, a failure, a claim) is no normal variable, and it comes with its own standard
error: where by chance few of them were seen, both are too small, and mean + z x error is too low much more often than
it should be. The skewness a of the mean measures it: N rare events have a = 1 / sqrt(N).
"""

from __future__ import annotations

import numpy as np
import scipy

from ergodrift.trust.blocks import Blocks, Moments

SMALL = 1e-3  # a skewness that makes no difference
ABOVE = 3  # levels of blocks that are asked for the skewness: it may grow with their length
LARGER = 1.2  # the skewness seen is on average too small: the largest values are those not seen yet


def stretch(skewness: np.ndarray | float, p: np.ndarray | float) -> np.ndarray:
    """How many standard errors above the estimate the upper end must lie, to be too low with probability p.

    The end of Poisson's mean (Garwood 1936): of N = 1 / a^2 events seen, (chi^2_{1-p}(2 N + 2) / 2 - N) / sqrt(N).
    For independent rare events it is exact; in general it shares with the true one the term in a of Edgeworth's
    expansion of Student's t (Hall 1992, section 2.6), (2 z^2 + 1) a / 6. It is z where a = 0, and never less.
    """
    events = 1 / np.square(np.maximum(skewness, SMALL))
    plain = scipy.stats.norm.isf(p)
    return np.maximum((scipy.special.gammainccinv(events + 1, p) - events) / np.sqrt(events), plain)


def tails(moments: Moments, level: np.ndarray, allowance: float) -> tuple[np.ndarray, np.ndarray]:
    """The skewness of the mean towards high and towards low values, as blocks from this level (one a column) on show
    it, with `allowance` / number of blocks for what so few cannot show; (k,) each."""
    columns = np.arange(len(level))
    last = len(moments.numbers) - 1
    seen = np.stack([moments.skewness[np.minimum(level + j, last), columns] for j in range(ABOVE)])
    unseen = allowance / moments.numbers[level]
    return tuple(LARGER * np.maximum(sign * seen, 0).max(axis=0) + unseen for sign in (1, -1))  # type: ignore[return-value]


def mean_skewness(values: np.ndarray, tau: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same for a recorded path (n, k) of relaxation times `tau`, from blocks of 8 of them and longer, while there
    are 8 of them."""
    blocks = Blocks(values.shape[1])
    blocks.add(values)
    moments = blocks.moments(8)
    level = np.minimum(np.ceil(np.log2(8 * np.maximum(tau, 1))).astype(int), len(moments.numbers) - 1)
    return tails(moments, level, 0.5)
