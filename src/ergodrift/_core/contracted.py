"""Products of a sample's matrix with a vector, as XLA's CPU compiler makes vector instructions of them.

A sum over products of entries, such as `jnp.sum(X * x, axis=1)` or `jnp.mean(z[:, None] * X, axis=0)`, is a loop over
single numbers to it, and a product of matrix and vector is not. But a product that something is added to (an intercept,
or the slope of a penalty on x) becomes one loop with that sum, for which the matrix is copied in every round; a product
that is subtracted does not.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core.jaxprs import alone, evaluated

if TYPE_CHECKING:
    from jax.extend.core import Jaxpr, JaxprEqn

LEAST = 256  # entries of a matrix; smaller ones are left as they are
KINDS = {np.dtype(np.float32), np.dtype(np.float64)}

Factor: TypeAlias = "tuple[jax.Array, tuple[int, ...]]"  # and along which axes of the product its own axes lie


class Contracted:
    """Replaces such equations in one evaluation of a jaxpr (`evaluated`), by others that are equal to rounding.

    >>> from ergodrift._core.jaxprs import shared
    >>> slow = lambda A, x: jnp.sum(A * x[None], axis=1)
    >>> arguments = jnp.ones((100, 3)), jnp.ones(3)
    >>> [("dot_general" in str(jax.make_jaxpr(f)(*arguments))) for f in (slow, shared(slow, Contracted))]
    [False, True]
    """

    def __init__(self) -> None:
        self.made: dict[int, tuple[jax.Array, list[Factor]]] = {}  # by address; what is kept here keeps its own

    def __call__(self, equation: JaxprEqn, jaxpr: Jaxpr) -> Callable[..., list[jax.Array]] | None:
        name, atoms = equation.primitive.name, (*equation.invars, *equation.outvars)
        if any(getattr(atom.aval, "dtype", None) not in KINDS for atom in atoms):
            return None
        if max(math.prod(np.shape(atom.aval)) for atom in atoms) < LEAST:  # type: ignore[arg-type]
            return None
        if name == "dot_general" and _has_vector(equation):
            return functools.partial(_subtracted, alone(equation, jaxpr))
        keep = {"mul": self._product, "broadcast_in_dim": self._spread}.get(name)
        if keep is not None:
            return lambda *inputs: [keep(equation, alone(equation, jaxpr)(*inputs)[0], *inputs)]
        if name == "reduce_sum":
            return lambda operand: self._summed(equation, operand) or alone(equation, jaxpr)(operand)
        return None

    def _factors(self, value: jax.Array, shape: tuple[int, ...]) -> list[Factor]:
        """Those of an operand of a product of such a shape, which may be longer along some axes."""
        known = self.made.get(id(value), (value, [(value, tuple(range(jnp.ndim(value))))]))[1]
        found = []
        for factor, axes in known:
            own = tuple(axis for at, axis in enumerate(axes) if factor.shape[at] == shape[axis])
            found.append((jnp.reshape(factor, [shape[axis] for axis in own]) if own != axes else factor, own))
        return found

    def _product(self, equation: JaxprEqn, found: jax.Array, *operands: jax.Array) -> jax.Array:
        self.made[id(found)] = found, [factor for one in operands for factor in self._factors(one, found.shape)]
        return found

    def _spread(self, equation: JaxprEqn, found: jax.Array, operand: jax.Array) -> jax.Array:
        """An array along some axes of a larger one."""
        places, shape = equation.params["broadcast_dimensions"], jnp.shape(operand)
        own = [at for at, place in enumerate(places) if shape[at] == found.shape[place]]
        if len(own) < found.ndim:
            small = jnp.reshape(operand, [shape[at] for at in own])
            self.made[id(found)] = found, [(small, tuple(places[at] for at in own))]
        return found

    def _summed(self, equation: JaxprEqn, operand: jax.Array) -> list[jax.Array] | None:
        """A sum of products by products of matrices; None where that brings nothing."""
        gone = set(equation.params["axes"])
        kept = [axis for axis in range(operand.ndim) if axis not in gone]
        inside: dict[tuple[int, ...], jax.Array] = {}  # factors along the same axes, multiplied
        outside: list[Factor] = []  # those that are the same for all terms of a sum
        for value, axes in self._factors(operand, operand.shape):
            if gone.isdisjoint(axes):
                outside.append((value, axes))
            else:
                inside[axes] = inside[axes] * value if axes in inside else value
        counts = [sum(axis in axes for axes in inside) for axis in range(operand.ndim)]
        if max(counts, default=0) < 2 or any(counts[axis] > 1 for axis in kept) or not all(counts[a] for a in gone):
            return None
        rest = [axis for axis in kept if counts[axis]]
        term = ["".join(chr(ord("a") + axis) for axis in axes) for axes in (*inside, rest)]
        product = functools.partial(jnp.einsum, f"{','.join(term[:-1])}->{term[-1]}", precision="highest")
        values = list(inside.values())
        (found,) = evaluated(jax.make_jaxpr(product)(*values), values, Contracted())
        for value, axes in [(found, rest), *outside]:
            wide = jnp.expand_dims(value, [at for at, axis in enumerate(kept) if axis not in axes])
            found = wide if value is found else found * wide
        return [jnp.broadcast_to(found, [operand.shape[axis] for axis in kept])]


def _has_vector(equation: JaxprEqn) -> bool:
    """Whether a product is one of a matrix with a vector, as XLA counts."""
    contracted, batched = equation.params["dimension_numbers"]
    shapes: Sequence[tuple[int, ...]] = [atom.aval.shape for atom in equation.invars]  # type: ignore[union-attr]
    free = [
        math.prod(size for axis, size in enumerate(shape) if axis not in axes)
        for shape, axes in zip(shapes, contracted, strict=True)
    ]
    return not batched[0] and min(free) == 1 < max(free)


def _subtracted(product: Callable[..., list[jax.Array]], left: jax.Array, right: jax.Array) -> list[jax.Array]:
    """The same to the last bit: -(A @ -x). So is the transposed product in its derivative."""
    (found,) = product(-left, right) if np.size(left) < np.size(right) else product(left, -right)
    return [-found]
