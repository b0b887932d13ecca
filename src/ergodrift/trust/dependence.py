"""Which entries of a function's value can depend on the sample: told from its jaxpr, without evaluating it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from ergodrift._core import tree
from ergodrift.types import PyTree

# Primitives that move entries about and change none: they move what is known of entries in the same way.
MOVES = {"broadcast_in_dim", "concatenate", "copy", "reshape", "rev", "slice", "squeeze", "stack", "transpose"}
# Primitives that work entry by entry; what is in neither list mixes all entries, as far as is told here.
EACH = {
    "abs", "add", "add_any", "and", "ceil", "clamp", "convert_element_type", "cos", "div", "eq", "erf", "exp", "exp2",
    "expm1", "floor", "ge", "gt", "integer_pow", "le", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne",
    "neg", "not", "or", "pow", "round", "rsqrt", "select_n", "sign", "sin", "sqrt", "square", "stop_gradient", "sub",
    "tan", "tanh", "xor",
}  # fmt: skip
CALLS = {"pjit", "jit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat2", "checkpoint"}


def depends(function: Callable[[PyTree, PyTree], jax.Array], x: PyTree, xi: PyTree) -> np.ndarray:
    """For each entry of function(x, xi) whether it can depend on xi: False is a proof that it does not.

    >>> depends(lambda x, xi: jnp.stack([x[0] - 1.0, xi * x[1]]), np.zeros(2), 3.0)
    array([False,  True])
    """
    x = jax.tree.map(jnp.asarray, x)
    closed = jax.make_jaxpr(function)(x, tree.cast(xi, tree.dtype(x)))
    marks = [np.zeros(np.shape(leaf), bool) for leaf in jax.tree.leaves(x)]
    marks += [np.ones(np.shape(leaf), bool) for leaf in jax.tree.leaves(xi)]
    return _marked(closed.jaxpr, marks)[0]


def _marked(jaxpr: Jaxpr, marks: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The marks of a jaxpr's outputs, from those of its inputs; constants have none."""
    known = dict(zip(jaxpr.invars, marks, strict=True))

    def of(atom: PyTree) -> np.ndarray:
        described: PyTree = atom.aval
        return np.zeros(described.shape, bool) if isinstance(atom, Literal) or atom not in known else known[atom]

    for equation in jaxpr.eqns:
        outputs: PyTree = equation.outvars
        inputs, shapes = [of(atom) for atom in equation.invars], [out.aval.shape for out in outputs]
        name, inner = equation.primitive.name, _inner(equation.params)
        if name in CALLS and inner is not None and len(inner.invars) == len(inputs):
            found = _marked(inner, inputs)
        elif name in MOVES:
            moved = equation.primitive.bind(*map(jnp.asarray, inputs), **equation.params)
            found = [np.asarray(moved)]
        elif name in EACH:
            found = [np.logical_or.reduce(np.broadcast_arrays(*inputs, np.zeros(shape, bool))) for shape in shapes]
        else:
            found = [np.full(shape, any(mark.any() for mark in inputs)) for shape in shapes]
        known.update(zip(equation.outvars, found, strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def _inner(params: dict[str, PyTree]) -> Jaxpr | None:
    """The jaxpr that an equation calls, where there is one."""
    for value in params.values():
        if isinstance(value, ClosedJaxpr):
            return value.jaxpr
        if isinstance(value, Jaxpr):
            return value
    return None
