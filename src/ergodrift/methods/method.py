"""The two update rules: adaptive drift-plus-penalty (appendix A of Kim and Lee, written once) and primal-dual."""

from __future__ import annotations

import abc
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import check, tree
from ergodrift._core.compiled import compiled
from ergodrift.geometry import Geometry, check_shape
from ergodrift.methods.estimator import Estimator
from ergodrift.methods.schedule import FeedbackSchedule, Schedule, StateSchedule
from ergodrift.problem.point import as_point
from ergodrift.types import Array, Feedback, Info, Key, PyTree, Scalar, Sizes, State


class Method(tree.Module, abc.ABC):
    """A rule that turns feedback into the next point, one sample at a time.

    The estimator folds samples into rounds; when a round is complete, `update` makes it. `init` and `step` run from
    Python for data that arrive from anywhere, and the compiled loop of `run` calls the very same `step`. A subclass
    must have `update`; it is a frozen dataclass and a pytree, further fields are numbers or named in `static=`.
    """

    geometry: Geometry
    schedule: Schedule
    estimator: Estimator

    reads: ClassVar[tuple[str, ...]] = ()  # of the weights of a round

    def init(self, x0: PyTree, num_constraints: int, levels: Key | Array | None = None) -> State:
        """The state before the first sample: x_1 = x0 and Q_1 = 0.

        Args:
            x0: a point of X.
            num_constraints: n.
            levels: for methods that draw random levels, a `jax.random.key` or an array of levels, one per round.
        """
        x = checked_point(self.geometry, x0)
        num_constraints = check.integer("num_constraints", num_constraints, at_least=1)
        kind = tree.dtype(x)
        self = tree.cast(self, kind)
        return State(
            t=jnp.zeros((), jnp.int32),
            x=x,
            queue=jnp.zeros(self.num_multipliers(num_constraints), kind),
            schedule=self.schedule.init(self.geometry, x, num_constraints),
            window=self.estimator.init(zero_feedback(x, num_constraints), levels),
        )

    def check(self, x0: PyTree, num_constraints: int) -> None:
        """Raise what `init` raises where schedule or estimator do not fit, and compile next to nothing for it."""
        ready = tree.cast(self, tree.dtype(x0))
        ready.schedule.init(ready.geometry, x0, num_constraints)  # may look at numbers of the domain
        jax.eval_shape(lambda: self.init(x0, num_constraints, np.ones(1, np.int32)))

    def step(self, state: State, feedback: Feedback) -> tuple[State, Info]:
        """Take in the feedback of one sample at `state.x`."""
        check.fits("feedback", feedback)
        return self._step(state, feedback)

    @compiled()
    def _step(self, state: State, feedback: Feedback) -> tuple[State, Info]:
        self._check_shapes(state, feedback)
        if not self.estimator.needs_state:
            feedback = feedback._replace(state=None)
        if self.estimator.compact is None:
            feedback = feedback._replace(compact=None)
        # The point's precision is the run's, whatever a sweep is over and wherever feedback comes from.
        self, feedback = tree.cast((self, feedback), tree.dtype(state.x))
        window, round_feedback, complete = self.estimator.observe(state.window, state.t, feedback, state.x)
        sizes = self.sizes(round_feedback)
        schedule, weights = self.weigh(state, round_feedback, sizes)
        if missing := [name for name in self.reads if not hasattr(weights, name)]:
            raise TypeError(
                f"{type(self).__name__} reads {', '.join(self.reads)} of a round's weights, but what "
                f"{type(self.schedule).__name__}.weights(...) returns, (state, {type(weights).__name__}), has no "
                f"{missing[0]}"
            )
        x, queue = self.update(state.x, state.queue, round_feedback, weights)
        moved, stayed = (jax.tree.map(jnp.shape, pair) for pair in ((x, queue), (state.x, state.queue)))
        if moved != stayed:
            raise ValueError(f"{type(self).__name__}.update returns x and queue of shapes {moved}, not {stayed}")
        done = State(state.t + 1, x, queue, schedule, None)
        kept = tree.select(complete, done, state._replace(window=None))
        return kept._replace(window=window), Info(jnp.asarray(complete), weights, sizes, round_feedback)

    def weigh(self, state: State, feedback: Feedback, sizes: Sizes) -> tuple[PyTree, PyTree]:
        """What the schedule carries on, and the weights of the round that follows `state`."""
        schedule = state.schedule
        if isinstance(self.schedule, FeedbackSchedule):
            schedule = self.schedule.absorb(schedule, state.t + 1, feedback)
        elif isinstance(self.schedule, StateSchedule):
            schedule = self.schedule.absorb(schedule, state.t + 1, feedback, state.x, state.queue, self.geometry)
        return self.schedule.weights(schedule, state.t + 1, sizes)

    def sizes(self, feedback: Feedback) -> Sizes:
        """(F_t, G_t, H_t), in the dual norm of the geometry."""
        norm = jnp.asarray(self.geometry.dual_norm(feedback.loss_grad))
        rows = jnp.asarray(jax.vmap(self.geometry.dual_norm)(feedback.constraint_jac))
        return Sizes(norm, rows, jnp.abs(feedback.constraints), feedback.age)

    def num_multipliers(self, num_constraints: int) -> int:
        return num_constraints

    def _check_shapes(self, state: State, feedback: Feedback) -> None:
        """Feedback from elsewhere must fit the state; broadcasting would hide that it does not."""
        shape = jnp.shape(feedback.constraints)
        point, rows = jax.tree.map(jnp.shape, state.x), jax.tree.map(lambda x: shape + x.shape, state.x)
        wanted = Feedback((), point, shape, rows)  # type: ignore[arg-type]  # shapes in the place of arrays
        found = Feedback(*(jax.tree.map(jnp.shape, part) for part in feedback[:4]))
        if found != wanted or len(shape) != 1 or state.queue.shape != (self.num_multipliers(*shape),):
            raise ValueError(
                f"feedback does not fit the state: x has shapes {wanted.loss_grad} and the queue {state.queue.shape}, "
                f"feedback has {found}"
            )

    @abc.abstractmethod
    def update(self, x: PyTree, queue: jax.Array, feedback: Feedback, weights: PyTree) -> tuple[PyTree, jax.Array]:
        """x_{t+1} and Q_{t+1}."""


