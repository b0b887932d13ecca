"""Growing windows: for streams whose states cannot be told apart and whose mixing time is not known."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ergodrift import tree
from ergodrift.geometry import Geometry
from ergodrift.types import Feedback, Sizes, Weights


class Tangents(NamedTuple):
    """Tangent planes of the constraints: their gradients, and what the tangents are worth at x = 0."""

    jac: Any
    offset: Any


@tree.module()
class GrowingWindow:
    """Each sample is a round: the loss as the sample shows it, the constraints as the latest samples do on average.

    ĝ_t(x) = sum_{s <= t} w_s [g_s(x_s) + dg_s(x_s).(x - x_s)] with w_s close to (s / t)^(k-1) k / t: most of the weight
    lies on the last 2 / k of the samples, a window that grows with t and so outgrows any mixing time. Linear
    constraints are averaged exactly, however far x has moved since.

    Attributes:
        decay: k; docs/memory.md has what other values than 50 do.
    """

    decay: Any = 50

    needs_state = False

    def init(self, zero: Feedback, levels: Any) -> Any:
        return tree.compensated(Tangents(zero.constraint_jac, zero.constraints))

    def observe(self, window: Any, t: jax.Array, feedback: Feedback, x: Any = None) -> tuple[Any, Feedback, Any]:
        jac = feedback.constraint_jac
        tangents = Tangents(jac, feedback.constraints - tree.pushforward(jac, x))
        # Polynomial-decay averaging (Shamir and Zhang 2013): mean_t = mean_{t-1} + k / (t + k - 1) (new - mean_{t-1}).
        rate = self.decay / (t.astype(feedback.loss.dtype) + self.decay)
        window = tree.compensated_add(window, tree.scale(tree.subtract(tangents, tree.add(*window)), rate))
        mean = tree.add(*window)
        constraints = mean.offset + tree.pushforward(mean.jac, x)
        return window, feedback._replace(constraints=constraints, constraint_jac=mean.jac), True

    def pending(self, window: Any) -> Any:
        return 0

    def stock(self, window: Any, t: jax.Array, count: int) -> Any:
        return window

    def for_run(self, num_samples: int, num_rounds: int | None, law: Any = None) -> GrowingWindow:
        if num_rounds is not None:
            raise ValueError("levels were given, but each round of this algorithm is one sample; only MLMC has levels")
        return self


@tree.module()
class Widening:
    """V_t = t^(3/4), alpha_t = t^(3/2): EDPP-t's weights at beta = 1/2 with sqrt t in the place of tau_mix."""

    def init(self, geometry: Geometry, x: Any, num_constraints: int) -> Any:
        return ()

    def weights(self, state: Any, t: jax.Array, sizes: Sizes) -> tuple[Any, Weights]:
        time = t.astype(sizes.loss_grad.dtype)
        proximity = time * jnp.sqrt(time)
        return state, Weights(jnp.sqrt(proximity), proximity)
