"""Estimators: how the samples of a round become its feedback."""

from __future__ import annotations

import abc
import bisect
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import check, tree
from ergodrift.data.sampler import all_bits
from ergodrift.problem import CompactForm, Problem
from ergodrift.types import Array, Feedback, Key, PyTree, Scalar

E = TypeVar("E", bound="Estimator")
NEVER = np.int32(2**31 - 1)  # a window longer than any run


class Estimator(tree.Module, abc.ABC):
    """How the samples of a round become its feedback: one sample's feedback at a time is folded into a window.

    A subclass is a frozen dataclass and a pytree: its fields are numbers that may be swept, those named in
    `class Mine(Estimator, static=("kind",))` are not. `observe` is all that it must have.

    Attributes:
        needs_state: whether it must be told which state a sample came from, in `Feedback.state`.
    """

    needs_state = False

    @property
    def compact(self) -> CompactForm | None:
        """The form in which it must be told the tangent planes, in `Feedback.compact`, if any."""
        return None

    def init(self, zero: Feedback, levels: Key | Array | None) -> PyTree:
        """An empty window. `zero` has the shapes of a feedback; `levels` is a key, or the levels of all rounds."""
        return ()

    @abc.abstractmethod
    def observe(
        self, window: PyTree, t: jax.Array, feedback: Feedback, x: PyTree
    ) -> tuple[PyTree, Feedback, jax.Array | bool]:
        """The next window, the round's feedback, and whether the round (t are finished before it) is complete.

        `x` is the point at which the feedback was given.
        """

    def pending(self, window: PyTree) -> jax.Array | int:
        """How many samples the unfinished round has taken; none where each sample is a round."""
        return 0

    def prefetch(self, window: PyTree, t: jax.Array, count: int) -> PyTree:
        """The window with what the next `count` samples will need drawn beforehand (t rounds are finished)."""
        return window

    def for_run(
        self: E,
        num_samples: int,
        num_rounds: int | None,
        law: np.ndarray | None = None,
        compact: CompactForm | None = None,
    ) -> E:
        """The estimator for a run of so many samples, and of so many rounds where they are known.

        `law` is the stationary law of the states, where they are finitely many and told apart; `compact` the form that
        the problem offers for its feedback.
        """
        if num_rounds is not None:
            raise ValueError(f"levels were given, but {type(self).__name__} has none; only MLMC (mdpp) does")
        return self

    def samples_for(self, levels: Array) -> int:
        """How many samples given levels, (seeds, rounds), take: those of the seed that takes the most."""
        raise ValueError(f"levels were given, but {type(self).__name__} does not say how many samples they take")


class SingleSample(Estimator):
    """Each sample is a round, as it is."""

    def observe(
        self, window: PyTree, t: jax.Array, feedback: Feedback, x: PyTree = None
    ) -> tuple[PyTree, Feedback, jax.Array | bool]:
        return window, feedback, True


class Prefetched(NamedTuple):
    """Levels of rounds `first`, `first` + 1, ..., looked up or drawn beforehand: the same as from their origin."""

    origin: jax.Array
    first: jax.Array
    drawn: jax.Array


class Window(NamedTuple):
    """An unfinished MLMC round.

    Attributes:
        seen: how many of its samples have come.
        length: how many it takes, N.
        total: their feedback, summed with the MLMC weights.
        levels: where the levels of rounds come from: a key, an array with one level per round, or `Prefetched`.
    """

    seen: jax.Array
    length: jax.Array
    total: Feedback
    levels: jax.Array | Prefetched


