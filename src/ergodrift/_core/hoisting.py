"""What a function computes of its other arguments, without looking at x: found, so that it can be kept.

In `(X - X.mean(0)) @ x` the centred rows do not depend on x. Who evaluates the function at many x keeps them, and the
function reads them in the place of X.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from ergodrift._core.jaxprs import evaluated, needs, numbers, work_of
from ergodrift.types import PyTree

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

GAIN = 2  # how many times as much as reading it costs, computing must cost
LEAST = 256  # what must be spared: what computes with fewer numbers is no faster read
HARD = 4  # what a number costs that is no simple arithmetic

# Where something stands: what is kept is what they are a view of, which has fewer numbers or as many.
VIEWS = {"broadcast_in_dim", "copy", "expand_dims", "reshape", "slice", "squeeze", "transpose"}
# A vector instruction or two, done while something else is read.
SIMPLE = {"abs", "add", "and", "ceil", "convert_element_type", "div", "eq", "floor", "ge", "gt", "integer_pow", "le"}
SIMPLE |= {"lt", "max", "min", "mul", "ne", "neg", "not", "or", "round", "select_n", "sign", "square", "sub", "xor"}
PRODUCTS = {"conv_general_dilated", "dot_general"}  # what these read is written down first


def variables(jaxpr: Jaxpr) -> list[Var]:
    """All that a jaxpr computes, by number."""
    return [out for equation in jaxpr.eqns for out in equation.outvars]


def computed(closed: ClosedJaxpr, kept: Sequence[int], inputs: Sequence[PyTree]) -> list[jax.Array]:
    """What the variables of these numbers are."""
    from jax.extend import core

    found = variables(closed.jaxpr)
    only = closed.jaxpr.replace(outvars=[found[number] for number in kept])
    return evaluated(core.ClosedJaxpr(only, closed.consts), inputs)


def worth_keeping(jaxpr: Jaxpr, of_x: Sequence[bool], wanted: Sequence[np.ndarray], room: float) -> tuple[int, ...]:
    """The numbers of the variables to keep of a jaxpr that is evaluated for many x; `of_x` says which inputs x is.

    What is looked at is computed from the other inputs alone, and read by what depends on x (or an output), where this
    is `wanted` as in `jaxprs.needs`. It is kept if computing it costs `LEAST` or more, and `GAIN` times as much as it
    has numbers; what a product of matrices reads must only be more than a view. If not so, or where it has more bytes
    than are left of the room, what it is computed from is looked at in its place.

    >>> import jax, jax.numpy as jnp
    >>> centred = lambda x, A: (A - A.mean(0, keepdims=True)) @ x
    >>> jaxpr = jax.make_jaxpr(centred)(jnp.ones(3), jnp.ones((100, 3))).jaxpr
    >>> [variables(jaxpr)[number].aval.shape for number in worth_keeping(jaxpr, [True, False], [np.array(True)], 2**20)]
    [(100, 3)]
    """
    made, read = _frontier(jaxpr, of_x, wanted)
    kept: set[Var] = set()
    for var, equation in reversed(made.items()):  # who reads it comes later in a jaxpr, and has been looked at
        if var not in read:
            continue
        cost, view = _cost(var, made), equation.primitive.name in VIEWS
        pays = cost >= LEAST and (read[var] or cost >= GAIN * numbers(var))
        if pays and not view and _bytes(var) <= room:
            kept.add(var)
            room -= _bytes(var)
        else:
            for atom in _variables(equation.invars):
                read[atom] = read.get(atom, False) or (view and read[var])
    return tuple(number for number, var in enumerate(variables(jaxpr)) if var in kept)


def _frontier(
    jaxpr: Jaxpr, of_x: Sequence[bool], wanted: Sequence[np.ndarray]
) -> tuple[dict[Var, JaxprEqn], dict[Var, bool]]:
    """What is computed from the other inputs alone, each with its equation; and what of it is read by what depends on x
    or put out, each with whether a product reads it."""
    needed = needs(jaxpr, wanted)
    x = {var for var, own in zip(jaxpr.invars, of_x, strict=True) if own}
    others = {*jaxpr.invars} - x
    made: dict[Var, JaxprEqn] = {}
    read: dict[Var, bool] = dict.fromkeys(needed.intersection(_variables(jaxpr.outvars)), False)
    for equation in jaxpr.eqns:
        inputs = _variables(equation.invars)
        if not needed.intersection(equation.outvars):
            continue
        if x.intersection(inputs):
            x.update(equation.outvars)
            for atom in inputs:
                read[atom] = read.get(atom, False) or equation.primitive.name in PRODUCTS
        elif others.intersection(inputs):  # what depends on no input at all is a constant, which XLA takes care of
            others.update(equation.outvars)
            made |= dict.fromkeys(equation.outvars, equation)
    return made, read


def _variables(atoms: Sequence[Var | Literal]) -> list[Var]:
    return [atom for atom in atoms if not hasattr(atom, "val")]  # type: ignore[misc]  # a literal has a value


def _cost(var: Var, made: dict[Var, JaxprEqn]) -> int:
    """What it takes to compute a variable from the inputs: about how many numbers of simple arithmetic."""
    equations: dict[int, JaxprEqn] = {}
    waiting = [var]
    while waiting:
        equation = made.get(waiting.pop())
        if equation is not None and id(equation) not in equations:
            equations[id(equation)] = equation
            waiting += _variables(equation.invars)
    return sum(_cost_of(equation) for equation in equations.values())


def _cost_of(equation: JaxprEqn) -> int:
    name = equation.primitive.name
    if name in VIEWS:
        return 0
    return numbers(equation.outvars[0]) if name in SIMPLE else HARD * work_of(equation)


def _bytes(var: Var) -> float:
    """The bytes of an array of numbers; of what is none, as many as no room has."""
    kind: PyTree = getattr(var.aval, "dtype", None)
    return numbers(var) * kind.itemsize if isinstance(kind, np.dtype) else np.inf
