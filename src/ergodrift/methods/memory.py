"""Memory: the last feedback of every state, averaged under the stationary law, and steps that fit its age.

When the states are finitely many and told apart, the only error left in a round's feedback is that its parts are old.
See docs/laboratory/memory.md for what follows from that.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ergodrift._core import tree
from ergodrift.methods.estimator import Estimator, shifted
from ergodrift.methods.schedule import Schedule
from ergodrift.problem import CompactForm
from ergodrift.types import Array, Compact, Feedback, Key, PyTree, Scalar, Sizes, Weights

UNSEEN = 4.0  # a state never seen counts as so many times older than the run: of it not even an old gradient is known


class Remembered(NamedTuple):
    """What is kept of one state; all 0 before its first visit.

    Attributes:
        numbers: the tangent planes that its last feedback gives, which are gradients and what the tangents are worth at
            x = 0, in one vector; or, in a compact form, what of them changes.
        seen: int32, the number of the sample that last came from it, from 1.
        visits: int32, how often it came, where the law is estimated from that; else None.
    """

    numbers: jax.Array
    seen: jax.Array
    visits: jax.Array | None


class Latest(NamedTuple):
    """What the latest sample has left to put into the entry of its state."""

    numbers: jax.Array
    visits: jax.Array | None


class MemoryState(NamedTuple):
    """What is remembered.

    Attributes:
        entries: one for each state, along a leading axis, as they were before the latest sample.
        state: which state the latest sample came from.
        latest: the numbers and visits that it has since. They are put in when the next sample comes: the table is then
            written to before it is read, so that it can stay where it is in memory; read first, it would be copied.
        average: the weighted average of the planes, as a compensated sum. An average of planes is a plane, whatever the
            points they touch at.
        mass: the weight of the states seen so far; by visits, their share of all states.
        left: how many states with a weight have not been seen; at 0 the mass is 1, whatever rounding made of its sum.
        age: how many samples ago the states seen so far were last seen, on average under the weights.
    """

    entries: Remembered
    state: jax.Array
    latest: Latest
    average: tuple[jax.Array, jax.Array]
    mass: jax.Array
    left: jax.Array
    age: jax.Array


class Memory(Estimator, static=("num_states", "by_visits", "compact")):
    """Each sample is a round, whose feedback is the law's average of the last tangent planes of all states seen so far.

    f̂_t(x) = sum_s w_s [f_s(y_s) + df_s(y_s).(x - y_s)], where y_s is the point at which state s was last seen, and the
    same for each constraint; the round's feedback is value and slope of these planes at x_t. Linear constraints are
    remembered exactly. A round costs the same however many states there are: the visited state's old plane goes, its
    new one comes.

    Attributes:
        law: w, (S,), summing to one: the stationary law or another target.
        num_states: S. Where it is None, `run` takes it and the law from its source.
        by_visits: whether weights are the shares of visits so far, instead of a law.
        compact: the form in which planes are kept, where the problem offers one.
    """

    law: Array | None = None
    num_states: int | None = None
    by_visits: bool = False
    compact: CompactForm | None = None  # type: ignore[assignment]  # a field in the place of a property

    needs_state = True

    def for_run(
        self,
        num_samples: int,
        num_rounds: int | None,
        law: np.ndarray | None = None,
        compact: CompactForm | None = None,
    ) -> Memory:
        super().for_run(num_samples, num_rounds)
        if law is None:
            raise ValueError(
                "this algorithm remembers every state, but the source has none that come back and are told apart "
                "(a series, a simulator, a Zip); "
                "use wdpp() instead"
            )
        if self.num_states not in (None, len(law)):
            raise ValueError(f"the law is over {self.num_states} states, but the source has {len(law)}")
        known = np.asarray(law) if self.law is None and not self.by_visits else self.law
        return Memory(known, len(law), self.by_visits, compact)

    def init(self, zero: Feedback, levels: Key | Array | None) -> MemoryState:
        if self.num_states is None:
            raise ValueError("the number of states is not known: pass law=..., or law='visits' with num_states=...")
        none, never = zero.loss, jnp.int32(0)
        planes = ravel_pytree(zero)[0]
        numbers = planes if self.compact is None else jnp.zeros(self.compact.size, none.dtype)
        entry = Remembered(numbers, never, never if self.by_visits else None)
        weighty = self.num_states if self.by_visits else jnp.sum(jnp.asarray(self.law) > 0)
        return MemoryState(
            entries=jax.tree.map(lambda leaf: jnp.zeros((self.num_states, *leaf.shape), leaf.dtype), entry),
            state=never,
            latest=Latest(numbers, entry.visits),
            average=tree.compensated(planes),
            mass=none,
            left=jnp.asarray(weighty, jnp.int32),
            age=none,
        )

    def observe(
        self, window: MemoryState, t: jax.Array, feedback: Feedback, x: PyTree = None
    ) -> tuple[MemoryState, Feedback, bool]:
        if feedback.state is None:
            raise ValueError(
                "feedback.state is missing: this method remembers states; use feedback._replace(state=...)"
            )
        state, kind = jnp.asarray(feedback.state, jnp.int32), feedback.loss.dtype
        latest = Remembered(window.latest.numbers, t, window.latest.visits)
        entries = jax.tree.map(lambda table, row: _put(table, window.state, row), window.entries, latest)
        entry = jax.tree.map(lambda table: _at(table, state), entries)
        after, fresh, stale = self._weighed(window, entry, state, t)

        planes, as_feedback = ravel_pytree(shifted(feedback._replace(state=None, compact=None), tree.scale(x, -1)))
        new, old = planes if self.compact is None else _compact(feedback).numbers, entry.numbers
        # w (new - old), not w new - w old: with a fused multiply-add the latter would not cancel where new = old.
        term = fresh * (new - old)
        if stale is not None:
            term += stale * old
        if self.compact is not None:
            share = jnp.where(entry.seen == 0, fresh, 0 if stale is None else stale)
            term = ravel_pytree(self.compact.planes(_compact(feedback).basis, term, share))[0]
        if stale is not None:
            term -= stale * window.average[0]
        average = tree.running_add(window.average, term)
        latest = Latest(new, None if entry.visits is None else entry.visits + 1)
        after = after._replace(entries=entries, state=state, latest=latest, average=average)

        # Shares of visits sum to one as they are; a law's weights do once all states are seen.
        share = 1 if self.by_visits else 1 / jnp.where(after.mass > 0, after.mass, 1)
        unseen = jnp.maximum(1 - after.mass, 0) * (t + 1).astype(kind)
        mean = as_feedback(average[0] * share)
        return after, shifted(mean, x)._replace(age=after.age + UNSEEN * unseen), True

    def _weighed(
        self, before: MemoryState, entry: Remembered, state: jax.Array, t: jax.Array
    ) -> tuple[MemoryState, jax.Array, jax.Array | None]:
        """The memory with this visit counted, and how much of (new plane - old plane) comes into the average.

        By visits, the average of t samples becomes one of t + 1: the old plane comes in as well, and the average goes
        out, in this last share.
        """
        states, kind = before.entries.seen.shape[0], before.age.dtype
        waited, first = (t + 1 - entry.seen).astype(kind), entry.seen == 0
        # A state that does not exist would be taken for another: a NaN shows, and run says where.
        known = (state >= 0) & (state < states)
        if entry.visits is None:
            weight = jnp.where(known, _at(jnp.asarray(self.law), state), jnp.nan)
            # All ages grow by one, and the visited state's goes back to 0.
            age = before.age + before.mass - jnp.where(first, 0, weight * waited)
            return _met(before, age, first, weight), weight, None
        taken, times = t.astype(kind), entry.visits.astype(kind)
        part = jnp.where(known, 1, jnp.nan) / (taken + 1)
        age = before.age + (taken - jnp.where(first, 0, times * waited) - before.age) * part
        # What is unseen has, for all one knows, its share of the states.
        return _met(before, age, first, jnp.asarray(1 / states, kind)), (times + 1) * part, part


class Aging(Schedule):
    """V_t = sqrt t, alpha_t = sqrt(t (t + (c age_t)^2)), where age_t is that of the round's feedback and c = 3/2.

    So the step V_t / (2 alpha_t) is that of DPP-t, 1 / (2 sqrt t), but never longer than 1 / (3 age_t): in the time
    that a state waits to be seen again, x moves by about a third of a gradient. No mixing time and no horizon.

    Attributes:
        caution: c.
    """

    caution: Scalar = 1.5

    def weights(self, state: PyTree, t: jax.Array, sizes: Sizes) -> tuple[PyTree, Weights]:
        time = t.astype(sizes.loss_grad.dtype)
        penalty, age = jnp.sqrt(time), jnp.zeros_like(time) if sizes.age is None else sizes.age
        return state, Weights(penalty, penalty * jnp.sqrt(time + jnp.square(self.caution * age)))


def _met(before: MemoryState, age: jax.Array, first: jax.Array, weight: jax.Array) -> MemoryState:
    """The memory once a state of this weight has been seen, and the age of all."""
    left = before.left - (first & (weight > 0)).astype(jnp.int32)
    mass = jnp.where(left == 0, 1, before.mass + jnp.where(first, weight, 0))
    return before._replace(left=left, mass=mass, age=jnp.maximum(age, 0))


def _compact(feedback: Feedback) -> Compact:
    if feedback.compact is None:
        raise ValueError(
            "feedback.compact is missing: this method remembers a compact form; ask for form.feedback(problem, x, xi)"
        )
    return feedback.compact


def _at(array: Array, index: jax.Array) -> jax.Array:
    return jax.lax.dynamic_index_in_dim(jnp.asarray(array), index, keepdims=False)


def _put(array: jax.Array, index: jax.Array, row: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_index_in_dim(array, row, index, 0)
