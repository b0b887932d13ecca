"""What JAX has traced, equation by equation: evaluated anew, with some equations replaced or left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
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

CHECKPOINTS = {"checkpoint", "remat", "remat2"}
FEW = 2**21  # numbers that a function under `jax.checkpoint` computes in all, up to which it is opened


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
        elif (inside := called(equation)) is not None:
            outputs = evaluated(inside, inputs, replaced, memo)
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
    """A function of pytrees of arrays (or of their shapes) as one list of equations, with no calls among them, and none
    that is there twice. Shapes and types of the arguments alone decide what stands where in it."""
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype), arguments)
    closed = jax.make_jaxpr(function)(*shapes)
    return jax.make_jaxpr(lambda *leaves: evaluated(closed, leaves, memo={}))(*jax.tree.leaves(shapes))


def alone(equation: JaxprEqn, jaxpr: Jaxpr) -> Callable[..., list[jax.Array]]:
    """One equation of a jaxpr as a function: JAX itself knows how to evaluate each kind."""
    from jax.extend import core

    places: list[Var | Literal] = [core.Var(atom.aval) for atom in equation.invars]
    only = {"invars": places, "outvars": equation.outvars, "eqns": [equation.replace(invars=places)]}
    return core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr.replace(constvars=[], **only), []))


def called(equation: JaxprEqn) -> ClosedJaxpr | None:
    """What an equation stands for that calls a function under `jax.jit`, or under `jax.checkpoint` where that saves
    little memory: it changes no number, but what its derivative keeps, and keeps XLA from seeing the whole."""
    from jax.extend import core

    name, inside = equation.primitive.name, cast("PyTree", equation.params.get("jaxpr"))
    if name in ("jit", "pjit"):
        return inside
    if name not in CHECKPOINTS:
        return None
    closed = inside if isinstance(inside, core.ClosedJaxpr) else core.ClosedJaxpr(inside, [])
    kept = sum(numbers(out) for one in closed.jaxpr.eqns for out in one.outvars)
    return closed if kept <= FEW else None


def numbers(atom: Var | Literal) -> int:
    """How many entries an array has."""
    return math.prod(getattr(atom.aval, "shape", ()))


def restricted(
    closed: ClosedJaxpr, wanted: Sequence[np.ndarray], given: dict[Var, jax.Array] | None = None
) -> Callable[..., list[jax.Array]]:
    """A jaxpr as a function of whose outputs only the entries where `wanted` are right; some variables may be given.

    What the others alone are made of is not computed: they are put together from zeros. Entries are followed through
    joined arrays and elementwise operations; beyond, what an operation needs it needs whole.
    """
    known, needed = given or {}, needs(closed.jaxpr, wanted, given or ())

    def left_out(equation: JaxprEqn, jaxpr: Jaxpr) -> Callable[..., list[jax.Array]] | None:
        if jaxpr is not closed.jaxpr or needed.intersection(equation.outvars):
            return None
        shapes: list[PyTree] = [out.aval for out in equation.outvars]
        if any(not isinstance(getattr(aval, "dtype", None), np.dtype) for aval in shapes):
            return None  # keys of random numbers: they are not made of zeros, and XLA leaves them out as well
        return lambda *inputs: [
            known[out] if out in known else jnp.zeros(aval.shape, aval.dtype)
            for out, aval in zip(equation.outvars, shapes, strict=True)
        ]

    return lambda *values: evaluated(closed, values, left_out)


ELEMENTWISE = {"add", "sub", "mul", "div", "neg", "convert_element_type", "select_n"}


def needs(jaxpr: Jaxpr, wanted: Sequence[np.ndarray], given: Collection[Var] = ()) -> set[Var]:
    """The variables that these entries of the outputs are computed from, where some are given."""
    from jax.extend import core

    wants: dict[Var, np.ndarray] = {}

    def want(atom: Var | Literal, entries: np.ndarray) -> None:
        if not isinstance(atom, core.Literal) and atom not in given and entries.any():
            wants[atom] = wants.get(atom, np.array(False)) | entries

    for atom, entries in zip(jaxpr.outvars, wanted, strict=True):
        want(atom, entries)
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


def work(jaxpr: Jaxpr, wanted: Sequence[np.ndarray] | None = None) -> int:
    """About how many numbers a jaxpr computes with: for each equation its largest array, for a product its terms.

    Where only some entries of its output are wanted, with what these need.
    """
    needed = None if wanted is None else needs(jaxpr, wanted)
    counted = (one for one in jaxpr.eqns if needed is None or needed.intersection(one.outvars))
    return sum(work_of(equation) for equation in counted)


def work_of(equation: JaxprEqn) -> int:
    """The same of one equation."""
    params = equation.params
    inner = [found for name in ("jaxpr", "call_jaxpr", "body_jaxpr") if (found := params.get(name)) is not None]
    inner += params.get("branches", ())[:1]
    if inner:
        return params.get("length", 1) * sum(work(getattr(closed, "jaxpr", closed)) for closed in inner)
    sizes = [numbers(atom) for atom in (*equation.invars, *equation.outvars)]
    if equation.primitive.name == "dot_general":
        contracted = params["dimension_numbers"][0][0]
        return sizes[-1] * math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)  # type: ignore[union-attr]
    return sizes[-1] if equation.primitive.name in PICKED else max(sizes)