class MultiLevel(Estimator):
    """Multi-level Monte Carlo: f^1 + N (f^N - f^(N/2)) over a window of N consecutive samples (section 4.1).

    The level J is geometric, P(J = j) = 2^-j for j = 1, 2, ...; N = 2^J where that is at most the cap, else N = 1. In
    expectation this is the mean over a window as long as the cap, for 2 to 30 samples per round.

    Attributes:
        max_level: the largest J with 2^J <= cap. None stands for cap = T^2 with T the number of rounds.
    """

    max_level: Scalar | None

    @staticmethod
    def with_cap(cap: int | None) -> MultiLevel:
        return MultiLevel(
            None if cap is None else check.integer("cap", cap, at_least=1, at_most=2**62).bit_length() - 1
        )

    def init(self, zero: Feedback, levels: Key | Array | None) -> Window:
        if self.max_level is None:
            raise ValueError("cap=None stands for T^2: pass a cap, or let run() set it from the number of samples")
        if levels is None:
            raise ValueError("this method draws random levels: pass a key, or the levels of all rounds")
        levels = _checked_levels(levels)
        return Window(jnp.int32(0), self.length(levels, jnp.int32(0)), zero, levels)

    def observe(
        self, window: Window, t: jax.Array, feedback: Feedback, x: PyTree = None
    ) -> tuple[Window, Feedback, jax.Array]:
        seen, first = window.seen + 1, window.seen == 0
        # f^1 + N (f^N - f^(N/2)) weighs the first half of the window by -1 and the second by +1, plus 1 for the first
        # sample; with N = 1 the single sample is the second half and must not count twice.
        sign = jnp.where(2 * seen <= window.length, -1, 1) + jnp.where(first & (window.length > 1), 1, 0)
        weight = sign.astype(window.total.loss.dtype)
        total = jax.tree.map(
            lambda old, new: jnp.where(first, 0, old) + weight.astype(new.dtype) * new, window.total, feedback
        )
        complete = seen == window.length
        length = jnp.where(complete, self.length(window.levels, t + 1), window.length)
        return Window(jnp.where(complete, 0, seen), length, total, window.levels), total, complete

    def pending(self, window: Window) -> jax.Array:
        return window.seen

    def prefetch(self, window: Window, t: jax.Array, count: int) -> Window:
        # Drawing inside the innermost loop would cost more than a round: each sample would run a block cipher.
        origin = window.levels.origin if isinstance(window.levels, Prefetched) else window.levels
        drawn = jax.vmap(lambda ahead: level_of(origin, t + ahead))(jnp.arange(count + 1, dtype=jnp.int32))
        return window._replace(levels=Prefetched(origin, t, drawn))

    def for_run(
        self,
        num_samples: int,
        num_rounds: int | None,
        law: np.ndarray | None = None,
        compact: CompactForm | None = None,
    ) -> MultiLevel:
        """cap = T^2 needs T: the rounds that levels are given for, or the most that fit into the samples on average."""
        if self.max_level is not None:
            return self
        if num_rounds is None:
            counts = range(1, num_samples + 1)
            num_rounds = bisect.bisect_right(counts, num_samples, key=lambda rounds: rounds * mean_samples(rounds**2))
        return MultiLevel.with_cap(max(num_rounds, 1) ** 2)

    def samples_for(self, levels: Array) -> int:
        return int(np.asarray(self._length(jnp.asarray(levels)), np.int64).sum(axis=1).max())

    def length(self, levels: jax.Array | Prefetched, t: jax.Array) -> jax.Array:
        """N of round t (from 0), by the level drawn for it or given; past the given levels, one that never ends."""
        return self._length(levels.drawn[t - levels.first] if isinstance(levels, Prefetched) else level_of(levels, t))

    def _length(self, level: jax.Array) -> jax.Array:
        size = jnp.where(level <= 30, jnp.left_shift(1, jnp.minimum(level, 30)), NEVER)
        length = jnp.where(level <= self.max_level, size, 1)
        return jnp.where(level == 0, NEVER, length).astype(jnp.int32)


def ask(problem: Problem, x: PyTree, xi: PyTree, estimator: Estimator, state: PyTree = None) -> Feedback:
    """What the sample xi of this state says at x, with all that the estimator must be told."""
    form = estimator.compact
    feedback = problem.feedback(x, xi) if form is None else form.feedback(problem, x, xi)
    return feedback._replace(state=state) if estimator.needs_state else feedback


def shifted(feedback: Feedback, step: PyTree) -> Feedback:
    """What the tangent planes of a feedback say one step further: loss + grad . step, constraints + jac . step."""
    loss = feedback.loss + tree.total(jax.tree.map(jnp.multiply, feedback.loss_grad, step))
    return feedback._replace(
        loss=loss, constraints=feedback.constraints + tree.pushforward(feedback.constraint_jac, step)
    )


def _checked_levels(levels: Key | Array) -> jax.Array:
    """A key as it is, or given levels as an int32 array."""
    if isinstance(levels, jax.Array) and jnp.issubdtype(levels.dtype, jax.dtypes.prng_key):
        return levels
    array = levels if tree.is_traced(levels) else np.asarray(levels)
    whole = array.ndim == 1 and jnp.issubdtype(array.dtype, jnp.signedinteger)
    if not whole or (not tree.is_traced(array) and array.min(initial=1) < 1):
        raise ValueError(f"levels must be a jax.random.key, or whole numbers >= 1, one per round; got {levels!r}")
    if not tree.is_traced(array) and array.max(initial=1) >= 2**31:
        raise ValueError(f"levels must be below 2^31, got {array.max()}; a window has 2^level samples")
    return jnp.asarray(array, jnp.int32)


def level_of(levels: jax.Array, t: jax.Array) -> jax.Array:
    """J of round t (from 0): drawn from a key, or given; 0 past the given levels."""
    if jnp.issubdtype(levels.dtype, jax.dtypes.prng_key):
        return draw_level(levels, t)
    return levels.at[t].get(mode="fill", fill_value=0)


def draw_level(key: Key, t: jax.Array) -> jax.Array:
    """J of round t (from 0): one more than the leading zeros of random bits, so P(J = j) = 2^-j."""
    return jax.lax.clz(all_bits(jax.random.fold_in(key, t))).astype(jnp.int32) + 1


def mean_samples(cap: int) -> float:
    """E[N] = j + 2^-j, with 2^j the largest power of two up to the cap.

    >>> mean_samples(16)
    4.0625
    """
    level = cap.bit_length() - 1
    return level + 2.0**-level
