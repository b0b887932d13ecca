"""Checks of what a caller passed in: each names the argument, its value and what to do.

Traced values pass: under `vmap` or `jit` they cannot be looked at.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator
from typing import SupportsIndex, cast

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core.tree import is_traced
from ergodrift.types import PyTree

NUMPY = (np.ndarray, np.generic)
FAR_BELOW = 1e38  # no entry of a vector of this norm is too large for float32
FEW = 64
MANY = 10_000  # entries from which libraries of linear algebra wake their threads up, which then wait for each other


def number(
    name: str,
    value: PyTree,
    *,
    above: float = -np.inf,
    at_least: float = -np.inf,
    below: float = np.inf,
    at_most: float = np.inf,
) -> PyTree:
    """`value` as a finite Python float inside the given range; a traced or array value stays what it is."""
    if is_traced(value):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be a number, got {value!r}")
    if array.ndim:
        raise TypeError(f"{name} must be one number, got an array of shape {array.shape}; sweep it with jax.vmap")
    limits = [(">", above), (">=", at_least), ("<", below), ("<=", at_most)]
    if not (np.isfinite(array) and above < array < below and at_least <= array <= at_most):
        wanted = " and ".join(f"{sign} {bound:g}" for sign, bound in limits if np.isfinite(bound))
        if np.isinf(array) or not wanted:
            wanted = f"finite and {wanted}" if wanted else "finite"
        raise ValueError(f"{name} must be {wanted}, got {value!r}")
    return value if isinstance(value, jax.Array) else float(array)


def integer(name: str, value: object, *, at_least: int, at_most: int = 2**31 - 1) -> int:
    """`value` as a Python integer inside the given range."""
    try:
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        count = operator.index(cast("SupportsIndex", whole))
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {value!r}") from None
    if not at_least <= count <= at_most:
        raise ValueError(f"{name} must be between {at_least} and {at_most}, got {count}")
    return count


def choice(name: str, value: str, options: tuple[str, ...]) -> str:
    """`value`, which must be one of the options."""
    if value not in options:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, options))}, got {value!r}")
    return value


def untraced(what: str, *trees: PyTree) -> None:
    """Raise where there are tracers: `what` looks at numbers."""
    if is_traced(*(tree for tree in trees if not isinstance(tree, Iterator))):  # which JAX does not look into
        raise ValueError(f"{what} looks at numbers, which vmap and jit do not show: call it outside of them")


def some(names: Iterable[object]) -> str:
    """The first eight names of many, for a message."""
    listed = [str(name) for name in names]
    return ", ".join(listed[:8]) + (", ..." if len(listed) > 8 else "")


def finite(name: str, tree: PyTree, remedy: str = "clean or drop such entries before the run") -> None:
    """No NaN and no infinity in any floating leaf of `tree`."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if is_traced(leaf):
            continue
        array = np.asarray(leaf)
        if jnp.issubdtype(array.dtype, np.inexact) and not np.isfinite(array).all():
            where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise ValueError(f"{name}{jax.tree_util.keystr(path)} holds {array[where]} at index {where}; {remedy}")


def fits(name: str, tree: PyTree) -> None:
    """No number of `tree` is too large for the precision that JAX has now: in 32-bit mode it would wrap in silence."""
    wide = jax.config.jax_enable_x64  # type: ignore[attr-defined]  # JAX adds it
    if wide or not _may_not_fit(jax.tree.leaves(tree)):
        return  # names, below, take their time
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        kind = _narrowed(leaf)
        if kind is None or kind.kind not in "iuf":
            continue
        limits = jnp.finfo(kind) if kind.kind == "f" else jnp.iinfo(kind)
        least, most = leaf.min(), leaf.max()
        if least < limits.min or most > limits.max:
            worst = least if least < limits.min else most
            raise ValueError(
                f"{name}{jax.tree_util.keystr(path)} holds {worst}, too large for {kind}, the {leaf.dtype} of JAX's "
                "32-bit mode: subtract an offset or take a larger unit (seconds since the start, not milliseconds "
                "since 1970), pass whole numbers as floats if seven digits are enough, or turn on 64-bit numbers by "
                'jax.config.update("jax_enable_x64", True)'
            )


def _narrowed(leaf: object) -> np.dtype | None:
    """The type that JAX makes of a NumPy array, where that is another one; what is JAX's own already stays."""
    if not isinstance(leaf, NUMPY) or not leaf.size:
        return None
    kind = jax.dtypes.canonicalize_dtype(leaf.dtype)
    return None if kind == leaf.dtype else kind


def _may_not_fit(leaves: list[PyTree]) -> bool:
    """Whether a closer look is needed; this one is taken for every sample that comes in from Python."""
    for leaf in leaves:
        if isinstance(leaf, NUMPY) and leaf.itemsize > 4:
            kind, flat = leaf.dtype.kind, leaf.ravel()
            if kind == "f" and not norm(flat) < FAR_BELOW:
                return True
            if kind in "iu" and flat.size and not (flat.max() < 2**31 and flat.min() >= -(2**31)):
                return True
    return False


def norm(flat: np.ndarray) -> float:
    """A norm of real numbers, Euclidean where they are not many; not finite where one of them is not, or is too large
    to be squared. Few are added up in Python: a library of linear algebra takes a microsecond to be called."""
    if flat.size <= FEW:
        return math.hypot(*flat.tolist())
    return math.sqrt(flat.dot(flat)) if flat.size < MANY else max(float(flat.max()), -float(flat.min()))
