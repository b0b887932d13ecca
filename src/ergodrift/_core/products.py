"""Products of a large matrix with a vector, for one seed that has a GPU to itself.

They take as long as the matrix takes to be read. XLA hands them to a library of matrix products, which wants the matrix
in a place of its own: what was looked up by an index is copied first, and the vector's own kernel reads at half the
speed. As a sum over the products of entries each is one pass over the matrix where it lies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

import jax
import jax.numpy as jnp

from ergodrift._core.jaxprs import evaluated
from ergodrift.types import PyTree

if TYPE_CHECKING:
    from jax.extend.core import Jaxpr, JaxprEqn

F = TypeVar("F", bound=Callable[..., PyTree])

LARGE = 2**20  # entries of a matrix that does not stay in a cache


def by_sums(function: F) -> F:
    """The same function of pytrees of arrays, its products of large matrices with vectors written as sums.

    >>> double = by_sums(lambda a, x: a @ x)
    >>> double(2 * jnp.eye(3), jnp.ones(3))
    Array([2., 2., 2.], dtype=float64)
    """

    def same(*arguments: PyTree) -> PyTree:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        found = evaluated(closed, jax.tree.leaves(arguments), _as_sum)
        return jax.tree.unflatten(jax.tree.structure(shape), found)

    return cast("F", same)


def _as_sum(equation: JaxprEqn, jaxpr: Jaxpr) -> Callable[..., list[jax.Array]] | None:
    """A product with a vector as a sum; None of all else."""
    if equation.primitive is not jax.lax.dot_general_p:
        return None
    contracted, batched = equation.params["dimension_numbers"]
    shapes = [atom.aval.shape for atom in equation.invars]  # type: ignore[union-attr]
    free = [len(shape) - len(axes) for shape, axes in zip(shapes, contracted, strict=True)]
    if batched[0] or min(free) or max(map(math.prod, shapes)) < LARGE:
        return None

    def summed(left: jax.Array, right: jax.Array) -> list[jax.Array]:
        (a, over), (b, along) = ((left, contracted[0]), (right, contracted[1]))[:: 1 if free[0] else -1]
        vector = jnp.transpose(b, [axis for _, axis in sorted(zip(over, along, strict=True))])
        wide = jnp.expand_dims(vector, [axis for axis in range(a.ndim) if axis not in over])
        return [jnp.sum(a * wide, axis=tuple(over)).astype(equation.outvars[0].aval.dtype)]  # type: ignore[union-attr]

    return summed
