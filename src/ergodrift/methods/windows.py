"""Growing windows: for streams whose states cannot be told apart and whose mixing time is not known."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ergodrift._core import tree
from ergodrift.methods.estimator import Estimator, shifted
from ergodrift.methods.schedule import PresetSchedule
from ergodrift.types import Array, Feedback, Key, PyTree, Scalar, Weights


class GrowingWindow(Estimator):
    """Each sample is a round: the loss as the sample shows it, the constraints as the latest samples do on average.

    ĝ_t(x) = sum_{s <= t} w_s [g_s(x_s) + dg_s(x_s).(x - x_s)] with w_s close to (s / t)^(k-1) k / t: most of the weight
    lies on the last 2 / k of the samples, a window that grows with t and so outgrows any mixing time. Linear
    constraints are averaged exactly, however far x has moved since.

    Attributes:
        decay: k; docs/laboratory/memory.md has what other values than 50 do.
    """

    decay: Scalar = 50

    def init(self, zero: Feedback, levels: Key | Array | None) -> PyTree:
        return tree.compensated((zero.constraints, zero.constraint_jac))

    def observe(self, window: PyTree, t: jax.Array, feedback: Feedback, x: PyTree) -> tuple[PyTree, Feedback, bool]:
        here = shifted(feedback, tree.scale(x, -1))  # tangent planes by what they are worth at x = 0
        # Polynomial-decay averaging (Shamir and Zhang 2013): mean_t = mean_{t-1} + k / (t + k - 1) (new - mean_{t-1}).
        rate = self.decay / (t.astype(feedback.loss.dtype) + self.decay)
        change = tree.subtract((here.constraints, here.constraint_jac), window[0])
        window = tree.running_add(window, tree.scale(change, rate))
        constraints, jac = window[0]
        mean = shifted(here._replace(constraints=constraints, constraint_jac=jac), x)
        return window, mean._replace(loss=feedback.loss), True


class Widening(PresetSchedule):
    """V_t = t^(3/4), alpha_t = t^(3/2): EDPP-t's weights at beta = 1/2 with sqrt t in the place of tau_mix."""

    def at(self, t: jax.Array) -> Weights:
        proximity = t * jnp.sqrt(t)
        return Weights(jnp.sqrt(proximity), proximity)