class DriftPlusPenalty(Method):
    """Adaptive drift-plus-penalty (Kim and Lee, appendix A).

    x_{t+1} = argmin over x in X of (V_t df_t(x_t) + sum_i Q_ti dg_ti(x_t)) . x + alpha_t D(x, x_t)
    Q_{t+1,i} = [Q_ti + g_ti(x_t) + dg_ti(x_t) . (x_{t+1} - x_t)]_+
    """

    reads = ("penalty", "proximity")

    def update(self, x: PyTree, queue: jax.Array, feedback: Feedback, weights: PyTree) -> tuple[PyTree, jax.Array]:
        drift = tree.pullback(queue, feedback.constraint_jac)
        direction = jax.tree.map(lambda grad, pull: weights.penalty * grad + pull, feedback.loss_grad, drift)
        # Appendix C: S_t, and with it alpha_t, is 0 until the first feedback that is not; then x stays where it is.
        moving = weights.proximity != 0  # so that a NaN moves x, and is seen
        target = self.geometry.prox(x, direction, jnp.where(moving, weights.proximity, 1))
        x_next = tree.select(moving, target, x)
        change = tree.pushforward(feedback.constraint_jac, tree.subtract(x_next, x))
        return x_next, self.next_queue(queue, feedback.constraints, change, weights)

    # The same round in parts, for optimisers that take the step of x in their own way.

    def multipliers(self, queue: jax.Array, weights: PyTree) -> jax.Array:
        """Q_t / V_t: what the gradients of the constraints weigh beside that of the loss."""
        return jnp.where(weights.penalty == 0, 0, queue / jnp.where(weights.penalty == 0, 1, weights.penalty))

    def step_size(self, weights: PyTree) -> jax.Array:
        """V_t / (2 alpha_t): the length of the step along df_t + sum_i (Q_ti / V_t) dg_ti in Euclidean space."""
        moving = weights.proximity != 0
        return jnp.where(moving, weights.penalty / (2 * jnp.where(moving, weights.proximity, 1)), 0)

    def next_queue(self, queue: jax.Array, constraints: jax.Array, change: jax.Array, weights: PyTree) -> jax.Array:
        """Q_{t+1}, with change = dg_t . (x_{t+1} - x_t)."""
        return jnp.maximum(queue + constraints + change, 0)


