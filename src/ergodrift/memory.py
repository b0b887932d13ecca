"""Memory: the last feedback of every state, averaged under the stationary law, and steps that fit its age.

When the states are finitely many and told apart, the only error left in a round's feedback is that its parts are old.
See docs/memory.md for what follows from that.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ergodrift import tree
from ergodrift.geometry import Geometry
from ergodrift.types import Feedback, Sizes, Weights

UNSEEN = 4.0  # a state never seen counts as so many times older than the run: of it not even an old gradient is known


class Notes(NamedTuple):
    """What is remembered.

    A state's row is the tangent plane that its last feedback gives: the gradients of the loss and the constraints, and
    what the tangents are worth at x = 0. An average of planes is a plane, whatever the points they touch at.

    Attributes:
        rows: (S, 1 + d + n + n d) the plane of each state, 0 before its first visit.
        seen: (S,) int32, the number of the sample that last came from it, from 1; 0 before its first visit.
        visits: (S,) int32 how often it came, where the law is estimated from that; else None.
        average: the weighted average of the rows, as a compensated sum.
        mass: the weight of the states seen so far; by visits, their share of all states.
        left: how many states with a weight have not been seen; at 0 the mass is 1, whatever rounding made of its sum.
        age: how many samples ago the states seen so far were last seen, on average under the weights.
    """

    rows: Any
    seen: Any
    visits: Any
    average: Any
    mass: Any
    left: Any
    age: Any


@tree.module("num_states", "by_visits")
class Memory:
    """Each sample is a round, whose feedback is the law's average of the last tangent planes of all states seen so far.

    f̂_t(x) = sum_s w_s [f_s(y_s) + df_s(y_s).(x - y_s)], where y_s is the point at which state s was last seen, and the
    same for each constraint; the round's feedback is value and slope of these planes at x_t. Linear constraints are
    remembered exactly. A round costs the same however many states there are: the visited state's old plane goes, its
    new one comes.

    Attributes:
        law: w, (S,), summing to one: the stationary law or another target.
        num_states: S. Where it is None, `run` takes it and the law from its source.
        by_visits: whether weights are the shares of visits so far, instead of a law.
    """

    law: Any = None
    num_states: int | None = None
    by_visits: bool = False

    needs_state = True

    def for_run(self, num_samples: int, num_rounds: int | None, law: Any = None) -> Memory:
        if num_rounds is not None:
            raise ValueError("levels were given, but each round of this algorithm is one sample; only MLMC has levels")
        if law is None:
            raise ValueError(
                "this algorithm remembers every state, but the source has none that come back (a series, or a Zip); "
                "use wdpp() instead"
            )
        count = len(law)
        if self.num_states is None:
            return Memory(None if self.by_visits else np.asarray(law), count, self.by_visits)
        if self.num_states != count:
            raise ValueError(f"the law is over {self.num_states} states, but the source has {count}")
        return self

    def init(self, zero: Feedback, levels: Any) -> Notes:
        if self.num_states is None:
            raise ValueError("the number of states is not known: pass law=..., or law='visits' with num_states=...")
        empty, seen = _plane(zero, zero.loss_grad), jnp.zeros(self.num_states, jnp.int32)
        none = jnp.zeros_like(zero.loss)
        return Notes(
            rows=jnp.zeros((self.num_states, empty.size), empty.dtype),
            seen=seen,
            visits=seen if self.by_visits else None,
            average=tree.compensated(empty),
            mass=none,
            left=jnp.asarray(self.num_states if self.by_visits else jnp.sum(jnp.asarray(self.law) > 0), jnp.int32),
            age=none,
        )

    def observe(self, window: Notes, t: jax.Array, feedback: Feedback, x: Any = None) -> tuple[Notes, Feedback, Any]:
        if feedback.state is None:
            raise ValueError(
                "feedback.state is missing: this method remembers states; use feedback._replace(state=...)"
            )
        state, now = jnp.asarray(feedback.state, jnp.int32), t + 1
        # A state that does not exist would be taken for another: a NaN shows, and run says where.
        known = (state >= 0) & (state < window.seen.shape[0])
        new = jnp.where(known, _plane(feedback, x), jnp.nan)
        old, seen = _at(window.rows, state), _at(window.seen, state)
        waited, first = (now - seen).astype(new.dtype), seen == 0
        if self.by_visits:
            notes = self._by_visits(window, state, t, new, old, waited, first)
        else:
            notes = self._by_law(window, state, new, old, waited, first)
        notes = notes._replace(rows=_put(window.rows, state, new), seen=_put(window.seen, state, now))
        # Shares of visits sum to one as they are; a law's weights do once all states are seen.
        share = 1 if self.by_visits else jnp.where(notes.mass > 0, notes.mass, 1)
        plane = tree.add(*notes.average) / share
        unseen = jnp.maximum(1 - notes.mass, 0) * now.astype(new.dtype)
        return notes, _value(plane, feedback, x)._replace(age=notes.age + UNSEEN * unseen), True

    def _by_law(self, notes: Notes, state: Any, new: Any, old: Any, waited: Any, first: Any) -> Notes:
        """Known weights: all ages grow by one, and the visited state's goes back to 0."""
        weight = _at(self.law, state)
        # w (new - old), not w new - w old: with a fused multiply-add the latter would not cancel where new = old.
        average = tree.compensated_add(notes.average, weight * (new - old))
        age = jnp.maximum(notes.age + notes.mass - jnp.where(first, 0, weight * waited), 0)
        return _met(notes._replace(average=average, age=age), first, weight)

    def _by_visits(self, notes: Notes, state: Any, t: jax.Array, new: Any, old: Any, waited: Any, first: Any) -> Notes:
        """Weights are shares of the samples so far; what is unseen has, for all one knows, its share of the states."""
        kind = new.dtype
        before, count = t.astype(kind), _at(notes.visits, state)
        times = count.astype(kind)
        term = ((times + 1) * (new - old) + (old - tree.add(*notes.average))) / (before + 1)
        aged = jnp.where(first, 0, times * waited)
        notes = notes._replace(
            visits=_put(notes.visits, state, count + 1),
            average=tree.compensated_add(notes.average, term),
            age=jnp.maximum(notes.age + (before - aged - notes.age) / (before + 1), 0),
        )
        return _met(notes, first, jnp.asarray(1 / notes.seen.shape[0], kind))

    def pending(self, window: Notes) -> Any:
        return 0

    def stock(self, window: Notes, t: jax.Array, count: int) -> Notes:
        return window


