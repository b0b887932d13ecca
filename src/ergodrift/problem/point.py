"""The point that a caller passed, as arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core.arrays import listed
from ergodrift.types import PyTree


def as_point(name: str, x: PyTree) -> PyTree:
    """`x` with lists of numbers as arrays, as they are in data; whatever holds no floating-point numbers is refused.

    >>> as_point("x0", {"w": [0.0, 1.0], "b": 2.0})
    {'b': 2.0, 'w': array([0., 1.])}
    """
    x = listed(name, x)
    leaves = jax.tree.leaves(x)
    if not leaves or not all(jnp.issubdtype(_kind(leaf), jnp.floating) for leaf in leaves):
        raise TypeError(
            f"{name} must hold floating-point arrays, got {x!r}; write np.zeros(3), or {name}.astype(float)"
        )
    return x


def _kind(leaf: PyTree) -> np.dtype:
    own = getattr(leaf, "dtype", None)
    return own if isinstance(own, np.dtype) else np.asarray(leaf).dtype
