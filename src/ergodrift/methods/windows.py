"""Growing windows: for streams whose states cannot be told apart and whose mixing time is not known."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ergodrift._core import tree
from ergodrift.geometry import Geometry
from ergodrift.methods.estimator import EachSample, shifted
from ergodrift.types import Feedback, Sizes, Weights


@tree.module()
class GrowingWindow(EachSample):
    """Each sample is a round: the loss as the sample shows it, the constraints as the latest samples do on average.

    ĝ_t(x) = sum_{s <= t} w_s [g_s(x_s) + dg_s(x_s).(x - x_s)] with w_s close to (s / t)^(k-1) k / t: most of the weight
    lies on the last 2 / k of the samples, a window that grows with t and so outgrows any mixing time. Linear
    constraints are averaged exactly, however far x has moved since.

    Attributes:
        decay: k; docs/memory.md has what other values than 50 do.
    """

    decay: Any = 50

    def init(self, zero: Feedback, levels: Any) -> Any:
        return tree.compensated((zero.constraints, zero.constraint_jac))

    def observe(self, window: Any, t: jax.Array, feedback: Feedback, x: Any = None) -> tuple[Any, Feedback, Any]:
        here = shifted(feedback, tree.scale(x, -1))  # tangent planes by what they are worth at x = 0
        # Polynomial-decay averaging (Shamir and Zhang 2013): mean_t = mean_{t-1} + k / (t + k - 1) (new - mean_{t-1}).
        rate = self.decay / (t.astype(feedback.loss.dtype) + self.decay)
        change = tree.subtract((here.constraints, here.constraint_jac), window[0])
        window = tree.running_add(window, tree.scale(change, rate))
        constraints, jac = window[0]
        mean = shifted(here._replace(constraints=constraints, constraint_jac=jac), x)
        return window, mean._replace(loss=feedback.loss), True


@tree.module()
class Widening:
    """V_t = t^(3/4), alpha_t = t^(3/2): EDPP-t's weights at beta = 1/2 with sqrt t in the place of tau_mix."""

    def init(self, geometry: Geometry, x: Any, num_constraints: int) -> Any:
        return ()

    def weights(self, state: Any, t: jax.Array, sizes: Sizes) -> tuple[Any, Weights]:
        time = t.astype(sizes.loss_grad.dtype)
        proximity = time * jnp.sqrt(time)
        return state, Weights(jnp.sqrt(proximity), proximity)
