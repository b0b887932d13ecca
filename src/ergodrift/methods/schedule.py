"""Schedules: how V_t and alpha_t (or the step sizes of a primal-dual method) are set, round by round.

A schedule sees the round's sizes (F_t, G_t, H_t) before it answers, so both S_{t-1} (MDPP) and S_t (adversarial) can be
expressed. Hyperparameters are leaves: a new value never recompiles and a sweep is a `vmap`.
"""

from __future__ import annotations

import abc
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import tree
from ergodrift.geometry import Geometry
from ergodrift.types import Feedback, PyTree, Scalar, Sizes, StepSizes, Weights


class Schedule(tree.Module, abc.ABC):
    """How a method is to weigh its rounds.

    A subclass is a frozen dataclass and a pytree: its fields are numbers that may be swept, those named in
    `class Mine(Schedule, static=("kind",))` are not. `weights` is all that it must have.
    """

    def init(self, geometry: Geometry, x: PyTree, num_constraints: int) -> PyTree:
        """The schedule's state before round 1; none unless a subclass has one."""
        return ()

    @abc.abstractmethod
    def weights(self, state: PyTree, t: jax.Array, sizes: Sizes) -> tuple[PyTree, PyTree]:
        """The next state, and the weights of round t = 1, 2, ...: `Weights`, or `StepSizes` for `PrimalDual`."""


class PresetSchedule(Schedule):
    """Weights that are set beforehand: theorems 1 to 3 are about these, as long as they never decrease."""

    @abc.abstractmethod
    def at(self, t: jax.Array) -> Weights:
        """The weights of round t = 1, 2, ..., a floating-point number, or an array of such rounds."""

    def weights(self, state: PyTree, t: jax.Array, sizes: Sizes) -> tuple[PyTree, Weights]:
        return state, self.at(t.astype(sizes.loss_grad.dtype))


class FeedbackSchedule(Schedule):
    """A schedule that learns from the feedback itself: it is shown each round before it is asked for the weights."""

    @abc.abstractmethod
    def absorb(self, state: PyTree, t: jax.Array, feedback: Feedback) -> PyTree:
        """The state after the feedback of round t = 1, 2, ..."""


class StateSchedule(Schedule):
    """A schedule that also looks at where the run stands: the point and the queue at which a round was asked."""

    @abc.abstractmethod
    def absorb(
        self, state: PyTree, t: jax.Array, feedback: Feedback, x: PyTree, queue: jax.Array, geometry: Geometry
    ) -> PyTree:
        """The state after the feedback of round t = 1, 2, ... at x_t and Q_t."""


class Constant(PresetSchedule):
    """V_t = penalty and alpha_t = proximity, every round."""

    penalty: Scalar
    proximity: Scalar

    def at(self, t: jax.Array) -> Weights:
        return Weights(jnp.full_like(t, self.penalty), jnp.full_like(t, self.proximity))


class Ergodic(PresetSchedule):
    """V_t = (tau_mix t)^beta, alpha_t = tau_mix t (Kim and Lee, section 3.1)."""

    tau_mix: Scalar
    beta: Scalar

    def at(self, t: jax.Array) -> Weights:
        proximity = self.tau_mix * t
        return Weights(proximity**self.beta, proximity)


class Energy(NamedTuple):
    """S_t as a compensated sum, the R it is scaled by, and the first a_t that is not 0, where that is its unit."""

    total: tuple[jax.Array, jax.Array]
    diameter: jax.Array
    unit: jax.Array | None = None


