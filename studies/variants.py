"""Estimators that were tried for streams whose states cannot be told apart, and lost: docs/laboratory/memory.md."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ergodrift._core import tree
from ergodrift.methods.estimator import Estimator, MultiLevel, Window
from ergodrift.types import Feedback


class Parts(NamedTuple):
    """What the samples of a window have said so far: the first one, the latest one, and sums over its two halves."""

    first: Feedback
    latest: Feedback
    early: Feedback
    late: Feedback


class _Split(MultiLevel):
    """MLMC windows whose halves are kept apart; a subclass says what they make together."""

    def init(self, zero: Feedback, levels: Any) -> Window:
        blank: Any = Parts(zero, zero, zero, zero)
        return super().init(zero, levels)._replace(total=blank)

    def observe(self, window: Window, t: jax.Array, feedback: Feedback, x: Any = None) -> tuple[Window, Feedback, Any]:
        seen, begins = window.seen + 1, window.seen == 0
        total: Any = window.total
        early, old = 2 * seen <= window.length, tree.select(begins, tree.scale(total, 0), total)
        parts: Any = Parts(
            tree.select(begins, feedback, old.first),
            feedback,
            tree.add(old.early, tree.select(early, feedback, tree.scale(feedback, 0))),
            tree.add(old.late, tree.select(early, tree.scale(feedback, 0), feedback)),
        )
        complete = seen == window.length
        length = jnp.where(complete, self.length(window.levels, t + 1), window.length)
        after = Window(jnp.where(complete, 0, seen), length, parts, window.levels)
        return after, self.together(parts, window.length), complete

    def together(self, parts: Parts, length: jax.Array) -> Feedback:
        raise NotImplementedError


class Clipped(_Split):
    """f^1 + N (f^N - f^(N/2)) with the second term cut, part by part, to the length of f^N."""

    max_level: Any

    def together(self, parts: Parts, length: jax.Array) -> Feedback:
        correction = tree.select(length > 1, tree.subtract(parts.late, parts.early), tree.scale(parts.late, 0))
        mean = tree.scale(tree.add(parts.late, parts.early), 1 / length.astype(parts.first.loss.dtype))

        def cut(term: jax.Array, like: jax.Array, axes: tuple[int, ...]) -> jax.Array:
            size, most = (jnp.sqrt(jnp.sum(jnp.square(leaf), axis=axes, keepdims=True)) for leaf in (term, like))
            return term * jnp.minimum(1, most / jnp.where(size > 0, size, 1))

        kept = Feedback(
            cut(correction.loss, mean.loss, ()),
            cut(correction.loss_grad, mean.loss_grad, (0,)),
            cut(correction.constraints, mean.constraints, ()),
            cut(correction.constraint_jac, mean.constraint_jac, (1,)),
        )
        return tree.add(parts.first, kept)


class Antithetic(_Split):
    """The mean of MLMC on the window as it came and on the window turned around.

    The two corrections N (f^N - f^(N/2)) are each other's negative, so what is left is the mean of both ends.
    """

    max_level: Any

    def together(self, parts: Parts, length: jax.Array) -> Feedback:
        return tree.scale(tree.add(parts.first, parts.latest), 0.5)


class Balanced(Estimator):
    """Another estimator with constraint i divided by the root mean square of (R G_i, H_i) over the rounds so far.

    With `AdaGrad`, every constraint then has a scale of its own.
    """

    inner: Any
    diameter: Any

    def init(self, zero: Feedback, levels: Any) -> Any:
        return self.inner.init(zero, levels), zero.constraints

    def observe(self, window: Any, t: jax.Array, feedback: Feedback, x: Any = None) -> tuple[Any, Feedback, Any]:
        inside, energy = window
        inside, found, complete = self.inner.observe(inside, t, feedback, x)
        steepness = jnp.sum(jnp.square(found.constraint_jac), axis=1)
        energy = energy + jnp.where(complete, self.diameter**2 * steepness + jnp.square(found.constraints), 0)
        mean = energy / (t + 1).astype(energy.dtype)
        scale = jnp.where(mean > 0, 1 / jnp.sqrt(jnp.where(mean > 0, mean, 1)), 1)
        scaled = found._replace(
            constraints=scale * found.constraints, constraint_jac=scale[:, None] * found.constraint_jac
        )
        return (inside, energy), scaled, complete

    def pending(self, window: Any) -> Any:
        return self.inner.pending(window[0])

    def prefetch(self, window: Any, t: jax.Array, count: int) -> Any:
        return self.inner.prefetch(window[0], t, count), window[1]

    def for_run(self, num_samples: int, num_rounds: int | None, law: Any = None, compact: Any = None) -> Any:
        return Balanced(self.inner.for_run(num_samples, num_rounds, law, compact), self.diameter)
