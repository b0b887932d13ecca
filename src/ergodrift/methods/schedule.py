"""Schedules: how V_t and alpha_t (or the step sizes of a primal-dual method) are set, round by round.

A schedule sees the round's sizes (F_t, G_t, H_t) before it answers, so both S_{t-1} (MDPP) and S_t (adversarial) can be
expressed. Hyperparameters are leaves: a new value never recompiles and a sweep is a `vmap`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import tree
from ergodrift.geometry import Geometry
from ergodrift.types import Feedback, Sizes, StepSizes, Weights


class Schedule(Protocol):
    """What a method asks of its schedule."""

    def init(self, geometry: Geometry, x: Any, num_constraints: int) -> Any:
        """The schedule's state before round 1."""
        ...

    def weights(self, state: Any, t: jax.Array, sizes: Sizes) -> tuple[Any, Any]:
        """The next state, and the weights of round t = 1, 2, ..."""
        ...


@runtime_checkable
class Listener(Protocol):
    """A schedule that learns from the feedback itself: it hears each round before it is asked for the weights."""

    def listen(self, state: Any, t: jax.Array, feedback: Feedback) -> Any:
        """The state with round t = 1, 2, ... taken in."""
        ...


@tree.module()
class Constant:
    """V_t = penalty and alpha_t = proximity, every round."""

    penalty: Any
    proximity: Any

    def init(self, geometry: Geometry, x: Any, num_constraints: int) -> Any:
        return ()

    def weights(self, state: Any, t: jax.Array, sizes: Sizes) -> tuple[Any, Weights]:
        kind = sizes.loss_grad.dtype
        return state, Weights(jnp.asarray(self.penalty, kind), jnp.asarray(self.proximity, kind))


@tree.module()
class Ergodic:
    """V_t = (tau_mix t)^beta, alpha_t = tau_mix t (Kim and Lee, section 3.1)."""

    tau_mix: Any
    beta: Any

    def init(self, geometry: Geometry, x: Any, num_constraints: int) -> Any:
        return ()

    def weights(self, state: Any, t: jax.Array, sizes: Sizes) -> tuple[Any, Weights]:
        proximity = self.tau_mix * t.astype(sizes.loss_grad.dtype)
        return state, Weights(proximity**self.beta, proximity)


class Energy(NamedTuple):
    """S_t as a compensated sum, and the R it is scaled by."""

    total: Any
    diameter: Any


@tree.module("lagged")
class AdaGrad:
    """V_t = S^beta / R, alpha_t = S / R^2, where S sums a_t = F_t^2/4 + sum_i (R^2 G_ti^2 + H_ti^2) + offset.

    MDPP weighs round t with S_{t-1} (`lagged`), starting from S_0 = delta (section 4.2); the adversarial version with
    S_t, starting from 0 (appendix C).

    Attributes:
        start: S_0.
        offset: what is added to every a_t; section 4.2 adds delta, section 5 and appendix C nothing.
        beta: trades regret against violation.
        diameter: R; the geometry's unless given.
        lagged: whether round t is weighed with S_{t-1} or S_t.
    """

    start: Any
    offset: Any
    beta: Any
    diameter: Any
    lagged: bool

    def init(self, geometry: Geometry, x: Any, num_constraints: int) -> Energy:
        diameter = geometry.diameter(x) if self.diameter is None else self.diameter
        if not tree.is_traced(diameter) and not np.isfinite(diameter):
            raise ValueError(
                f"{type(geometry).__name__} has no finite diameter R with D(x, y) <= R^2, which this algorithm needs; "
                "cut the domain (EntropySimplex(floor=...)) or pass diameter=..."
            )
        if not tree.is_traced(diameter) and not diameter > 0:
            raise ValueError(f"the domain is a single point: its diameter is {diameter}")
        kind = tree.dtype(x)
        return Energy(tree.compensated(jnp.asarray(self.start, kind)), jnp.asarray(diameter, kind))

    def weights(self, state: Energy, t: jax.Array, sizes: Sizes) -> tuple[Energy, Weights]:
        total = tree.compensated_add(state.total, self.increment(sizes, state.diameter))
        energy = sum(state.total if self.lagged else total)
        weights = Weights(energy**self.beta / state.diameter, energy / jnp.square(state.diameter))
        return Energy(total, state.diameter), weights

    def increment(self, sizes: Sizes, diameter: Any) -> Any:
        """a_t, with all constraints summed."""
        gradients = jnp.sum(jnp.square(diameter * sizes.constraint_jac) + jnp.square(sizes.constraints))
        return jnp.square(sizes.loss_grad) / 4 + gradients + self.offset


@tree.module()
class Damped:
    """PD: eta = r^2 / (a sqrt T) throughout, with multipliers damped by delta eta (Mahdavi, Jin and Yang 2012).

    a = r sqrt((m+1) G^2 + 2 m D^2), and delta is the smaller root of delta = (m+1) G^2 + 2 eta^2 delta^2.

    Attributes:
        horizon: T, the number of samples.
        gradient_bound: G, on the norms of all gradients.
        constraint_bound: D, on all |g_i|.
        radius: r; the geometry's reach unless given.
    """

    horizon: Any
    gradient_bound: Any
    constraint_bound: Any
    radius: Any

    def init(self, geometry: Geometry, x: Any, num_constraints: int) -> StepSizes:
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


@tree.module()
class Decaying:
    """PD2: eta_t = r / (G t^beta), theta_t = 6 r G / t^beta, mu_t = 1 / (theta_t (t+1)) (Jenatton et al. 2016).

    Attributes:
        gradient_bound: G, on the norms of all gradients.
        beta: in (0, 1).
        radius: r; the geometry's reach unless given.
    """

    gradient_bound: Any
    beta: Any
    radius: Any

    def init(self, geometry: Geometry, x: Any, num_constraints: int) -> Any:
        return jnp.asarray(geometry.reach(x) if self.radius is None else self.radius, tree.dtype(x))

    def weights(self, state: Any, t: jax.Array, sizes: Sizes) -> tuple[Any, StepSizes]:
        t = t.astype(sizes.loss_grad.dtype)
        decay = state / t**self.beta
        damping = 6 * decay * self.gradient_bound
        return state, StepSizes(decay / self.gradient_bound, 1 / (damping * (t + 1)), damping)