@tree.module()
class Aging:
    """V_t = sqrt t, alpha_t = sqrt(t (t + (c age_t)^2)), where age_t is that of the round's feedback and c = 3/2.

    So the step V_t / (2 alpha_t) is that of DPP-t, 1 / (2 sqrt t), but never longer than 1 / (3 age_t): in the time
    that a state waits to be seen again, x moves by about a third of a gradient. No mixing time and no horizon.

    Attributes:
        caution: c.
    """

    caution: Any = 1.5

    def init(self, geometry: Geometry, x: Any, num_constraints: int) -> Any:
        return ()

    def weights(self, state: Any, t: jax.Array, sizes: Sizes) -> tuple[Any, Weights]:
        time = t.astype(sizes.loss_grad.dtype)
        penalty = jnp.sqrt(time)
        return state, Weights(penalty, penalty * jnp.sqrt(time + jnp.square(self.caution * sizes.age)))


def _met(notes: Notes, first: Any, weight: Any) -> Notes:
    """The notes once a state of this weight has been seen."""
    left = notes.left - (first & (weight > 0)).astype(jnp.int32)
    return notes._replace(left=left, mass=jnp.where(left == 0, 1, notes.mass + jnp.where(first, weight, 0)))


def _at(array: Any, index: Any) -> Any:
    return jax.lax.dynamic_index_in_dim(jnp.asarray(array), index, keepdims=False)


def _put(array: Any, index: Any, row: Any) -> Any:
    return jax.lax.dynamic_update_index_in_dim(array, row, index, 0)


def _slopes(feedback: Feedback) -> tuple[Any, Any]:
    """Gradient (d,) and Jacobian (n, d), with x as one long vector."""
    count = feedback.constraints.shape[0]
    flat = [leaf.reshape(count, -1) for leaf in jax.tree.leaves(feedback.constraint_jac)]
    return ravel_pytree(feedback.loss_grad)[0], jnp.concatenate(flat, axis=1)


def _plane(feedback: Feedback, x: Any) -> Any:
    """The tangent planes of loss and constraints in one vector: slopes, then values at x = 0."""
    grad, jac = _slopes(feedback)
    flat = ravel_pytree(x)[0]
    loss = feedback.loss - jnp.sum(grad * flat)
    constraints = feedback.constraints - jnp.sum(jac * flat, axis=1)
    return jnp.concatenate([grad, jac.ravel(), loss[None], constraints])


def _value(plane: Any, like: Feedback, x: Any) -> Feedback:
    """The feedback that a plane gives at x."""
    n = like.constraints.shape[0]
    flat, unravel = ravel_pytree(x)
    d = flat.size
    grad, jac = plane[:d], plane[d : d + n * d].reshape(n, d)
    loss = plane[d + n * d] + jnp.sum(grad * flat)
    constraints = plane[d + n * d + 1 :] + jnp.sum(jac * flat, axis=1)
    return Feedback(loss, unravel(grad), constraints, jax.vmap(unravel)(jac))
