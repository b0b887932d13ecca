"""A stochastic augmented Lagrangian: linearised, proximal, with constraints that are averaged over a growing window."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ergodrift._core import tree
from ergodrift.methods.method import Method
from ergodrift.methods.schedule import Schedule
from ergodrift.methods.windows import GrowingWindow
from ergodrift.types import Array, Feedback, Key, PyTree, Scalar, Sizes


class AugmentedSteps(NamedTuple):
    """tau (`primal`), eta (`dual`), rho (`penalty`) and M_y (`bound`) of an augmented Lagrangian's round."""

    primal: Array
    dual: Array
    penalty: Array
    bound: Array


class AugmentedLagrangian(Method):
    """One projected step on the augmented Lagrangian, after one on its multipliers.

    y_{t+1} = [y_t + eta max(g_t(x_t), -y_t / rho)]_+, and 0 where its norm reaches M_y
    x_{t+1} = Proj(x_t - tau (df_t(x_t) + sum_i [y_{t+1,i} + rho g_ti(x_t)]_+ dg_ti(x_t)))

    The slacks s >= 0 of g + s = 0 are minimised over, which leaves the maximum and the positive part.
    """

    reads = AugmentedSteps._fields

    def update(self, x: PyTree, queue: jax.Array, feedback: Feedback, weights: PyTree) -> tuple[PyTree, jax.Array]:
        values = feedback.constraints
        queue = jnp.maximum(queue + weights.dual * jnp.maximum(values, -queue / weights.penalty), 0)
        queue = jnp.where(jnp.sqrt(jnp.sum(jnp.square(queue))) < weights.bound, queue, 0)
        pull = tree.pullback(jnp.maximum(queue + weights.penalty * values, 0), feedback.constraint_jac)
        direction = tree.add(feedback.loss_grad, pull)
        return self.geometry.project(jax.tree.map(lambda a, b: a - weights.primal * b, x, direction)), queue


class Fixed(Schedule):
    """The same steps in every round: primal / sqrt T and dual / sqrt T, with rho and M_y.

    Attributes:
        horizon: T, the number of samples.
        primal: tau sqrt T.
        dual: eta sqrt T.
        penalty: rho.
        bound: M_y.
    """

    horizon: Scalar
    primal: Scalar
    dual: Scalar
    penalty: Scalar
    bound: Scalar

    def weights(self, state: PyTree, t: jax.Array, sizes: Sizes) -> tuple[PyTree, AugmentedSteps]:
        kind = sizes.loss_grad.dtype
        root = jnp.sqrt(jnp.asarray(self.horizon, kind))
        penalty, bound = (jnp.asarray(value, kind) for value in (self.penalty, self.bound))
        return state, AugmentedSteps(self.primal / root, self.dual / root, penalty, bound)


class Smoothed(GrowingWindow):
    """A growing window whose loss is f_t(x) + mu |x - z_t|^2 / 2, with z_{t+1} = z_t + rate (x_t - z_t) from z_1 = x_1.

    Attributes:
        mu: how strongly x is held near z.
        rate: how fast z follows, at most 1.
    """

    mu: Scalar = 2.0
    rate: Scalar = 0.0

    def init(self, zero: Feedback, levels: Key | Array | None) -> PyTree:
        return super().init(zero, levels), zero.loss_grad

    def observe(self, window: PyTree, t: jax.Array, feedback: Feedback, x: PyTree) -> tuple[PyTree, Feedback, bool]:
        averages, mean, complete = super().observe(window[0], t, feedback, x)
        centre = tree.select(t == 0, x, window[1])
        away = tree.subtract(x, centre)
        held = jax.tree.map(lambda grad, gap: grad + self.mu * gap, mean.loss_grad, away)
        centre = tree.add(centre, tree.scale(away, jnp.minimum(self.rate, 1)))
        return (averages, centre), mean._replace(loss_grad=held), complete
