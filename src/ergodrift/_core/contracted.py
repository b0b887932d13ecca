"""Products of a sample's matrix with a vector, as XLA's CPU compiler makes vector instructions of them.

A sum over products of entries, such as `jnp.sum(X * x, axis=1)` or `jnp.mean(z[:, None] * X, axis=0)`, is a loop over
single numbers to it, and a product of matrix and vector is not. But a product that something is added to (an intercept,
or the slope of a penalty on x) becomes one loop with that sum, for which the matrix is copied in every round; a product
that is subtracted does not. Nor do two that are added up, where each has a power of two of its own to be multiplied by.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ergodrift._core.columns import Columns
from ergodrift._core.jaxprs import alone, evaluated, numbers

if TYPE_CHECKING:
    from jax.extend.core import Jaxpr, JaxprEqn

LEAST = 256  # entries of a matrix; smaller ones are left as they are
POWERS = 8  # of two, by which products are told apart
KINDS = {np.dtype(np.float32), np.dtype(np.float64)}

Factor: TypeAlias = "tuple[jax.Array, tuple[int, ...]]"  # and along which axes of the product its own axes lie


class Contracted:
    """Replaces such equations in one evaluation of a jaxpr (`evaluated`), by others that are equal to rounding.

    Args:
        apart: whether the first product with a vector, the second, ... have powers of two of their own. Then the same
            product in two evaluations may no longer be the same to XLA.

    >>> from ergodrift._core.jaxprs import shared
    >>> slow = lambda A, x: jnp.sum(A * x[None], axis=1)
    >>> arguments = jnp.ones((100, 3)), jnp.ones(3)
    >>> [("dot_general" in str(jax.make_jaxpr(f)(*arguments))) for f in (slow, shared(slow, Contracted))]
    [False, True]
    """

    def __init__(self, apart: bool = False) -> None:
        self.made: dict[int, tuple[jax.Array, list[Factor]]] = {}  # by address; what is kept here keeps its own
        self.columns = Columns(lambda *both: self._with_vector(lambda left, right: [left @ right], *both)[0])
        self.apart, self.products = apart, 0

    def __call__(self, equation: JaxprEqn, jaxpr: Jaxpr) -> Callable[..., list[jax.Array]] | None:
        name, atoms = equation.primitive.name, (*equation.invars, *equation.outvars)
        if any(getattr(atom.aval, "dtype", None) not in KINDS for atom in atoms):
            return None
        if max(map(numbers, atoms)) < LEAST:
            return None
        if name == "dot_general" and _has_vector(equation):
            return functools.partial(self._with_vector, alone(equation, jaxpr))
        keep = {"mul": self._product, "broadcast_in_dim": self._spread}.get(name) or self._of_columns(equation)
        if keep is not None:
            return lambda *inputs: [keep(equation, alone(equation, jaxpr)(*inputs)[0], *inputs)]
        if name == "reduce_sum":
            return lambda operand: self._summed(equation, operand) or alone(equation, jaxpr)(operand)
        return None

    def _with_vector(
        self, product: Callable[..., list[jax.Array]], left: jax.Array, right: jax.Array
    ) -> list[jax.Array]:
        """The same to the last bit: -(A @ -x), or -(A @ -2x) / 2. So is the transposed product in its derivative."""
        factor = 2 ** (self.products % POWERS if self.apart else 0)
        self.products += 1

        def times(value: jax.Array, by: float) -> jax.Array:
            return -value if by == 1 else value * np.asarray(-by, value.dtype)

        smaller = np.size(left) < np.size(right)
        (found,) = product(times(left, factor), right) if smaller else product(left, times(right, factor))
        return [times(found, 1 / factor)]

    def _factors(self, value: jax.Array, shape: tuple[int, ...]) -> list[Factor]:
        """Those of an operand of a product of such a shape, which may be longer along some axes."""
        known = self.made.get(id(value), (value, [(value, tuple(range(jnp.ndim(value))))]))[1]
        found = []
        for factor, axes in known:
            own = tuple(axis for at, axis in enumerate(axes) if factor.shape[at] == shape[axis])
            found.append((jnp.reshape(factor, [shape[axis] for axis in own]) if own != axes else factor, own))
        return found

    def _product(self, equation: JaxprEqn, found: jax.Array, *operands: jax.Array) -> jax.Array:
        factors = [self._factors(one, found.shape) for one in operands]
        self.made[id(found)] = found, [factor for parts in factors for factor in parts]
        for ((number, axes), *others), vector in zip(factors, reversed(operands), strict=True):
            if jnp.ndim(vector) == 1 and not axes and not others and isinstance(number, Tracer):
                self.columns.multiplied(found, vector, number)
        return found

    def _of_columns(self, equation: JaxprEqn) -> Callable[..., jax.Array] | None:
        name = equation.primitive.name
        if name in ("add", "sub") and len(getattr(equation.outvars[0].aval, "shape", ())) == 1:
            return lambda _, found, *inputs: self.columns.added(found, *inputs, sign=-1 if name == "sub" else 1)
        if name == "slice":
            return lambda _, found, operand: self.columns.sliced(found, operand, equation.params["start_indices"])
        return (lambda _, found, operand: self.columns.squeezed(found, operand)) if name == "squeeze" else None

    def _spread(self, equation: JaxprEqn, found: jax.Array, operand: jax.Array) -> jax.Array:
        """An array along some axes of a larger one."""
        places, shape = equation.params["broadcast_dimensions"], jnp.shape(operand)
        own = [at for at, place in enumerate(places) if shape[at] == found.shape[place]]
        if len(own) < found.ndim:
            small = jnp.reshape(operand, [shape[at] for at in own]) if shape else operand
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
        if len(inside) + len(outside) < 2 or not gone.issubset(axis for axes in inside for axis in axes):
            return None
        parts = [self._part(group, gone) for group in _linked(inside, gone)]
        if any(part is None for part in parts):
            return None
        wide = [
            jnp.expand_dims(value, [at for at, axis in enumerate(kept) if axis not in axes])
            for value, axes in [*(part for part in parts if part is not None), *outside]
        ]
        found = functools.reduce(jnp.multiply, wide)
        return [jnp.broadcast_to(found, [operand.shape[axis] for axis in kept])]

    def _part(self, factors: dict[tuple[int, ...], jax.Array], gone: set[int]) -> Factor | None:
        """The sum of a product by products of matrices, with the axes that are left; None where these cannot do it."""
        counts = Counter(axis for axes in factors for axis in axes)
        rest = tuple(axis for axis in sorted(counts) if axis not in gone)
        if len(factors) == 1:
            ((axes, value),) = factors.items()
            return jnp.sum(value, [at for at, axis in enumerate(axes) if axis in gone]), rest
        if any(counts[axis] > 1 for axis in rest):
            return None
        term = ["".join(chr(ord("a") + axis) for axis in axes) for axes in (*factors, rest)]
        product = functools.partial(jnp.einsum, f"{','.join(term[:-1])}->{term[-1]}", precision="highest")
        values = list(factors.values())
        (found,) = evaluated(jax.make_jaxpr(product)(*values), values, self)
        return found, rest


def _linked(factors: dict[tuple[int, ...], jax.Array], gone: set[int]) -> list[dict[tuple[int, ...], jax.Array]]:
    """Factors in groups that are summed along axes of their own: the sum of a product is the product of their sums."""
    groups: list[dict[tuple[int, ...], jax.Array]] = []
    for axes, value in factors.items():
        merged = {axes: value}
        apart = list[dict[tuple[int, ...], jax.Array]]()
        for group in groups:
            if any(gone.intersection(axes, own) for own in group):
                merged |= group
            else:
                apart.append(group)
        groups = [*apart, merged]
    return groups


def _has_vector(equation: JaxprEqn) -> bool:
    """Whether a product is one of a matrix with a vector, as XLA counts."""
    contracted, batched = equation.params["dimension_numbers"]
    shapes: Sequence[tuple[int, ...]] = [atom.aval.shape for atom in equation.invars]  # type: ignore[union-attr]
    free = [
        math.prod(size for axis, size in enumerate(shape) if axis not in axes)
        for shape, axes in zip(shapes, contracted, strict=True)
    ]
    return not batched[0] and min(free) == 1 < max(free)
