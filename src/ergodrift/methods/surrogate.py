"""Descent on surrogate losses: the loss plus the slope of an exponential Lyapunov function times the constraints."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import tree
from ergodrift.geometry import Geometry
from ergodrift.methods.method import Method
from ergodrift.methods.schedule import FeedbackSchedule
from ergodrift.types import Feedback, PyTree, Scalar, Sizes

LARGEST = 80.0  # e^80 is the largest multiplier that is recorded: a float32 holds no e^89


class SurrogateSteps(NamedTuple):
    """A round of descent on a surrogate loss.

    Attributes:
        primal: the step along the gradient of the loss.
        pull: (n,) the steps along the gradients of the constraints.
        multiplier: (n,) their ratio, cut at e^80.
    """

    primal: jax.Array
    pull: jax.Array
    multiplier: jax.Array


class Surrogate(Method):
    """x_{t+1} = Proj(x_t - eta_t (df_t(x_t) + sum_i lambda_ti dg_ti(x_t))), with lambda_t set by the schedule.

    The steps of a surrogate loss depend on its multipliers, so the schedule has both; `queue` shows lambda_t.
    """

    reads = SurrogateSteps._fields

    def update(self, x: PyTree, queue: jax.Array, feedback: Feedback, weights: PyTree) -> tuple[PyTree, jax.Array]:
        pull = tree.pullback(weights.pull, feedback.constraint_jac)
        target = jax.tree.map(lambda a, b, c: a - weights.primal * b - c, x, feedback.loss_grad, pull)
        return self.geometry.project(target), weights.multiplier


class SurrogateState(NamedTuple):
    """What both schedules below carry. Exponents grow with t, and their powers would overflow: energies are in units
    of the largest power so far, in which nothing does.

    Attributes:
        violation: Q, (n,) or a scalar, compensated.
        energy: the sum of the squared surrogate gradients, compensated, in units of e^(2 max peak).
        slopes: (n,) P, sums of the squared slopes, in units of e^(2 peak); none where nothing asks for them.
        peak: (n,) or a scalar, the largest exponent so far.
        diameter: D.
        steps: of the round.
    """

    violation: tuple[jax.Array, jax.Array]
    energy: tuple[jax.Array, jax.Array]
    slopes: PyTree
    peak: jax.Array
    diameter: jax.Array
    steps: SurrogateSteps


class _Potential(FeedbackSchedule):
    """The round's steps, which `absorb` has found with everything else."""

    def weights(self, state: SurrogateState, t: jax.Array, sizes: Sizes) -> tuple[SurrogateState, SurrogateSteps]:
        return state, state.steps


class HardPotential(_Potential):
    """Sinha and Vaze's: Q_t sums what max_i g_ti is above 0, times beta = 1 / (2 G D), and Phi(Q) = e^(lambda Q) - 1.

    lambda = 1 / (2 sqrt T), and eta_t = D / sqrt(2 sum_{s <= t} |surrogate gradient|^2). Of beta, which they scale the
    loss by as well, the steps depend through Q alone.

    Attributes:
        horizon: T, the number of samples.
        gradient_bound: G, on the norms of all gradients.
        diameter: D; the domain's unless given.
    """

    horizon: Scalar
    gradient_bound: Scalar
    diameter: Scalar | None

    def init(self, geometry: Geometry, x: PyTree, num_constraints: int) -> SurrogateState:
        zero, blank = jnp.zeros((), tree.dtype(x)), jnp.zeros(num_constraints, tree.dtype(x))
        steps = SurrogateSteps(zero, blank, blank)
        return SurrogateState(
            tree.compensated(zero), tree.compensated(zero), (), zero, euclidean(geometry, x, self.diameter), steps
        )

    def absorb(self, state: SurrogateState, t: jax.Array, feedback: Feedback) -> SurrogateState:
        worst = jnp.argmax(feedback.constraints)
        chosen = jnp.arange(feedback.constraints.size) == worst
        hit = (chosen & (feedback.constraints > 0)).astype(feedback.loss.dtype)
        over = jnp.maximum(feedback.constraints[worst], 0) / (2 * self.gradient_bound * state.diameter)
        rate = jnp.asarray(1 / (2 * self.horizon**0.5), over.dtype)
        violation = tree.running_add(state.violation, over)
        exponent = rate * violation[0]  # Q never falls: the latest power is the largest
        pull = rate * hit
        share = jnp.exp(-exponent)
        energy = _energy(state.energy, jnp.exp(state.peak - exponent), share, pull, feedback)
        step = _adaptive(state.diameter, energy)
        steps = SurrogateSteps(step * share, step * pull, pull * jnp.exp(jnp.minimum(exponent, LARGEST)))
        return state._replace(violation=violation, energy=energy, peak=exponent, steps=steps)


