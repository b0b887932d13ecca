"""Constraints as the one vector that multipliers know."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ergodrift._core import tree
from ergodrift.types import PyTree, Scalar


def flat(constraints: PyTree, kind: Any) -> jax.Array:
    """The numbers of an array or of a nest of them, (n,), a dict's by the order of its names."""
    leaves = [jnp.ravel(jnp.asarray(leaf)).astype(kind) for leaf in jax.tree.leaves(constraints)]
    return jnp.concatenate(leaves) if leaves else jnp.zeros(0, kind)


def equality(values: PyTree, tolerance: Scalar = 0.0) -> jax.Array:
    """h = 0 as pairs of constraints, h - tolerance <= 0 and -h - tolerance <= 0; (n,) or any nest -> (2 n,).

    >>> import jax.numpy as jnp
    >>> print(equality(jnp.array([0.5, -1.0])))
    [ 0.5 -1.  -0.5  1. ]
    """
    row = flat(values, tree.dtype(values))
    return jnp.concatenate([row, -row]) - jnp.asarray(tolerance, row.dtype)


def seen(multipliers: jax.Array, constraints: jax.Array) -> jax.Array:
    """The multipliers, or NaN where a constraint is not finite: then so is the gradient, and nobody steps unknowing."""
    return multipliers + 0 * jnp.sum(constraints)
