"""A drift-plus-penalty method without units: steps from the distances and energies that a run itself has seen."""

from __future__ import annotations

import functools
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import tree
from ergodrift.geometry import Geometry
from ergodrift.methods.method import Method
from ergodrift.methods.rates import Pressure, Rates, kept, no_pressure, toward
from ergodrift.types import Array, Feedback, Key, PyTree, Scalar, Sizes, State

T = TypeVar("T")

FIRST = 0.01  # of a factor's diameter: the distance that the first steps believe in
# What a long-run variance counts: dearer for the point, which must not follow the seasons of a record, cheaper for the
# multipliers, which have a long way to go. docs/laboratory/scalefree.md has what other numbers do.
DEPENDENCE, DUAL_DEPENDENCE = 25.0, 0.12


class Scales(NamedTuple):
    """What is known of a problem before a run, as `auto` measures it.

    Attributes:
        distance: how far the solution is from x_1, one number for each factor of the domain (`Geometry.factor_norms`).
        long_run: the long-run variance of d_t = df_t + sum_i lambda_i dg_ti near the solution, that is the sum of all
            its autocovariances, for each factor; 0 where samples are as good as independent.
        constraints_long_run: the same of each constraint, shape (n,).
        multipliers: those of a rough solution, shape (n,), with which a run begins; 0 where nothing is known of them.
    """

    distance: PyTree
    long_run: PyTree = 0.0
    constraints_long_run: PyTree = 0.0
    multipliers: PyTree = 0.0


class Travelled(NamedTuple):
    """What the schedule carries: the start, averages that forget the first rounds, and how far these have been from it.

    Attributes:
        start: x_1.
        unit: r_1 for each factor.
        x: the average of the points, x̄_t.
        direction: that of ||d_t||^2 in the dual norm of each factor, d_t = df_t + sum_i lambda_ti dg_ti.
        distance: r_t for each factor.
        pressure: those that set the rates of the multipliers, with the first r of each factor as its unit of length.
    """

    start: PyTree
    unit: PyTree
    x: PyTree
    direction: PyTree
    distance: PyTree
    pressure: Pressure


class ScaleFreeWeights(NamedTuple):
    """alpha_t, and what a unit of each constraint moves its multiplier by.

    Attributes:
        proximity: alpha_t, for each factor of the domain.
        rates: s_t, shape (n,).
        kept: 0 in the round in which the loss first has a gradient, else 1: what multipliers did before is dropped.
        distance: r_t, for each factor.
    """

    proximity: PyTree
    rates: Array
    kept: jax.Array
    distance: PyTree