class SoftPotential(_Potential):
    """Yu, Lee and Lee's: Q_{t+1} = Q_t + g_t(x_t) - R_t, whatever its sign, and Phi_t(Q) = e^(gamma_t Q) - 1.

    gamma_t = min(1 / (12 G sqrt t), 1 / (24 D L), 1)
    R_t = 12 gamma_t G^2 + 4 D L (sqrt(P_t) - sqrt(P_{t-1})) / Phi_t'(Q_t), with P_t = sum_{s <= t} Phi_s'(Q_s)^2
    eta_t = D / sqrt(2 (1 + sum_{s <= t} |df_s + Phi_s'(Q_s) dg_s|^2))

    Attributes:
        gradient_bound: L, on the norms of all gradients.
        constraint_bound: G, on all |g_i|.
        diameter: D; the domain's unless given.
        gamma_scale: by which gamma_t is multiplied.
        regularizer_scale: by which R_t is multiplied.
    """

    gradient_bound: Scalar
    constraint_bound: Scalar
    diameter: Scalar | None
    gamma_scale: Scalar
    regularizer_scale: Scalar

    def init(self, geometry: Geometry, x: PyTree, num_constraints: int) -> SurrogateState:
        zero, blank = jnp.zeros((), tree.dtype(x)), jnp.zeros(num_constraints, tree.dtype(x))
        steps = SurrogateSteps(zero, blank, blank)
        return SurrogateState(
            tree.compensated(blank),
            tree.compensated(jnp.ones_like(zero)),
            blank,
            blank,
            euclidean(geometry, x, self.diameter),
            steps,
        )

    def absorb(self, state: SurrogateState, t: jax.Array, feedback: Feedback) -> SurrogateState:
        bound, across = self.constraint_bound, state.diameter * self.gradient_bound
        root = jnp.sqrt(t.astype(feedback.loss.dtype))
        gamma = jnp.minimum(jnp.minimum(1 / (12 * bound * root), 1 / (24 * across)), 1)
        gamma = jnp.multiply(self.gamma_scale, gamma)
        exponent = gamma * state.violation[0]
        peak = jnp.maximum(state.peak, exponent)
        before = state.slopes * jnp.exp(2 * (state.peak - peak))
        slope = gamma * jnp.exp(exponent - peak)
        slopes = before + jnp.square(slope)
        regularizer = 12 * gamma * bound**2 + 4 * across * slope / (jnp.sqrt(slopes) + jnp.sqrt(before))
        drift = feedback.constraints - self.regularizer_scale * regularizer
        top = jnp.max(peak)
        pull = gamma * jnp.exp(exponent - top)
        share = jnp.exp(-top)
        energy = _energy(state.energy, jnp.exp(jnp.max(state.peak) - top), share, pull, feedback)
        step = _adaptive(state.diameter, energy)
        steps = SurrogateSteps(step * share, step * pull, gamma * jnp.exp(jnp.minimum(exponent, LARGEST)))
        violation = tree.running_add(state.violation, drift)
        return SurrogateState(violation, energy, slopes, peak, state.diameter, steps)


def euclidean(geometry: Geometry, x: PyTree, given: Scalar | None) -> jax.Array:
    """D with |y - z| <= D for all y, z in X, as given or from R and the reach of the domain, whichever is smaller."""
    width = jnp.minimum(geometry.diameter(x), 2 * geometry.reach(x)) if given is None else given
    if not tree.is_traced(width) and not np.isfinite(width):
        raise ValueError(
            f"{type(geometry).__name__} has no finite diameter, which this algorithm needs; pass diameter=..."
        )
    if not tree.is_traced(width) and not width > 0:
        raise ValueError(f"the domain is a single point: its diameter is {width}")
    return jnp.asarray(width, tree.dtype(x))


def _energy(
    so_far: tuple[jax.Array, jax.Array], shrink: jax.Array, share: jax.Array, pull: jax.Array, feedback: Feedback
) -> tuple[jax.Array, jax.Array]:
    """The sum of squares with share df + sum_i pull_i dg_i in it, the sum so far in units that shrink it."""
    drift = tree.pullback(pull, feedback.constraint_jac)
    direction = jax.tree.map(lambda a, b: share * a + b, feedback.loss_grad, drift)
    return tree.running_add(tree.scale(so_far, jnp.square(shrink)), tree.squared_norm(direction))


def _adaptive(diameter: jax.Array, energy: tuple[jax.Array, jax.Array]) -> jax.Array:
    """D / sqrt(2 S_t); 0 until there is a gradient."""
    total = energy[0]
    return jnp.where(total > 0, diameter / jnp.sqrt(2 * jnp.where(total > 0, total, 1)), 0)
