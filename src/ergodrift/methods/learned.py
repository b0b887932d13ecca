"""The schedule of EDPP when the mixing time is not known: it is estimated from the feedback as it comes."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import tree
from ergodrift.geometry import Geometry
from ergodrift.methods.schedule import FeedbackSchedule
from ergodrift.types import Feedback, PyTree, Scalar, Sizes

OFTEN, SELDOM = 4, 20  # levels of blocks of 1, 2, 4, 8 rounds, and of those of 16, 32, ..., 2^23, which have it easy
FEWEST, RECENT = 16, 64  # pairs of blocks that a level needs to count, and that it remembers


class Levels(NamedTuple):
    """Haar coefficients of a few series at some dyadic scales: all that is kept of the past.

    Attributes:
        waiting: (levels, series) the mean of the first block of the pair that is being filled.
        power: (levels, series) half the mean square difference of the two blocks of a pair (the Allan variance A_j),
            over the recent pairs.
    """

    waiting: jax.Array
    power: jax.Array


class Shares(NamedTuple):
    """What some levels say: (series,) sum_j A_j / 2 and max_j 2^j A_j, over those of them that count."""

    variance: jax.Array
    long_run: jax.Array


class HaarState(NamedTuple):
    """What EDPP-auto has of the past.

    Attributes:
        often: the levels of short blocks.
        seldom: those of long blocks, which are looked at every 2^OFTEN rounds.
        settled: what these said then.
        signs: +-1, the direction along which the gradient of the loss is looked at.
        product: tau_mix t, which never decreases.
        tau_mix: the estimate.
    """

    often: Levels
    seldom: Levels
    settled: Shares
    signs: PyTree
    product: jax.Array
    tau_mix: jax.Array


class LearnedWeights(NamedTuple):
    """V_t and alpha_t, and the mixing time estimated by round t."""

    penalty: jax.Array
    proximity: jax.Array
    tau_mix: jax.Array


class Learned(FeedbackSchedule):
    """V_t = m_t^beta, alpha_t = m_t with m_t = max(m_{t-1}, tau_t t), tau_t estimated from rounds 1..t.

    So V_t, alpha_t and alpha_t / V_t = m_t^(1 - beta) never decrease, as appendix A requires, whatever the estimates
    do.

    tau_t = (T + 1) / 2 with T the integrated autocorrelation time of the loss, the constraints and one direction of the
    gradient of the loss along the run, the largest of them. With A_j the Allan variance of blocks of 2^j rounds, sum_j
    A_j / 2 is the variance of a series and 2^j A_j its long-run variance once blocks are long against the dependence,
    so T = max_j 2^j A_j / (sum_j A_j / 2), over levels with 16 pairs of blocks or more. A level remembers its last 64
    pairs: what the first moves of x_t did to the series is forgotten. As long as the chain has not moved, T grows with
    t.
    """

    beta: Scalar

    def init(self, geometry: Geometry, x: PyTree, num_constraints: int) -> HaarState:
        kind, series = tree.dtype(x), num_constraints + 2
        leaves, structure = jax.tree.flatten(x)
        rng = np.random.default_rng(0)
        signs = [jnp.asarray(rng.choice([-1.0, 1.0], size=leaf.shape), kind) for leaf in leaves]
        often, seldom = (Levels(*[jnp.zeros((levels, series), kind)] * 2) for levels in (OFTEN, SELDOM))
        zero, signed = jnp.zeros((), kind), jax.tree.unflatten(structure, signs)
        return HaarState(often, seldom, Shares(*[jnp.zeros(series, kind)] * 2), signed, zero, jnp.ones((), kind))

    def absorb(self, state: HaarState, t: jax.Array, feedback: Feedback) -> HaarState:
        """The estimate with round t in it."""
        slope = tree.total(jax.tree.map(jnp.multiply, state.signs, feedback.loss_grad))
        seen = jnp.concatenate([jnp.stack([feedback.loss, slope]), feedback.constraints])
        often, short, block = _absorbed(state.often, t, seen, 1)
        whole = 2**OFTEN

        def look() -> tuple[Levels, Shares]:
            return _absorbed(state.seldom, t // whole, block, whole)[:2]

        seldom, settled = jax.lax.cond(t % whole == 0, look, lambda: (state.seldom, state.settled))
        variance, long_run = short.variance + settled.variance, jnp.maximum(short.long_run, settled.long_run)
        ratio = jnp.max(jnp.where(variance > 0, long_run / jnp.where(variance > 0, variance, 1), 1))
        return state._replace(often=often, seldom=seldom, settled=settled, tau_mix=(jnp.maximum(ratio, 1) + 1) / 2)

    def weights(self, state: HaarState, t: jax.Array, sizes: Sizes) -> tuple[HaarState, LearnedWeights]:
        product = jnp.maximum(state.product, state.tau_mix * t.astype(state.product.dtype))
        return state._replace(product=product), LearnedWeights(product**self.beta, product, state.tau_mix)


def _absorbed(levels: Levels, t: jax.Array, block: jax.Array, rounds: int) -> tuple[Levels, Shares, jax.Array]:
    """The levels with the t-th block of so many rounds in them, what they say, and the longest block, if it is full."""
    length = 2 ** np.arange(len(levels.waiting), dtype=np.int32)[:, None]
    full, paired, pairs = t % length == 0, t % (2 * length) == 0, t // (2 * length)
    # Two blocks that are full are one of the next level: sums of pairs keep their digits, in float32 too.
    blocks = [block]
    for first in levels.waiting:
        blocks.append((first + blocks[-1]) / 2)
    mean = jnp.stack(blocks[:-1])
    square = jnp.square(mean - levels.waiting) / 2
    share = 1 / jnp.clip(pairs, 1, RECENT).astype(mean.dtype)
    power = jnp.where(paired, levels.power + (square - levels.power) * share, levels.power)
    waiting = jnp.where(full & ~paired, mean, levels.waiting)
    known = jnp.where(pairs >= FEWEST, power, 0)
    long_run = jnp.max(known * (rounds * length).astype(mean.dtype), axis=0)
    return Levels(waiting, power), Shares(jnp.sum(known, axis=0) / 2, long_run), blocks[-1]