class Distances(Rates):
    """Steps of distance over energy, for each factor of the domain and for each multiplier.

    alpha_t = sqrt((t + (a age_t)^2) E_t) / (2 c r_t), so that a Euclidean factor has the step c r_t / sqrt(t E_t), and
    multiplier i moves by s_ti = k Lambda_ti / sqrt((t + (a age_t)^2) E_ti) for each unit of its constraint, with

    - E_t the mean of ||d_s||^2 and E_ti that of g_si^2 over the rounds so far, weighed by s^p; neither is below what
      the dependence of the samples asks for, where `Scales` tell it;
    - r_t the largest distance of x̄_s from x_1 so far (distance over gradients, Ivgi, Hinder and Carmon 2023, with the
      average in the place of the point, which noise does not carry away), or the distance that `Scales` tell;
    - Lambda_ti the largest average of multiplier i so far, or the size of df over that of dg_i if that is larger, both
      with r_1 as the unit of length in each factor;
    - age_t that of the feedback, 0 unless it is remembered.

    Every quantity has the units that it must have: no unit of the loss, of a constraint or of x changes a run.

    Attributes:
        memory: p, of the energies.
        mean_memory: the same of x̄ and of the average multipliers.
        dual_stride: k.
        stride: c.
        caution: a.
        scales: what is known beforehand, if anything.
        first: r_1 of every factor; a hundredth of its diameter unless given.
    """

    stride: Scalar = 2.0
    caution: Scalar = 0.2
    scales: Scales | None = None
    first: Scalar | None = None

    def init(self, geometry: Geometry, x: PyTree, num_constraints: int) -> Travelled:
        kind = tree.dtype(x)
        across = geometry.factor_diameters(x)
        if self.scales is not None:
            _check(self.scales, across, num_constraints)
            distance = _for_each(self.scales.distance, across)
        elif self.first is not None:
            distance = _for_each(self.first, across)
        else:
            distance = jax.tree.map(lambda leaf: FIRST * _bounded(geometry, leaf), across)
        distance = jax.tree.map(
            lambda leaf, like: jnp.broadcast_to(jnp.asarray(leaf, kind), jnp.shape(like)), distance, across
        )
        still = jax.tree.map(jnp.zeros_like, distance)
        pressure = no_pressure(num_constraints, kind)
        if self.scales is not None:  # what is given has a scale already
            reached = jnp.broadcast_to(jnp.asarray(self.scales.multipliers, kind), (num_constraints,))
            pressure = pressure._replace(reached=reached, heard=jnp.any(reached > 0))
        return Travelled(x, distance, x, still, distance, pressure)

    def absorb(
        self, state: Travelled, t: jax.Array, feedback: Feedback, x: PyTree, queue: jax.Array, geometry: Geometry
    ) -> Travelled:
        def size(grad: PyTree) -> jax.Array:
            return tree.squared_norm(jax.tree.map(jnp.multiply, geometry.factor_dual_norms(grad), state.unit))

        time, squares = t.astype(queue.dtype), (size(feedback.loss_grad), jax.vmap(size)(feedback.constraint_jac))
        pressure = self.press(state.pressure, t, queue, *squares, feedback.constraints)
        # Multipliers that had no scale are dropped, and what they did to energies with them.
        queue = jnp.where(pressure.first, 0, queue)
        direction = jax.tree.map(lambda mean: jnp.where(pressure.first, 0, mean), state.direction)
        energy = jax.tree.map(jnp.square, geometry.factor_dual_norms(lagrangian_grad(feedback, queue)))
        mean, distance = toward(state.x, x, time, self.mean_memory), state.distance
        if self.scales is None:
            away = geometry.factor_norms(tree.subtract(mean, state.start))
            distance = jax.tree.map(jnp.maximum, distance, away)
        direction = toward(direction, energy, time, self.memory)
        return Travelled(state.start, state.unit, mean, direction, distance, pressure)

    def weights(self, state: Travelled, t: jax.Array, sizes: Sizes) -> tuple[Travelled, ScaleFreeWeights]:
        pressure, time = state.pressure, t.astype(state.pressure.reached.dtype)
        if sizes.age is not None:  # in the time that old feedback takes to be seen again, x moves a part of r at most
            time += jnp.square(self.caution * sizes.age)
        energy, constraints = state.direction, pressure.constraints
        if self.scales is not None:
            known = _for_each(self.scales.long_run, energy)
            energy = jax.tree.map(lambda mean, least: jnp.maximum(mean, DEPENDENCE * least), energy, known)
            constraints = jnp.maximum(constraints, DUAL_DEPENDENCE * self.scales.constraints_long_run)
        return state, ScaleFreeWeights(
            jax.tree.map(lambda e, r: _ratio(jnp.sqrt(time * e), 2 * self.stride * r), energy, state.distance),
            self.rates(pressure, time, constraints),
            kept(pressure),
            state.distance,
        )


class ScaledDrift(Method):
    """Drift-plus-penalty with V_t = 1 and constraints that are scaled round by round: the queue holds multipliers.

    x_{t+1} = argmin over x in X of (df_t(x_t) + sum_i lambda_ti dg_ti(x_t)) . x + alpha_t D(x, x_t)
    lambda_{t+1,i} = [lambda_ti + s_ti g_ti(x_t)]_+

    where D has an alpha_t of its own for each factor of the domain. Of appendix A's update the term
    dg_ti . (x_{t+1} - x_t) is left out: x_{t+1} comes from the same sample as dg_ti, so that where samples are noisy
    the product has a mean of its own, and multipliers stay too low.
    """

    reads = ("proximity", "rates", "kept")

    def init(self, x0: PyTree, num_constraints: int, levels: Key | Array | None = None) -> State:
        """As everywhere, but that multipliers begin with those that the schedule knows of."""
        state = super().init(x0, num_constraints, levels)
        known = state.schedule.pressure if isinstance(state.schedule, Travelled) else state.schedule
        return state._replace(queue=known.reached)

    def update(self, x: PyTree, queue: jax.Array, feedback: Feedback, weights: PyTree) -> tuple[PyTree, jax.Array]:
        multipliers = self.multipliers(queue, weights)
        # As in appendix C: what has had no gradient yet stays where it is, whatever the step.
        # As much as the slowest where there are others, since in a ball these share the way back to its boundary.
        most = functools.reduce(jnp.maximum, [jnp.max(leaf) for leaf in jax.tree.leaves(weights.proximity)])
        most = jnp.where(most > 0, most, 1)
        proximity = jax.tree.map(lambda leaf: jnp.where(leaf == 0, most, leaf), weights.proximity)
        x_next = self.geometry.prox(x, lagrangian_grad(feedback, multipliers), proximity)
        return x_next, self.next_queue(queue, feedback.constraints, None, weights)

    # The same round in parts, for optimisers that take the step of x in their own way.

    def multipliers(self, queue: jax.Array, weights: PyTree) -> jax.Array:
        return weights.kept * queue

    def step_size(self, weights: PyTree) -> jax.Array:
        return jnp.where(weights.proximity == 0, 0, 1 / (2 * jnp.where(weights.proximity == 0, 1, weights.proximity)))

    def next_queue(self, queue: jax.Array, constraints: jax.Array, change: object, weights: PyTree) -> jax.Array:
        return jnp.maximum(weights.kept * queue + weights.rates * constraints, 0)


