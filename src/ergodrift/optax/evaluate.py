"""Loss, gradient and constraints in one backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ergodrift.optax.constraints import flat, seen
from ergodrift.optax.transform import DriftPlusPenaltyState
from ergodrift.types import PyTree


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
    >>> from ergodrift.optax import drift_plus_penalty
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
            loss, constraints = jnp.asarray(returned[0], kind), flat(returned[1], kind)
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
