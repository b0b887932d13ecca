"""What JAX has traced, equation by equation: evaluated anew, with some equations replaced or left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift.types import PyTree

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

F = TypeVar("F", bound=Callable[..., PyTree])
Memo: TypeAlias = dict[tuple[object, ...], tuple[list[jax.Array], Sequence[PyTree]]]
Replacement: TypeAlias = "Callable[[JaxprEqn, Jaxpr], Callable[..., list[jax.Array]] | None]"


def as_is(equation: JaxprEqn, jaxpr: Jaxpr) -> None:
    """No replacement."""


def evaluated(
    closed: ClosedJaxpr, values: Sequence[PyTree], replaced: Replacement = as_is, memo: Memo | None = None
) -> list[jax.Array]:
    """The outputs of a jaxpr, its calls of compiled functions opened, and other functions for some of its equations.

    With a memo, what was computed before from the same values is not computed again.
    """
    from jax.extend import core  # imported here, as below: it takes its time

    jaxpr = closed.jaxpr
    known = dict(zip(jaxpr.constvars + jaxpr.invars, [*closed.consts, *values], strict=True))

    def read(atom: Var | Literal) -> jax.Array:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for equation in jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        key = None if memo is None else _key(equation, inputs)
        if memo is not None and key in memo:
            outputs = memo[key][0]
        elif (ours := replaced(equation, jaxpr)) is not None:
            outputs = ours(*inputs)
        elif is_call(equation):
            outputs = evaluated(equation.params["jaxpr"], inputs, replaced, memo)
        else:
            outputs = alone(equation, jaxpr)(*inputs)
        if memo is not None and key is not None:
            memo[key] = outputs, inputs  # which must live as long as they are known by their addresses
        known |= zip(equation.outvars, outputs, strict=True)
    return [read(atom) for atom in jaxpr.outvars]


def _key(equation: JaxprEqn, inputs: Sequence[PyTree]) -> tuple[object, ...] | None:
    """What tells two equations apart; None where they are never the same."""
    if equation.effects:
        return None
    told = [repr(value) if isinstance(value, np.generic) else id(value) for value in inputs]  # -0.0 is not 0.0
    kinds = [str(atom.aval) for atom in equation.invars]
    key = equation.primitive, *sorted(equation.params.items(), key=lambda item: item[0]), *told, *kinds
    try:
        hash(key)
    except TypeError:
        return None
    return key


def shared(function: F, replacement: Callable[[], Replacement] = lambda: as_is) -> F:
    """The same function of pytrees of arrays, in which what is written twice is computed once.

    XLA does so too, but only after derivatives are taken: to a product that is written twice belong two derivatives,
    whose sum XLA's CPU backend takes in a pass that is no vector instruction. `replacement` makes what replaces
    equations of one evaluation.
    """

    def same(*arguments: PyTree) -> PyTree:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        found = evaluated(closed, jax.tree.leaves(arguments), replacement(), memo={})
        return jax.tree.unflatten(jax.tree.structure(shape), found)

    return cast("F", same)


def opened(function: Callable[..., PyTree], *arguments: PyTree) -> ClosedJaxpr:
    """A function of pytrees of arrays (or of their shapes) as one list of equations, with no calls among them."""
    closed = jax.make_jaxpr(function)(*arguments)
    if not any(is_call(equation) for equation in closed.jaxpr.eqns):
        return closed
    return jax.make_jaxpr(lambda *leaves: evaluated(closed, leaves))(*jax.tree.leaves(arguments))


def alone(equation: JaxprEqn, jaxpr: Jaxpr) -> Callable[..., list[jax.Array]]:
    """One equation of a jaxpr as a function: JAX itself knows how to evaluate each kind."""
    from jax.extend import core

    places: list[Var | Literal] = [core.Var(atom.aval) for atom in equation.invars]
    only = {"invars": places, "outvars": equation.outvars, "eqns": [equation.replace(invars=places)]}
    return core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr.replace(constvars=[], **only), []))


def is_call(equation: JaxprEqn) -> bool:
    """Whether an equation stands for a function under `jax.jit`."""
    return equation.primitive.name in ("jit", "pjit")


def restricted(closed: ClosedJaxpr, wanted: np.ndarray) -> Callable[..., jax.Array]:
    """A jaxpr with one output, as a function of which only the entries where `wanted` are right.

    What the others alone are made of is not computed: they are put together from zeros. Entries are followed through
    joined arrays and elementwise operations; beyond, what an operation needs it needs whole.
    """
    needed = _needed(closed.jaxpr, wanted)

    def left_out(equation: JaxprEqn, jaxpr: Jaxpr) -> Callable[..., list[jax.Array]] | None:
        if jaxpr is not closed.jaxpr or needed.intersection(equation.outvars):
            return None
        return lambda *inputs: [jnp.zeros(out.aval.shape, out.aval.dtype) for out in equation.outvars]  # type: ignore[union-attr]

    return lambda *values: evaluated(closed, values, left_out)[0]


ELEMENTWISE = {"add", "sub", "mul", "div", "neg", "convert_element_type", "select_n"}


def _needed(jaxpr: Jaxpr, wanted: np.ndarray) -> set[Var]:
    """The variables that these entries of the output depend on."""
    from jax.extend import core

    wants: dict[Var, np.ndarray] = {}

    def want(atom: Var | Literal, entries: np.ndarray) -> None:
        if not isinstance(atom, core.Literal) and entries.any():
            wants[atom] = wants.get(atom, np.array(False)) | entries

    want(jaxpr.outvars[0], wanted)
    for equation in reversed(jaxpr.eqns):
        if not wants.keys() & set(equation.outvars):
            continue
        name, entries = equation.primitive.name, wants.get(equation.outvars[0], np.array(True))
        shapes = [np.shape(atom.aval) for atom in equation.invars]  # type: ignore[arg-type]
        parts = [np.array(True)] * len(shapes)
        if entries.ndim and name == "stack":
            parts = list(np.moveaxis(entries, equation.params["axis"], 0))
        elif entries.ndim and name == "concatenate":
            axis = equation.params["dimension"]
            parts = np.split(entries, np.cumsum([shape[axis] for shape in shapes])[:-1], axis=axis)
        elif entries.ndim and name in ELEMENTWISE:
            parts = [entries if shape == entries.shape else np.array(True) for shape in shapes]
        for atom, part in zip(equation.invars, parts, strict=True):
            want(atom, part)
    return set(wants)


PICKED = {"slice", "gather", "dynamic_slice"}  # what they leave is not touched


def work(jaxpr: Jaxpr, wanted: np.ndarray | None = None) -> int:
    """About how many numbers a jaxpr computes with: for each equation its largest array, for a product its terms.

    Where only some entries of its output are wanted, with what these need.
    """
    needed = None if wanted is None else _needed(jaxpr, wanted)
    counted = (one for one in jaxpr.eqns if needed is None or needed.intersection(one.outvars))
    return sum(_work(equation) for equation in counted)


def _work(equation: JaxprEqn) -> int:
    params = equation.params
    inner = [found for name in ("jaxpr", "call_jaxpr", "body_jaxpr") if (found := params.get(name)) is not None]
    inner += params.get("branches", ())[:1]
    if inner:
        return params.get("length", 1) * sum(work(getattr(closed, "jaxpr", closed)) for closed in inner)
    sizes = [math.prod(np.shape(atom.aval)) for atom in (*equation.invars, *equation.outvars)]  # type: ignore[arg-type]
    if equation.primitive.name == "dot_general":
        contracted = params["dimension_numbers"][0][0]
        return sizes[-1] * math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)  # type: ignore[union-attr]
    return sizes[-1] if equation.primitive.name in PICKED else max(sizes)
