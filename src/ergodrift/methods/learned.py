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

LEVELS = 24  # blocks of 1, 2, 4, ..., 2^23 rounds
FEWEST, RECENT = 16, 64  # pairs of blocks that a level needs to count, and that it remembers


class HaarState(NamedTuple):
    """Haar coefficients of a few series at dyadic scales: all that is kept of the past, two tables of LEVELS x series.

    Attributes:
        waiting: the mean of the first block of the pair that is being filled, at each level.
        power: half the mean square difference of the two blocks of a pair (the Allan variance), over the recent pairs.
        signs: +-1, the direction along which the gradient of the loss is looked at.
        product: tau_mix t, which never decreases.
        tau_mix: the estimate.
    """

    waiting: jax.Array
    power: jax.Array
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
        kind = tree.dtype(x)
        blank = jnp.zeros((LEVELS, num_constraints + 2), kind)
        leaves, structure = jax.tree.flatten(x)
        rng = np.random.default_rng(0)
        signs = [jnp.asarray(rng.choice([-1.0, 1.0], size=leaf.shape), kind) for leaf in leaves]
        one = jnp.ones((), kind)
        return HaarState(blank, blank, jax.tree.unflatten(structure, signs), jnp.zeros((), kind), one)

    def absorb(self, state: HaarState, t: jax.Array, feedback: Feedback) -> HaarState:
        """The estimate with round t in it."""
        slope = tree.total(jax.tree.map(jnp.multiply, state.signs, feedback.loss_grad))
        seen = jnp.concatenate([jnp.stack([feedback.loss, slope]), feedback.constraints])
        length = 2 ** np.arange(LEVELS, dtype=np.int32)[:, None]
        full, paired, pairs = t % length == 0, t % (2 * length) == 0, t // (2 * length)
        # Two blocks that are full are one of the next level: sums of pairs keep their digits, in float32 too.
        blocks = [seen]
        for first in state.waiting[:-1]:
            blocks.append((first + blocks[-1]) / 2)
        mean = jnp.stack(blocks)
        square = jnp.square(mean - state.waiting) / 2
        share = 1 / jnp.clip(pairs, 1, RECENT).astype(mean.dtype)
        power = jnp.where(paired, state.power + (square - state.power) * share, state.power)
        known = jnp.where(pairs >= FEWEST, power, 0)
        variance = jnp.sum(known, axis=0) / 2
        long_run = jnp.max(known * length.astype(mean.dtype), axis=0)
        ratio = jnp.max(jnp.where(variance > 0, long_run / jnp.where(variance > 0, variance, 1), 1))
        return state._replace(
            waiting=jnp.where(full & ~paired, mean, state.waiting),
            power=power,
            tau_mix=(jnp.maximum(ratio, 1) + 1) / 2,
        )

    def weights(self, state: HaarState, t: jax.Array, sizes: Sizes) -> tuple[HaarState, LearnedWeights]:
        product = jnp.maximum(state.product, state.tau_mix * t.astype(state.product.dtype))
        return state._replace(product=product), LearnedWeights(product**self.beta, product, state.tau_mix)
