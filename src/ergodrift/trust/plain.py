"""Pytrees as arrays and JSON: what a file may hold without pickle."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def leaves(name: str, tree: Any) -> dict[str, np.ndarray]:
    """The leaves of a pytree by names of a file."""
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    # bfloat16 and its like have no name in such files; in float64 they are the same numbers.
    return {f"{name}_{i}": leaf.astype(float) if leaf.dtype.kind == "V" else leaf for i, leaf in enumerate(arrays)}


def structure(tree: Any) -> Any:
    """Lists, tuples and dicts as JSON, leaves as null; what is of another class has none and reads "other"."""
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [structure(part) for part in tree]}
    if type(tree) is dict and all(type(key) is str for key in tree):
        return {"dict": {key: structure(tree[key]) for key in sorted(tree)}}
    return None if jax.tree.structure(tree).num_nodes == 1 and jax.tree.leaves(tree) else "other"


def restored(shape: Any, name: str, stored: dict[str, np.ndarray], like: Any) -> Any:
    """A pytree from its structure and leaves."""
    count = iter(range(len(stored)))

    def build(part: Any) -> Any:
        if part is None:
            return stored[f"{name}_{next(count)}"]
        if part == "other":
            raise ValueError(f"{name} is of a class of its own: pass it again")
        ((kind, parts),) = part.items()
        if kind == "dict":
            return {key: build(inner) for key, inner in parts.items()}
        return {"list": list, "tuple": tuple}[kind](build(inner) for inner in parts)

    if like is not None:
        leaves, treedef = jax.tree.flatten(like)
        return treedef.unflatten([stored[f"{name}_{i}"] for i in range(len(leaves))])
    return build(shape)


def same(one: Any, other: Any) -> bool:
    """Whether two pytrees of one structure hold the same numbers."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)