class PrimalDual(Method, static=("aggregate",)):
    """Projected gradient descent on x, damped gradient ascent on the multipliers.

    x_{t+1} = Proj(x_t - eta_t (df_t(x_t) + sum_i lambda_ti dg_ti(x_t)))
    lambda_{t+1} = [lambda_t + mu_t (g_t(x_t) - theta_t lambda_t)]_+

    With aggregate = "max" there is one multiplier, on max_i g_ti.
    """

    reads = ("primal", "dual", "damping")

    aggregate: str = "vector"

    def num_multipliers(self, num_constraints: int) -> int:
        return 1 if self.aggregate == "max" else num_constraints

    def update(self, x: PyTree, queue: jax.Array, feedback: Feedback, weights: PyTree) -> tuple[PyTree, jax.Array]:
        constraints, jac = feedback.constraints, feedback.constraint_jac
        if self.aggregate == "max":
            worst = jnp.argmax(constraints)
            constraints, jac = constraints[worst][None], jax.tree.map(lambda leaf: leaf[worst][None], jac)
        direction = tree.add(feedback.loss_grad, tree.pullback(queue, jac))
        x_next = self.geometry.project(jax.tree.map(lambda a, b: a - weights.primal * b, x, direction))
        return x_next, jnp.maximum(queue + weights.dual * (constraints - weights.damping * queue), 0)


def zero_feedback(x: PyTree, num_constraints: int) -> Feedback:
    """The feedback of functions that are 0 everywhere: it has the shapes of every feedback at x."""
    kind = tree.dtype(x)
    rows = jax.tree.map(lambda leaf: jnp.zeros((num_constraints, *leaf.shape), leaf.dtype), x)
    return Feedback(jnp.zeros((), kind), jax.tree.map(jnp.zeros_like, x), jnp.zeros(num_constraints, kind), rows)


@compiled()
def _contains(geometry: Geometry, x: PyTree) -> Scalar:
    return geometry.contains(x)  # one program, where each of its operations would be one


def checked_point(geometry: Geometry, x0: PyTree) -> PyTree:
    """x0 as arrays, after checking that it is a point of the domain."""
    x0 = jax.tree.map(jnp.asarray, as_point("x0", x0))
    kinds = sorted({leaf.dtype.name for leaf in jax.tree.leaves(x0)})
    if len(kinds) > 1:
        raise TypeError(f"x0 must hold arrays of one precision, got {' and '.join(kinds)}")
    if jnp.finfo(kinds[0]).bits < 32:
        raise TypeError(
            f"x0 must be float32 or float64, got {kinds[0]}: sums over a run would lose their digits, or overflow; "
            "write x0.astype('float32'). Data may be in half precision"
        )
    geometry = tree.cast(geometry, tree.dtype(x0))
    check_shape(geometry, x0)
    check.finite("x0", x0)
    inside = _contains(geometry, x0)
    if not tree.is_traced(inside) and not inside:
        nearest = geometry.project(x0)
        raise ValueError(f"x0 lies outside {type(geometry).__name__}: got {x0}; the nearest point is {nearest}")
    return x0
