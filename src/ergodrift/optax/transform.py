"""The transformation: any optax optimiser, with multipliers beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import optax

from ergodrift._core import check, tree
from ergodrift.geometry import Geometry
from ergodrift.methods.algorithms import Algorithm
from ergodrift.methods.estimator import SingleSample
from ergodrift.methods.method import DriftPlusPenalty
from ergodrift.methods.rates import Rates
from ergodrift.methods.scalefree import ScaledDrift, SharedDrift
from ergodrift.methods.schedule import FeedbackSchedule, PresetSchedule
from ergodrift.optax.constraints import flat, seen
from ergodrift.optax.products import norms, transposed
from ergodrift.types import Feedback, PyTree, Scalar, Sizes, State

X = TypeVar("X")
Rule: TypeAlias = DriftPlusPenalty | ScaledDrift

# Pure numbers; docs/howto/networks.md has what others do.
DUAL_STRIDE = 0.1  # a third of `sdpp`'s: a network is judged by its last point, not by an average
SEARCHES = (optax.ScaleByZoomLinesearchState, optax.ScaleByBacktrackingLinesearchState)  # of lines
EVERY = 64  # norms are looked at in rounds 1, 2, 4, ..., 64, 128, 192, ...


class DriftPlusPenaltyState(NamedTuple):
    """All that the next step needs, a plain pytree.

    Attributes:
        t: steps taken.
        queue: Q_t, shape (n,), in float32 or better whatever the parameters are in.
        multipliers: (n,) what the gradients of the constraints weigh beside that of the loss in the next step; for
            algorithms whose weights depend on that step itself (ADPP), those of the last.
        schedule: what the algorithm carries.
        sizes: (n + 1,) the norms of the gradients of the loss and the constraints, where they were last looked at.
        inner: the state of the optimiser within.
    """

    t: jax.Array
    queue: jax.Array
    multipliers: jax.Array
    schedule: PyTree
    sizes: jax.Array
    inner: optax.OptState


class WholeSpace(Geometry):
    """All of R^d, where optimisers of networks move."""

    def project(self, x: X) -> X:
        return x

    def diameter(self, x: PyTree) -> Scalar:
        return jnp.asarray(jnp.inf, tree.dtype(x))


def drift_plus_penalty(
    inner: optax.GradientTransformation | optax.MultiSteps, num_constraints: int, algorithm: Algorithm | None = None
) -> optax.GradientTransformationExtraArgs:
    """An optax optimiser that keeps constraints g_i <= 0: multipliers are found on the way, with no step to choose.

    Each step hands `inner` the gradient df_t + sum_i m_ti dg_ti, and then moves the queue behind the multipliers m by
    the constraints that it saw. Unless an algorithm is named, m_t = lambda_t with

        lambda_{t+1,i} = [lambda_ti + (k / m_t) Lambda_ti / sqrt(t E_ti) g_ti(x_t)]_+

    the multipliers of `sdpp` (docs/laboratory/scalefree.md): E_ti is the mean of g_i^2, Lambda_ti the largest average
    of multiplier i so far or |df| / |dg_i|, and m_t how many constraints are violated in this round, 1 at
    least: they share one stride. No unit of the loss or of a constraint matters. With `ed.dpp()`,
    `ed.edpp(...)` or `ed.adpp(diameter=...)` it is the paper's queue, m_t = Q_t / V_t and

        Q_{t+1,i} = [Q_ti + g_ti(x_t) + dg_ti . (x_{t+1} - x_t)]_+

    with the displacement that `inner` made; that is why this is the outermost wrapper, around chains, masks and
    accumulation of gradients alike. With `sgd()` for `inner` steps are the algorithm's own, and a run the same as that
    of `ed.run`.

    `update` must be told about the constraints, in one of two ways: by what `value_and_constraints` returns, which
    forms no Jacobian, `update(grads, state, params, **extra)`; or exactly, `update(loss_grads, state, params,
    constraints=g, jacobian=J)`, with g of shape (n,) or any nest of so many numbers and J of the structure of the
    parameters with a leading axis n. ADPP and SDPP weigh a step by the norms of its own gradients and need the second.

    A NaN in a constraint makes the gradient NaN, as a NaN in the loss does: `optax.apply_if_finite(...)` around all of
    it leaves such steps out, the queue's too.

    Args:
        inner: any optax optimiser, with the learning rate and schedule that you would use without constraints.
        num_constraints: n.
        algorithm: `ed.dpp()`, `ed.edpp(tau_mix)`, `ed.adpp(diameter=...)` or `ed.sdpp(distance=...)`, for the queues of
            that name.

    >>> import optax, jax.numpy as jnp
    >>> from ergodrift.optax import value_and_constraints
    >>> optimizer = drift_plus_penalty(optax.sgd(0.1), num_constraints=1)
    >>> evaluate = value_and_constraints(lambda x: (jnp.sum((x - 2) ** 2), x - 1))  # as near to 2 as x <= 1 may be
    >>> @jax.jit
    ... def step(x, state):
    ...     loss, grads, extra = evaluate(x, state)
    ...     updates, state = optimizer.update(grads, state, x, **extra)
    ...     return optax.apply_updates(x, updates), state
    >>> x = jnp.zeros(1)
    >>> state = optimizer.init(x)
    >>> for _ in range(400):
    ...     x, state = step(x, state)
    >>> print(x.round(3), state.multipliers.round(3))
    [1.] [2.]
    """
    count = check.integer("num_constraints", num_constraints, at_least=1)
    if isinstance(inner, optax.MultiSteps):
        inner = inner.gradient_transformation()
    if not isinstance(inner, optax.GradientTransformation):
        raise TypeError(f"inner must be an optax optimiser such as optax.adam(1e-3), got {inner!r}")
    inner = optax.with_extra_args_support(inner)
    method = _method(algorithm)

    def init(params: PyTree) -> DriftPlusPenaltyState:
        kind = _kind(params)
        queue, multipliers, sizes = (jnp.zeros(size, kind) for size in (count, count, count + 1))
        schedule = method.schedule.init(method.geometry, tree.cast(params, kind), count)
        # Copies: who donates the state to a compiled step may not donate an array twice.
        schedule = jax.tree.map(jnp.copy, schedule)
        within = inner.init(params)
        if any(_is_search(node) for node in jax.tree.leaves(within, is_leaf=_is_search)):
            raise ValueError(
                "inner looks along a line for a smaller loss, and what is to become smaller here is the loss with the "
                "constraints, at prices that move: take optax.lbfgs(learning_rate, linesearch=None), Adam or SGD"
            )
        return DriftPlusPenaltyState(jnp.zeros((), jnp.int32), queue, multipliers, schedule, sizes, within)

    def update(
        updates: PyTree,
        state: Any,  # a DriftPlusPenaltyState, which optax's types do not know
        params: PyTree = None,
        *,
        constraints: PyTree = None,
        jacobian: PyTree = None,
        vjp: Any = None,
        **extra: Any,
    ) -> tuple[PyTree, DriftPlusPenaltyState]:
        kind = state.queue.dtype
        if constraints is None or (jacobian is None) == (vjp is None):
            raise TypeError(
                "drift_plus_penalty needs the constraints of every step: update(grads, state, params, **extra), with "
                "what value_and_constraints(...) returns, or update(loss_grads, state, params, constraints=g, "
                "jacobian=J)"
            )
        if params is None:
            raise TypeError("drift_plus_penalty needs the parameters: update(grads, state, params, ...)")
        values = flat(constraints, kind)
        if values.shape != (count,):
            raise ValueError(f"constraints have {values.size} entries, but num_constraints={count}")
        rule = tree.cast(method, kind)
        now = State(state.t, tree.cast(params, kind), state.queue, state.schedule, None)
        sizes = state.sizes
        if vjp is None:
            _check_rows(jacobian, updates, count)
            grads, jac = tree.cast((updates, jacobian), kind)
            feedback = Feedback(_loss(rule.schedule, extra, kind), grads, values, jac)
            schedule, weights = rule.weigh(now, feedback, rule.sizes(feedback))
            updates = _lagrangian_grad(updates, jac, seen(rule.multipliers(state.queue, weights), values))

            def pushforward(step: PyTree) -> jax.Array:
                return tree.pushforward(jac, tree.cast(step, kind))
        else:
            along = transposed(vjp, count + 1, kind)
            sizes, schedule, weights = _weigh_without(rule, now, values, sizes, along)

            def pushforward(step: PyTree) -> jax.Array:
                return along(step)[1:]

        if type(rule.schedule) is not Rates:
            extra = {**extra, "step_size": rule.step_size(weights)}
        updates, inner_state = inner.update(updates, state.inner, params, **extra)
        change: PyTree = pushforward(updates) if isinstance(rule, DriftPlusPenalty) else None
        queue = rule.next_queue(state.queue, values, change, weights)
        t = state.t + 1
        ahead = rule.schedule.at((t + 1).astype(kind)) if isinstance(rule.schedule, PresetSchedule) else weights
        multipliers = rule.multipliers(queue, ahead) if isinstance(rule, DriftPlusPenalty) else queue
        return updates, DriftPlusPenaltyState(t, queue, multipliers, schedule, sizes, inner_state)

    return optax.GradientTransformationExtraArgs(init, update)


def sgd() -> optax.GradientTransformationExtraArgs:
    """Plain descent by the steps of the algorithm around it.

    x_{t+1} = x_t - V_t / (2 alpha_t) (df_t + sum_i (Q_ti / V_t) dg_ti)

    So `drift_plus_penalty(sgd(), n, ed.edpp(10.0))` is EDPP-t, and there is no learning rate. The default of
    `drift_plus_penalty` has no steps of its own: there take `optax.sgd(learning_rate)`.
    """

    def update(
        updates: PyTree, state: optax.OptState, params: PyTree = None, *, step_size: Any = None, **extra: Any
    ) -> tuple[PyTree, optax.OptState]:
        if step_size is None:
            raise TypeError(
                "sgd() takes the steps of a named algorithm, drift_plus_penalty(sgd(), n, ed.edpp(10.0)); without one, "
                "take optax.sgd(learning_rate)"
            )
        return jax.tree.map(lambda leaf: -step_size.astype(leaf.dtype) * leaf, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def _method(algorithm: Algorithm | None) -> Rule:
    """The update rule in all of space."""
    if algorithm is None:
        algorithm = Algorithm("default", SharedDrift, Rates(dual_stride=DUAL_STRIDE))
    if not isinstance(algorithm, Algorithm):
        raise TypeError(f"algorithm must be one such as ed.edpp(10.0), or None; got {algorithm!r}")
    method = algorithm.rule(WholeSpace(), algorithm.schedule, algorithm.estimator)
    if not isinstance(method, DriftPlusPenalty | ScaledDrift) or not isinstance(method.estimator, SingleSample):
        raise ValueError(
            f"{algorithm.name} has no queue that another optimiser could step with, or gathers samples into rounds: "
            "take ed.dpp(), ed.edpp(tau_mix), ed.adpp(diameter=...), ed.sdpp(distance=...), or no algorithm"
        )
    return method


def _weigh_without(
    rule: Rule, now: State, values: jax.Array, sizes: jax.Array, along: Callable[[PyTree], jax.Array]
) -> tuple[jax.Array, PyTree, PyTree]:
    """Sizes, schedule and weights of the round where there is no Jacobian, only its products `along` a direction."""
    t, schedule = now.t + 1, rule.schedule
    if isinstance(schedule, PresetSchedule):
        return sizes, now.schedule, schedule.at(t.astype(values.dtype))
    if type(schedule) is not Rates:
        raise TypeError(
            f"{type(schedule).__name__} weighs a step by the norms of its own gradients: pass constraints= and "
            "jacobian= to update, or take ed.dpp(), ed.edpp(tau_mix), or no algorithm"
        )
    look = (t % EVERY == 0) | (t & (t - 1) == 0)
    sizes = jax.lax.cond(look, lambda: norms(along, now.x, t), lambda: sizes)
    squares = jnp.square(sizes)
    pressure = schedule.press(now.schedule, t, now.queue, squares[0], squares[1:], values)
    return sizes, *schedule.weights(pressure, t, Sizes(sizes[0], sizes[1:], jnp.abs(values)))


def _lagrangian_grad(grads: PyTree, jac: PyTree, multipliers: jax.Array) -> PyTree:
    """df + sum_i m_i dg_i, in the precision of df."""
    return jax.tree.map(lambda a, b: a + b.astype(a.dtype), grads, tree.pullback(multipliers, jac))


def _kind(params: PyTree) -> Any:
    """The precision of the queue: float32, or better where the parameters are."""
    leaves = jax.tree.leaves(params)
    if not leaves or not all(jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating) for leaf in leaves):
        raise TypeError(f"params must hold floating-point arrays, got {jax.tree.map(jnp.shape, params)}")
    kind = tree.dtype(params)
    return kind if jnp.finfo(kind).bits >= 32 else jnp.dtype("float32")


def _loss(schedule: object, extra: dict[str, Any], kind: Any) -> jax.Array:
    """The value of the loss, for the schedule that looks at it."""
    if "value" not in extra and isinstance(schedule, FeedbackSchedule):
        raise TypeError(f"{type(schedule).__name__} looks at the loss: pass update(..., value=loss)")
    return jnp.asarray(extra.get("value", 0.0), kind)


def _check_rows(jacobian: PyTree, grads: PyTree, count: int) -> None:
    found = jax.tree.map(jnp.shape, jacobian)
    wanted = jax.tree.map(lambda leaf: (count, *leaf.shape), grads)
    if found != wanted:
        raise ValueError(f"jacobian must have the structure of the gradients and a leading axis: {wanted}, got {found}")


def _is_search(node: object) -> bool:
    return isinstance(node, SEARCHES)
