"""Drift-plus-penalty around any optax optimiser, for people who train networks under constraints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp

from ergodrift._core import check, tree
from ergodrift._core.extras import absent
from ergodrift.geometry import Geometry
from ergodrift.methods.algorithms import Algorithm
from ergodrift.methods.estimator import SingleSample
from ergodrift.methods.method import DriftPlusPenalty
from ergodrift.methods.rates import Rates
from ergodrift.methods.scalefree import ScaledDrift, SharedDrift
from ergodrift.methods.schedule import FeedbackSchedule, PresetSchedule
from ergodrift.types import Feedback, PyTree, Scalar, Sizes, State

try:
    import optax
except ModuleNotFoundError as error:
    raise absent("ergodrift.optax", "optax", error) from error

X = TypeVar("X")
Rule: TypeAlias = DriftPlusPenalty | ScaledDrift

# Pure numbers; docs/howto/networks.md has what others do.
DUAL_STRIDE = 0.1  # a third of `sdpp`'s: a network is judged by its last point, not by an average
EVERY, DIRECTIONS = 64, 8  # norms are looked at in rounds 1, 2, 4, ..., 64, 128, 192, ..., along so many directions


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
        return DriftPlusPenaltyState(jnp.zeros((), jnp.int32), queue, multipliers, schedule, sizes, inner.init(params))

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
        values = _flat(constraints, kind)
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
            along = _transposed(vjp, count + 1, kind)
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


def value_and_constraints(
    loss_and_constraints: Callable[..., tuple[Any, ...]], has_aux: bool = False
) -> Callable[..., tuple[Any, PyTree, dict[str, Any]]]:
    """A function that gives the loss, the gradient that `inner` is to be handed, and what `drift_plus_penalty` needs.

    One backward pass, with the current multipliers on the constraints: df + sum_i m_i dg_i. No Jacobian is formed,
    neither here nor later. What the queue needs of it are products with a direction, which take a forward pass for all
    constraints together: with the displacement of the step (named algorithms), or with random signs v, since
    E[(dg_i . v)^2] = |dg_i|^2 (default; in one step of 64).

    Args:
        loss_and_constraints: a function of the parameters, and of whatever else it is called with, that returns the
            loss, one number, and the constraints (<= 0), n numbers in an array, a tuple or a dict.
        has_aux: whether it returns a third thing, which is passed on.

    Returns:
        evaluate(params, state, *args) -> loss, grads, extra; or (loss, aux), grads, extra. `state` is that of the
        optimiser, or of a chain that holds it.

    >>> import optax, jax.numpy as jnp
    >>> optimizer = drift_plus_penalty(optax.adam(0.01), num_constraints=2)
    >>> evaluate = value_and_constraints(lambda x, y: (jnp.sum((x - y) ** 2), {"sum": jnp.sum(x) - 1, "first": -x[0]}))
    >>> x = jnp.zeros(3)
    >>> loss, grads, extra = evaluate(x, optimizer.init(x), jnp.ones(3))
    >>> print(loss, grads, extra["constraints"]["sum"])
    3.0 [-2. -2. -2.] -1.0
    """

    def evaluate(params: PyTree, state: PyTree, *args: Any, **kwargs: Any) -> tuple[Any, PyTree, dict[str, Any]]:
        multipliers = _found(state).multipliers
        kind = multipliers.dtype

        def values_of(params: PyTree) -> tuple[jax.Array, tuple[Any, ...]]:
            returned = loss_and_constraints(params, *args, **kwargs)
            if not isinstance(returned, tuple) or len(returned) != 2 + has_aux:
                wanted = "(loss, constraints, aux)" if has_aux else "(loss, constraints)"
                raise TypeError(f"loss_and_constraints must return {wanted}, got {jax.tree.structure(returned)}")
            if jnp.shape(returned[0]) != ():
                raise ValueError(f"the loss must be one number, got shape {jnp.shape(returned[0])}: take its mean")
            loss, constraints = jnp.asarray(returned[0], kind), _flat(returned[1], kind)
            if constraints.shape != multipliers.shape:
                raise ValueError(
                    f"loss_and_constraints returns {constraints.size} constraints, but num_constraints="
                    f"{multipliers.size}"
                )
            return jnp.concatenate([loss[None], constraints]), returned

        values, vjp, (loss, constraints, *aux) = jax.vjp(values_of, params, has_aux=True)
        one = jnp.ones(1, kind)
        (grads,) = vjp(jnp.concatenate([one, seen(multipliers, values[1:])]))
        return (loss, *aux) if has_aux else loss, grads, {"constraints": constraints, "vjp": vjp}

    return evaluate


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


def equality(values: PyTree, tolerance: Scalar = 0.0) -> jax.Array:
    """h = 0 as pairs of constraints, h - tolerance <= 0 and -h - tolerance <= 0; (n,) or any nest -> (2 n,).

    >>> import jax.numpy as jnp
    >>> print(equality(jnp.array([0.5, -1.0])))
    [ 0.5 -1.  -0.5  1. ]
    """
    flat = _flat(values, tree.dtype(values))
    return jnp.concatenate([flat, -flat]) - jnp.asarray(tolerance, flat.dtype)


def seen(multipliers: jax.Array, constraints: jax.Array) -> jax.Array:
    """The multipliers, or NaN where a constraint is not finite: then so is the gradient, and nobody steps unknowing."""
    return multipliers + 0 * jnp.sum(constraints)


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
    sizes = jax.lax.cond(look, lambda: _norms(along, now.x, t), lambda: sizes)
    squares = jnp.square(sizes)
    pressure = schedule.press(now.schedule, t, now.queue, squares[0], squares[1:], values)
    return sizes, *schedule.weights(pressure, t, Sizes(sizes[0], sizes[1:], jnp.abs(values)))


def _norms(along: Callable[[PyTree], jax.Array], x: PyTree, t: jax.Array) -> jax.Array:
    """|df| and |dg_i|, (n + 1,), as root mean squares of their products with random signs."""
    leaves, structure = jax.tree.flatten(x)
    key = jax.random.fold_in(jax.random.key(0), t)
    # 32 bits of a word are the signs of as many directions: random words are what takes time.
    words = [jax.random.bits(jax.random.fold_in(key, i), leaf.shape, "uint32") for i, leaf in enumerate(leaves)]

    def slopes(j: jax.Array) -> jax.Array:
        signs = [1 - 2 * ((word >> j) & 1).astype(leaf.dtype) for word, leaf in zip(words, leaves, strict=True)]
        # Where a mesh is explicit, shards are part of a type: those of the parameters.
        signs = [sign * jnp.ones_like(leaf) for sign, leaf in zip(signs, leaves, strict=True)]
        return along(jax.tree.unflatten(structure, signs))

    # One after the other: side by side they would take the memory of eight networks.
    return jnp.sqrt(jnp.mean(jnp.square(jax.lax.map(slopes, jnp.arange(DIRECTIONS, dtype="uint32"))), axis=0))


def _transposed(vjp: Any, size: int, kind: Any) -> Callable[[PyTree], jax.Array]:
    """The products of the gradients of loss and constraints with a direction, (n + 1,): `vjp`, the other way."""
    values = jax.ShapeDtypeStruct((size,), kind)
    (like,) = jax.eval_shape(vjp, values)
    transpose = jax.linear_transpose(vjp, values)

    def fitting(step: PyTree, like: PyTree) -> PyTree:
        if isinstance(step, optax.MaskedNode):
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
        return step.astype(like.dtype)

    leaves, structure = jax.tree.flatten(like)

    def along(step: PyTree) -> jax.Array:
        if len(jax.tree.leaves(step)) == len(leaves):  # flax's nnx hands optimisers bare arrays, and models states
            step = jax.tree.unflatten(structure, jax.tree.leaves(step))
        step = jax.tree.map(fitting, step, like, is_leaf=lambda node: isinstance(node, optax.MaskedNode))
        return transpose((step,))[0]

    return along


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


def _flat(constraints: PyTree, kind: Any) -> jax.Array:
    """The numbers of an array or of a nest of them, (n,), a dict's by the order of its names."""
    leaves = [jnp.ravel(jnp.asarray(leaf)).astype(kind) for leaf in jax.tree.leaves(constraints)]
    return jnp.concatenate(leaves) if leaves else jnp.zeros(0, kind)


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


def _found(state: PyTree) -> DriftPlusPenaltyState:
    """The state of `drift_plus_penalty` in that of an optimiser."""

    def is_ours(node: object) -> bool:
        return isinstance(node, DriftPlusPenaltyState)

    found = [node for node in jax.tree.leaves(state, is_leaf=is_ours) if is_ours(node)]
    if len(found) != 1:
        raise ValueError(
            f"state must hold one state of drift_plus_penalty, found {len(found)}: call evaluate(params, state, ...) "
            "with what optimizer.init(params) or optimizer.update(...) returned"
        )
    return found[0]
