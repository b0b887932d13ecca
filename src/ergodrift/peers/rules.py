"""One round of the methods that people use instead, on flat vectors: compiled twins of what libraries do step by step.

`libraries` runs the libraries themselves and compares: a twin that leaves its library by more than rounding is no twin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from ergodrift.types import Array, Scalar

Memory: TypeAlias = Any  # a dictionary of arrays, with "multipliers" among them
B1, B2, EPS = 0.9, 0.999, 1e-8  # of Adam, as PyTorch has them
MU, BETA, CEILING = 2.0, 0.5, 100.0  # of humancompatible-train's smoothing, and the largest multiplier there
GAMMA, KEPT, LEAST, NARROWEST = 0.1, 0.1, 1e-9, 0.1  # of its penalty-barrier method


class Seen(NamedTuple):
    """What a sample says at x: gradient of the loss (d,), constraints (n,) and their gradients (n, d)."""

    grad: Array
    constraints: Array
    jac: Array


class Steps(NamedTuple):
    """What is tuned: the two steps, both multiplied by t^-decay."""

    primal: Scalar
    dual: Scalar
    decay: Scalar = 0.0


class Rule(NamedTuple):
    """How a method starts at (x0, number of constraints), and its round t = 1, 2, ...: what it remembers, and x before
    it is projected onto the domain."""

    start: Callable[[jax.Array, int], Memory]
    update: Callable[[Memory, jax.Array, jax.Array, Seen, Steps], tuple[Memory, jax.Array]]


def _start(x: jax.Array, n: int) -> Memory:
    return {"multipliers": jnp.zeros(n, x.dtype)}


def _start_adam(x: jax.Array, n: int) -> Memory:
    return {**_start(x, n), "mean": jnp.zeros_like(x), "square": jnp.zeros_like(x)}


def _adam(memory: Memory, t: jax.Array, direction: jax.Array) -> tuple[Memory, jax.Array]:
    """Adam's direction (Kingma and Ba 2015)."""
    t = t.astype(direction.dtype)
    mean = B1 * memory["mean"] + (1 - B1) * direction
    square = B2 * memory["square"] + (1 - B2) * jnp.square(direction)
    scaled = (mean / (1 - B1**t)) / (jnp.sqrt(square) / jnp.sqrt(1 - B2**t) + EPS)
    return {**memory, "mean": mean, "square": square}, scaled


def _lagrangian(memory: Memory, seen: Seen) -> jax.Array:
    return seen.grad + memory["multipliers"] @ seen.jac


def _ascent(memory: Memory, t: jax.Array, seen: Seen, steps: Steps) -> jax.Array:
    step = steps.dual * t.astype(seen.grad.dtype) ** -steps.decay
    return jnp.maximum(memory["multipliers"] + step * seen.constraints, 0)


def _descent_ascent(memory: Memory, t: jax.Array, x: jax.Array, seen: Seen, steps: Steps) -> tuple[Memory, jax.Array]:
    step = steps.primal * t.astype(x.dtype) ** -steps.decay
    x_next = x - step * _lagrangian(memory, seen)
    return {**memory, "multipliers": _ascent(memory, t, seen, steps)}, x_next


def _adam_ascent(memory: Memory, t: jax.Array, x: jax.Array, seen: Seen, steps: Steps) -> tuple[Memory, jax.Array]:
    multipliers = _ascent(memory, t, seen, steps)
    memory, direction = _adam(memory, t, _lagrangian(memory, seen))
    return {**memory, "multipliers": multipliers}, x - steps.primal * direction


def _smoothed(memory: Memory, t: jax.Array, x: jax.Array, seen: Seen, steps: Steps) -> tuple[Memory, jax.Array]:
    multipliers = jnp.clip(memory["multipliers"] + steps.dual * seen.constraints, 0, CEILING)
    memory = {**memory, "multipliers": multipliers}
    away = x - memory["centre"]
    memory, direction = _adam(memory, t, _lagrangian(memory, seen) + MU * away)
    return {**memory, "centre": memory["centre"] + BETA * away}, x - steps.primal * direction


def _switching(memory: Memory, t: jax.Array, x: jax.Array, seen: Seen, steps: Steps) -> tuple[Memory, jax.Array]:
    worst = jnp.argmax(seen.constraints)
    chosen = jnp.where(seen.constraints[worst] > 0, seen.jac[worst], seen.grad)
    memory, direction = _adam(memory, t, chosen)
    return memory, x - steps.primal * direction


def _slope(t: Array) -> jax.Array:
    """The derivative of the quadratic-logarithmic penalty (Ben-Tal and Zibulevsky 1997)."""
    return jnp.where(t >= -0.5, 1 + t, -0.25 / jnp.minimum(t, -0.5))


def _barrier(memory: Memory, t: jax.Array, x: jax.Array, seen: Seen, steps: Steps) -> tuple[Memory, jax.Array]:
    multipliers, width = memory["multipliers"], memory["width"]
    pull = multipliers * _slope(seen.constraints / width)
    raised = jnp.clip(GAMMA * multipliers + (1 - GAMMA) * pull, LEAST, CEILING)
    changed = KEPT * width + (1 - KEPT) * width / (_slope(seen.constraints) + EPS)
    memory, direction = _adam(memory, t, seen.grad + pull @ seen.jac)
    memory = {**memory, "multipliers": raised, "width": jnp.clip(changed, NARROWEST, 1)}
    return memory, x - steps.primal * direction


# Simultaneous gradient descent on x and ascent on the multipliers (Arrow, Hurwicz and Uzawa 1958).
DESCENT_ASCENT = Rule(_start, _descent_ascent)
# The same with Adam on x: what Cooper's documentation sets up.
ADAM_ASCENT = Rule(_start_adam, _adam_ascent)
# humancompatible-train: the smoothed linearised augmented Lagrangian (ALM with MoreauEnvelope), ...
SSL_ALM = Rule(lambda x, n: {**_start_adam(x, n), "centre": x}, _smoothed)
# ... the switching subgradient, ...
SSG = Rule(_start_adam, _switching)
# ... and the stochastic penalty-barrier method.
SPBM = Rule(
    lambda x, n: {**_start_adam(x, n), "multipliers": jnp.full(n, LEAST, x.dtype), "width": jnp.ones(n, x.dtype)},
    _barrier,
)
