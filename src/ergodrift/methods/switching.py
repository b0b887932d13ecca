"""Switching subgradients: a step on the loss where the constraints look satisfied, else one on the worst of them."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ergodrift._core import tree
from ergodrift.geometry import Geometry
from ergodrift.methods.estimator import Estimator
from ergodrift.methods.method import Method
from ergodrift.methods.schedule import Schedule
from ergodrift.types import Array, Feedback, Info, Key, PyTree, Scalar, Sizes, State


class Tolerance(NamedTuple):
    """gamma_k (`primal`), the length of a step, and eta_k (`tolerance`), up to which constraints pass."""

    primal: Array
    tolerance: Array


class Switching(Method):
    """x_{k+1} = argmin over x in X of gamma_k h_k . x + D(x, x_k) / 2: in the Euclidean case Proj(x_k - gamma_k h_k).

    h_k is the gradient of the loss where max_i g_ki(x_k) <= eta_k, else that of the largest g_ki. A round ends with a
    step on the loss, and all steps on constraints before it are part of it: t counts steps on the loss, and x̄ averages
    over their points alone. `queue` sums the steps on each constraint; over those on the loss, that estimates its
    multiplier (Bayandina et al. 2018).
    """

    reads = Tolerance._fields

    def step(self, state: State, feedback: Feedback) -> tuple[State, Info]:
        after, info = super().step(state, feedback)
        ends = info.updated & (jnp.max(info.feedback.constraints) <= info.weights.tolerance)
        return after._replace(t=jnp.where(ends, after.t, state.t)), info._replace(updated=ends)

    def update(self, x: PyTree, queue: jax.Array, feedback: Feedback, weights: PyTree) -> tuple[PyTree, jax.Array]:
        worst = jnp.argmax(feedback.constraints)
        violated = (feedback.constraints[worst] > weights.tolerance).astype(queue.dtype)
        direction = jax.tree.map(  # a sum, so that a NaN in either part is seen
            lambda grad, rows: (1 - violated) * grad + violated * rows[worst],
            feedback.loss_grad,
            feedback.constraint_jac,
        )
        x_next = self.geometry.prox(x, direction, 1 / (2 * weights.primal))
        return x_next, queue.at[worst].add(violated * weights.primal)


class Relaxing(Schedule):
    """gamma_k = step / sqrt k and eta_k = tolerance / sqrt k over all steps k, on the loss or not; with a horizon,
    those of the last step throughout.

    Attributes:
        step: gamma_1.
        tolerance: eta_1.
        horizon: the number of steps, if it is known.
    """

    step: Scalar
    tolerance: Scalar
    horizon: Scalar | None = None

    def init(self, geometry: Geometry, x: PyTree, num_constraints: int) -> jax.Array:
        return jnp.int32(0)

    def weights(self, state: jax.Array, t: jax.Array, sizes: Sizes) -> tuple[jax.Array, Tolerance]:
        kind = sizes.loss_grad.dtype
        root = jnp.sqrt((state + 1 if self.horizon is None else jnp.asarray(self.horizon)).astype(kind))
        return state + 1, Tolerance(self.step / root, self.tolerance / root)


class Halves(Estimator):
    """A step takes 2 J samples: the mean of the first J for the constraints, that of the next J for the loss.

    Were they the same samples, those that decide for a step on the loss would favour the losses they come with.

    Attributes:
        size: J.
    """

    size: Scalar

    def init(self, zero: Feedback, levels: Key | Array | None) -> tuple[jax.Array, Feedback]:
        return jnp.int32(0), zero

    def observe(
        self, window: tuple[jax.Array, Feedback], t: jax.Array, feedback: Feedback, x: PyTree
    ) -> tuple[tuple[jax.Array, Feedback], Feedback, jax.Array]:
        seen, so_far = window[0] + 1, window[1]
        added = tree.add(so_far, tree.scale(feedback, 1 / jnp.asarray(self.size, feedback.loss.dtype)))
        first = tree.select(seen <= self.size, (so_far[:2], added[2:]), (added[:2], so_far[2:]))
        mean = Feedback(*first[0], *first[1])
        full = seen >= 2 * self.size
        return tree.select(full, jax.tree.map(jnp.zeros_like, (seen, mean)), (seen, mean)), mean, full

    def pending(self, window: tuple[jax.Array, Feedback]) -> jax.Array:
        return window[0]
