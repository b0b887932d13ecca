"""Multipliers without units: each has a rate of its own, from the gradients and constraints that the run has seen."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from ergodrift._core import tree
from ergodrift.geometry import Geometry
from ergodrift.methods.schedule import StateSchedule
from ergodrift.types import Array, Feedback, PyTree, Scalar, Sizes

T = TypeVar("T")


class Pressure(NamedTuple):
    """What the rates are made of: averages over the rounds so far that forget the first ones.

    Attributes:
        multipliers: of lambda_t, shape (n,).
        loss_grad: of ||df_t||^2.
        constraint_jac: of ||dg_ti||^2, shape (n,).
        constraints: of g_ti^2, shape (n,).
        reached: the largest average of each multiplier so far, shape (n,).
        heard: whether the loss has had a gradient other than 0; until then no multiplier has a scale.
        first: whether it has had its first in this round.
    """

    multipliers: jax.Array
    loss_grad: jax.Array
    constraint_jac: jax.Array
    constraints: jax.Array
    reached: jax.Array
    heard: jax.Array
    first: jax.Array


class DualWeights(NamedTuple):
    """What a unit of each constraint moves its multiplier by.

    Attributes:
        rates: s_t, shape (n,).
        kept: 0 in the round in which the loss first has a gradient, else 1: what multipliers did before is dropped.
    """

    rates: Array
    kept: jax.Array


class Rates(StateSchedule):
    """Multiplier i moves by s_ti = k Lambda_ti / sqrt(t E_ti) for each unit of its constraint, with

    - E_ti the mean of g_si^2 over the rounds so far, weighed by s^p;
    - Lambda_ti the largest average of multiplier i so far, or the size of df over that of dg_i if that is larger.

    So a multiplier has the units that it must have, whatever those of loss and constraints. It says nothing of the
    steps of x: those are somebody else's (`Distances` has its own).

    Attributes:
        memory: p, of the energies.
        mean_memory: the same of the average multipliers.
        dual_stride: k.
    """

    memory: Scalar = 1.0
    mean_memory: Scalar = 1.0
    dual_stride: Scalar = 0.3

    def init(self, geometry: Geometry, x: PyTree, num_constraints: int) -> PyTree:
        return no_pressure(num_constraints, tree.dtype(x))

    def absorb(
        self, state: PyTree, t: jax.Array, feedback: Feedback, x: PyTree, queue: jax.Array, geometry: Geometry
    ) -> PyTree:
        loss, rows = tree.squared_norm(feedback.loss_grad), jax.vmap(tree.squared_norm)(feedback.constraint_jac)
        return self.press(state, t, queue, loss, rows, feedback.constraints)

    def weights(self, state: PyTree, t: jax.Array, sizes: Sizes) -> tuple[PyTree, PyTree]:
        time = t.astype(state.reached.dtype)
        return state, DualWeights(self.rates(state, time, state.constraints), kept(state))

    def answering(self) -> Rates:
        """With multipliers that move at the usual rate at least, for constraints that are not those it was set for."""
        return dataclasses.replace(self, dual_stride=jnp.maximum(self.dual_stride, Rates.dual_stride))

    def press(
        self, state: Pressure, t: jax.Array, queue: jax.Array, loss: jax.Array, rows: jax.Array, constraints: jax.Array
    ) -> Pressure:
        """The averages with round t in them: the squared norms of its gradients, (n,) of them, and its constraints."""
        time, first = t.astype(queue.dtype), ~state.heard & (loss > 0)
        # Multipliers that had no scale are dropped.
        queue, multipliers, reached = (jnp.where(first, 0, old) for old in (queue, state.multipliers, state.reached))
        multipliers = toward(multipliers, queue, time, self.mean_memory)
        energies = toward(state[1:4], (loss, rows, jnp.square(constraints)), time, self.memory)
        return Pressure(multipliers, *energies, jnp.maximum(reached, multipliers), state.heard | first, first)

    def rates(self, state: Pressure, time: jax.Array, constraints: jax.Array) -> Array:
        """s_t, with the energies of the constraints as given."""
        # A loss without gradients leaves the scale of the multipliers open: any will do.
        loss = jnp.where(state.heard, state.loss_grad, 1)
        scale = jnp.maximum(state.reached, jnp.sqrt(loss * inverse(state.constraint_jac)))
        return self.dual_stride * scale * jnp.sqrt(inverse(time * constraints))


def no_pressure(num_constraints: int, kind: PyTree) -> Pressure:
    """Before round 1."""
    none, each, never = jnp.zeros((), kind), jnp.zeros(num_constraints, kind), jnp.zeros((), bool)
    return Pressure(each, none, each, each, each, never, never)


def kept(state: Pressure) -> jax.Array:
    """What multipliers are worth at the beginning of the round: 0 where they had no scale before."""
    return jnp.where(state.first, 0, 1).astype(state.reached.dtype)


def toward(means: T, values: T, t: jax.Array, memory: Scalar) -> T:
    """Means with one more round in them, the t-th; rounds weigh about t^p (Shamir and Zhang 2013)."""
    rate = (memory + 1) / (t + memory)
    return jax.tree.map(lambda mean, value: mean + rate * (value - mean), means, values)


def inverse(square: jax.Array) -> jax.Array:
    """1 / square, or 0 where there is nothing to divide by."""
    return jnp.where(square > 0, 1 / jnp.where(square > 0, square, 1), 0)
