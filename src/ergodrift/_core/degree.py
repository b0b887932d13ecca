"""Of what degree a function is in its first argument: constant, affine, quadratic, or none that can be shown.

Degrees are propagated through the equations that JAX has traced, entry by entry where arrays are put together. They are
bounds that hold for all arguments: what is not known to be a polynomial has degree `MORE`. No numbers are looked at.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import jax.numpy as jnp
import numpy as np

from ergodrift.types import PyTree

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

MORE = 3  # of a cubic, and of what is no polynomial
BY_ENTRY = 4096  # entries up to which an array has a degree for each; a larger one has the largest for all

Degree: TypeAlias = np.ndarray  # for each entry; of shape () where all are alike

# Linear in their operand, and of the largest degree in it.
LINEAR = {"copy", "copy_p", "cumsum", "optimization_barrier", "pad", "reduce_window_sum", "rev", "tile", "transpose"}
# The same, but entries are followed.
MOVED = {"broadcast_in_dim", "expand_dims", "reduce_sum", "reshape", "slice", "squeeze"}
SUMS = {"add", "sub", "add_any"}
PRODUCTS = {"dot_general", "conv_general_dilated"}
# What is read or written depends on indices, which must be constant: those that follow so many other operands.
INDEXED = {"gather": (1, 2), "dynamic_slice": (1, None), "dynamic_update_slice": (2, None)}
INDEXED |= {"scatter": (1, 2), "scatter-add": (1, 2), "scatter_add": (1, 2)}
CALLS = {"jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2"}


def degrees(closed: ClosedJaxpr, inputs: Sequence[int]) -> list[np.ndarray]:
    """The degree of every entry of every output, given those of the inputs; at most `MORE`.

    >>> from ergodrift._core.jaxprs import opened
    >>> closed = opened(lambda x, a: jnp.stack([a @ x, a @ x**2, jnp.abs(x[0])]), jnp.ones(3), jnp.ones(3))
    >>> degrees(closed, [1, 0])
    [array([1, 2, 3])]
    """
    found = _through(closed.jaxpr, [np.array(degree) for degree in inputs])
    return [np.broadcast_to(d, _shape(atom)) for d, atom in zip(found, closed.jaxpr.outvars, strict=True)]


def _through(jaxpr: Jaxpr, inputs: Sequence[Degree]) -> list[Degree]:
    known: dict[Var, Degree] = dict.fromkeys(jaxpr.constvars, _constant())
    known |= zip(jaxpr.invars, inputs, strict=True)

    def read(atom: Var | Literal) -> Degree:
        return _constant() if hasattr(atom, "val") else known[atom]  # type: ignore[index]  # a literal has a value

    for equation in jaxpr.eqns:
        found = _of_equation(equation, [read(atom) for atom in equation.invars])
        for variable, degree in zip(equation.outvars, found, strict=True):
            small = degree.ndim == 0 or degree.size <= BY_ENTRY
            known[variable] = np.minimum(degree if small else degree.max(), MORE)
    return [read(atom) for atom in jaxpr.outvars]


def _constant() -> Degree:
    return np.array(0)


def _largest(given: Sequence[Degree]) -> int:
    return max((int(degree.max(initial=0)) for degree in given), default=0)


def _of_equation(equation: JaxprEqn, given: list[Degree]) -> list[Degree]:
    """The degrees of an equation's outputs."""
    name, params, largest = equation.primitive.name, equation.params, _largest(given)
    if largest == 0:
        return [_constant() for _ in equation.outvars]
    if name in CALLS:
        inner: PyTree = params.get("jaxpr", params.get("call_jaxpr"))
        return _through(getattr(inner, "jaxpr", inner), given)
    if name == "scan" and (counts := _counts(params)) is not None:
        return _of_scan(params["jaxpr"].jaxpr, *counts, given)
    if name == "cond" and not given[0].any():  # its branches differ, but by nothing that depends on x
        branches = [_through(branch.jaxpr, given[1:]) for branch in params["branches"]]
        return [np.array(_largest(found)) for found in zip(*branches, strict=True)]
    one = _of_simple(equation, name, given, largest)
    return [np.array(MORE) if one is None else np.asarray(one) for _ in equation.outvars]


