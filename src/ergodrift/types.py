"""The words every other module uses; the symbols are those of Kim and Lee."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import numpy as np

if TYPE_CHECKING:  # shapes are for readers and editors: the package itself runs without jaxtyping
    from jaxtyping import Float, Int

PyTree: TypeAlias = Any  # arrays in any nest of dicts, tuples, lists and dataclasses: points, samples, states
Array: TypeAlias = jax.Array | np.ndarray  # on the device or on the host
Scalar: TypeAlias = Array | float  # one number, possibly traced
Key: TypeAlias = jax.Array  # of jax.random
Device: TypeAlias = Any  # a jax.Device, which is no class to type checkers


class Compact(NamedTuple):
    """The tangent planes of a feedback in few numbers (`CompactForm`).

    Attributes:
        numbers: (size,) all that changes from one visit of a state to the next.
        basis: what makes planes of them, and comes back with the state.
    """

    numbers: Float[jax.Array, "size"]
    basis: PyTree


class Feedback(NamedTuple):
    """What round t reveals at x_t; also the message an agent sends about its data.

    Attributes:
        loss: f_t(x_t), a scalar.
        loss_grad: the gradient of f_t at x_t, with the structure of x.
        constraints: g_t(x_t), shape (n,).
        constraint_jac: the gradients of g_t at x_t, with the structure of x and a leading axis n.
        state: which state (agent, regime, row) the sample came from, for methods that remember; None where unknown.
        age: of a round's feedback, how many samples ago its parts were seen on average; None where all is fresh.
        compact: the same tangent planes in few numbers, for methods that remember those; None elsewhere.
    """

    loss: Float[jax.Array, ""]
    loss_grad: PyTree
    constraints: Float[jax.Array, "n"]
    constraint_jac: PyTree
    state: PyTree = None
    age: Float[Array, ""] | None = None
    compact: Compact | None = None


class Sizes(NamedTuple):
    """(F_t, G_t, H_t): dual norms of the gradients and sizes of the constraints of one round, and its age if any."""

    loss_grad: Float[Array, ""]
    constraint_jac: Float[Array, "n"]
    constraints: Float[Array, "n"]
    age: Float[Array, ""] | None = None


class Weights(NamedTuple):
    """V_t (`penalty`) and alpha_t (`proximity`) of appendix A."""

    penalty: Float[Array, ""]
    proximity: Float[Array, ""]


class StepSizes(NamedTuple):
    """eta_t (`primal`), mu_t (`dual`) and theta_t (`damping`) of a primal-dual round."""

    primal: Float[Array, ""]
    dual: Float[Array, ""]
    damping: Float[Array, ""]


class State(NamedTuple):
    """All that the next sample needs.

    Attributes:
        t: rounds finished, int32 (a float32 counter would stall at 2^24).
        x: x_{t+1}, the point at which the next sample is asked for its feedback.
        queue: Q_{t+1}, shape (n,); the multipliers of a primal-dual method.
        schedule: what the schedule carries from round to round.
        window: what the estimator has gathered of an unfinished round.
    """

    t: Int[jax.Array, ""]
    x: PyTree
    queue: Float[jax.Array, "n"]
    schedule: PyTree
    window: PyTree


class Info(NamedTuple):
    """What is only observed of a step.

    Attributes:
        updated: whether this sample finished a round (always, unless an estimator is gathering a window).
        weights: `Weights` or `StepSizes` of the round, meaningful where `updated`.
        sizes: (F_t, G_t, H_t) of the round.
        feedback: the round's feedback as the estimator gave it.
    """

    updated: Any
    weights: Any
    sizes: Sizes
    feedback: Feedback