class AdaGrad(Schedule, static=("lagged", "relative")):
    """V_t = S^beta / R, alpha_t = S / R^2, where S sums a_t = F_t^2/4 + sum_i (R^2 G_ti^2 + H_ti^2) + offset.

    MDPP weighs round t with S_{t-1} (`lagged`), starting from S_0 = delta (section 4.2); the adversarial version with
    S_t, starting from 0 (appendix C).

    Attributes:
        start: S_0.
        offset: what is added to every a_t; section 4.2 adds delta, section 5 and appendix C nothing.
        beta: trades regret against violation.
        diameter: R; the geometry's unless given.
        lagged: whether round t is weighed with S_{t-1} or S_t.
        relative: whether `start` and `offset` are in units of the first a_t that is not 0 (its own offset apart).
            Proofs that take V_t and Q_t for given before round t lose nothing: they use it where Q_t is multiplied, and
            Q_1 = 0.
    """

    start: Scalar
    offset: Scalar
    beta: Scalar
    diameter: Scalar | None
    lagged: bool
    relative: bool = False

    def init(self, geometry: Geometry, x: PyTree, num_constraints: int) -> Energy:
        diameter = geometry.diameter(x) if self.diameter is None else self.diameter
        if not tree.is_traced(diameter) and not np.isfinite(diameter):
            raise ValueError(
                f"{type(geometry).__name__} has no finite diameter R with D(x, y) <= R^2, which this algorithm needs; "
                "cut the domain (EntropySimplex(floor=...)) or pass diameter=..."
            )
        if not tree.is_traced(diameter) and not diameter > 0:
            raise ValueError(f"the domain is a single point: its diameter is {diameter}")
        kind = tree.dtype(x)
        start, unit = (jnp.zeros((), kind),) * 2 if self.relative else (jnp.asarray(self.start, kind), None)
        return Energy(tree.compensated(start), jnp.asarray(diameter, kind), unit)

    def weights(self, state: Energy, t: jax.Array, sizes: Sizes) -> tuple[Energy, Weights]:
        before, unit, increment = state.total, state.unit, self.increment(sizes, state.diameter)
        if unit is None:
            increment += self.offset
        else:
            # Until the first a_t that is not 0 there is no feedback at all: nothing moves.
            first, unit = unit == 0, jnp.where(unit == 0, increment, unit)
            before = tree.select(first, tree.compensated(jnp.asarray(self.start * unit)), before)
            increment += self.offset * unit
        total = tree.compensated_add(before, increment)
        energy = sum(before if self.lagged else total)
        weights = Weights(energy**self.beta / state.diameter, energy / jnp.square(state.diameter))
        return Energy(total, state.diameter, unit), weights

    def increment(self, sizes: Sizes, diameter: Scalar) -> jax.Array:
        """a_t without its offset, with all constraints summed."""
        gradients = jnp.sum(jnp.square(diameter * sizes.constraint_jac) + jnp.square(sizes.constraints))
        return jnp.square(sizes.loss_grad) / 4 + gradients


class Damped(Schedule):
    """PD: eta = r^2 / (a sqrt T) throughout, with multipliers damped by delta eta (Mahdavi, Jin and Yang 2012).

    a = r sqrt((m+1) G^2 + 2 m D^2), and delta is the smaller root of delta = (m+1) G^2 + 2 eta^2 delta^2.

    Attributes:
        horizon: T, the number of samples.
        gradient_bound: G, on the norms of all gradients.
        constraint_bound: D, on all |g_i|.
        radius: r; the geometry's reach unless given.
    """

    horizon: Scalar
    gradient_bound: Scalar
    constraint_bound: Scalar
    radius: Scalar | None

    def init(self, geometry: Geometry, x: PyTree, num_constraints: int) -> StepSizes:
        radius = geometry.reach(x) if self.radius is None else self.radius
        gradients = (num_constraints + 1) * self.gradient_bound**2
        eta = radius / (gradients + 2 * num_constraints * self.constraint_bound**2) ** 0.5 / self.horizon**0.5
        room = 1 - 8 * eta**2 * gradients
        if not tree.is_traced(room) and room < -1e-12:
            least = int(np.ceil(self.horizon * (1 - room) - 1e-9))
            raise ValueError(f"horizon={self.horizon} is too short for PD: it needs at least {least}")
        damping = eta * 2 * gradients / (1 + jnp.maximum(room, 0) ** 0.5)
        kind = tree.dtype(x)
        return StepSizes(jnp.asarray(eta, kind), jnp.asarray(eta, kind), jnp.asarray(damping, kind))

    def weights(self, state: StepSizes, t: jax.Array, sizes: Sizes) -> tuple[StepSizes, StepSizes]:
        return state, state


class Decaying(Schedule):
    """PD2: eta_t = r / (G t^beta), theta_t = 6 r G / t^beta, mu_t = 1 / (theta_t (t+1)) (Jenatton et al. 2016).

    Attributes:
        gradient_bound: G, on the norms of all gradients.
        beta: in (0, 1).
        radius: r; the geometry's reach unless given.
    """

    gradient_bound: Scalar
    beta: Scalar
    radius: Scalar | None

    def init(self, geometry: Geometry, x: PyTree, num_constraints: int) -> jax.Array:
        return jnp.asarray(geometry.reach(x) if self.radius is None else self.radius, tree.dtype(x))

    def weights(self, state: jax.Array, t: jax.Array, sizes: Sizes) -> tuple[jax.Array, StepSizes]:
        t = t.astype(sizes.loss_grad.dtype)
        decay = state / t**self.beta
        damping = 6 * decay * self.gradient_bound
        return state, StepSizes(decay / self.gradient_bound, 1 / (damping * (t + 1)), damping)