def _of_simple(equation: JaxprEqn, name: str, given: list[Degree], largest: int) -> Degree | int | None:
    """The degree of an equation with one output; None where it is not known."""
    params, (first, *others) = equation.params, given
    if name in SUMS:
        return np.maximum(first, others[0])
    if name == "neg" or (name == "div" and not others[0].any()):
        return first
    if name == "mul":
        return first + others[0]
    if name in PRODUCTS:
        return sum(_largest([degree]) for degree in given)
    if name == "square":
        return 2 * first
    if name == "integer_pow":
        return params["y"] * first if params["y"] >= 0 else None
    if name == "convert_element_type":
        return first if _keeps_digits(equation) else None
    if name in ("concatenate", "stack"):
        return _joined(equation, given)
    if name in MOVED:
        return first if first.ndim == 0 else _moved(equation, first)
    if name in LINEAR:
        return largest
    if name == "select_n":
        return None if first.any() else functools.reduce(np.maximum, others)
    if name in INDEXED:
        begin, end = INDEXED[name]
        return None if _largest(given[begin:end]) else largest
    return None


def _keeps_digits(equation: JaxprEqn) -> bool:
    """Whether a conversion rounds nothing."""
    old, new = equation.invars[0].aval.dtype, equation.params["new_dtype"]  # type: ignore[union-attr]
    if not all(jnp.issubdtype(kind, jnp.floating) for kind in (old, new)):
        return False
    narrow, wide = jnp.finfo(old), jnp.finfo(new)
    return wide.nmant >= narrow.nmant and wide.maxexp >= narrow.maxexp


def _joined(equation: JaxprEqn, given: list[Degree]) -> Degree:
    if math.prod(_shape(equation.outvars[0])) > BY_ENTRY:
        return np.array(_largest(given))
    parts = [np.broadcast_to(degree, _shape(atom)) for degree, atom in zip(given, equation.invars, strict=True)]
    if equation.primitive.name == "stack":
        return np.stack(parts, axis=equation.params["axis"])
    return np.concatenate(parts, axis=equation.params["dimension"])


def _moved(equation: JaxprEqn, degree: Degree) -> Degree:
    """The degrees of entries that stand elsewhere in the output."""
    name, params, shape = equation.primitive.name, equation.params, _shape(equation.outvars[0])
    if name == "reduce_sum":
        return degree.max(axis=tuple(params["axes"]), initial=0)
    if name == "slice":
        steps = params["strides"] or [1] * degree.ndim
        bounds = zip(params["start_indices"], params["limit_indices"], steps, strict=True)
        return degree[tuple(slice(*bound) for bound in bounds)]
    if name == "broadcast_in_dim":
        places = dict(zip(params["broadcast_dimensions"], degree.shape, strict=True))
        return np.broadcast_to(degree.reshape([places.get(axis, 1) for axis in range(len(shape))]), shape)
    return degree.reshape(shape)


def _counts(params: dict[str, PyTree]) -> tuple[int, int] | None:
    """How many values a loop is given that stay, and how many it carries; None where this JAX does not say so."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    try:
        fixed, carried, _ = params["ft_in"].unpack()  # since JAX 0.12
        return len(fixed), len(carried)
    except (KeyError, AttributeError, TypeError, ValueError):
        return None


def _of_scan(body: Jaxpr, fixed: int, carried: int, given: list[Degree]) -> list[Degree]:
    """What a loop carries has, from turn to turn, a degree that grows until it stays; so it does after `MORE` turns."""
    uniform = [np.array(_largest([degree])) for degree in given]
    while True:
        found = [np.array(_largest([degree])) for degree in _through(body, uniform)]
        before = uniform[fixed : fixed + carried]
        after = [np.maximum(old, new) for old, new in zip(before, found[:carried], strict=True)]
        if after == before:
            return after + found[carried:]
        uniform[fixed : fixed + carried] = after


def _shape(atom: Var | Literal) -> tuple[int, ...]:
    return atom.aval.shape  # type: ignore[union-attr]  # of an array