class CoordinateDrift(ScaledDrift):
    """Scaled drift where each coordinate has an alpha_t of its own, in a ball too: for features of many sizes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "geometry", self.geometry.by_coordinates())


class SharedDrift(ScaledDrift):
    """Scaled drift for a point that is judged as it stands: the m_t constraints violated in a round share one stride.

    lambda_{t+1,i} = [lambda_ti + (s_ti / m_t) g_ti(x_t)]_+,  m_t = max(1, number of i with s_ti g_ti(x_t) > 0)

    s_ti is the stride with which a single constraint would come to matter beside the loss. Where many are violated at
    once, as those of a network that has learnt nothing yet, they push together, and with a stride each they would wind
    up to as many times too much.
    """

    def next_queue(self, queue: jax.Array, constraints: jax.Array, change: object, weights: PyTree) -> jax.Array:
        pushing = (constraints > 0) & (weights.rates > 0)  # what no parameter moves pushes nobody
        violated = jnp.maximum(jnp.sum(pushing.astype(constraints.dtype)), 1)
        return jnp.maximum(weights.kept * queue + weights.rates / violated * constraints, 0)


def lagrangian_grad(feedback: Feedback, multipliers: jax.Array) -> PyTree:
    """d_t = df_t + sum_i lambda_i dg_ti."""
    return tree.add(feedback.loss_grad, tree.pullback(multipliers, feedback.constraint_jac))


def _for_each(value: PyTree, factors: T) -> T:
    """One value for each factor, where one was given for all."""
    same = jax.tree.structure(value) == jax.tree.structure(factors)
    return value if same else jax.tree.map(lambda _: value, factors)


def _check(scales: Scales, factors: PyTree, num_constraints: int) -> None:
    """Refuse scales that do not fit the domain or the constraints: broadcasting would hide that they do not."""
    rows = np.zeros(num_constraints)
    for name, like in zip(Scales._fields, (factors, factors, rows, rows), strict=True):
        value = getattr(scales, name)
        found, wanted = (jax.tree.map(np.shape, each) for each in (value, like))
        if found != () and found != wanted:
            whose = "constraint" if like is rows else "factor of the domain"
            raise ValueError(f"scales.{name} must be one number, or one for each {whose}: {wanted}, got {found}")
        for leaf in jax.tree.leaves(value):
            if tree.is_traced(leaf):
                continue
            low = np.min(leaf)
            if not np.isfinite(leaf).all() or low < 0 or (name == "distance" and low == 0):
                least = "> 0" if name == "distance" else ">= 0"
                raise ValueError(f"scales.{name} must be finite and {least}, got {leaf}")


def _ratio(a: jax.Array, b: jax.Array) -> jax.Array:
    """a / b, or 0 where b is: that is a factor which is a single point, and cannot move whatever its step."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)


def _bounded(geometry: Geometry, across: Scalar) -> Scalar:
    """A diameter, which must be finite."""
    if not tree.is_traced(across) and not np.isfinite(across).all():
        raise ValueError(
            f"{type(geometry).__name__} has no finite diameter, so that the first step has no length: "
            "bound the domain, or take ed.sdpp(distance=...), with a guess of how far the solution is from x0"
        )
    return across
