"""Small arrays side by side: a call of a compiled function costs by the number of arrays that go in and come out."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core.compiled import Structure
from ergodrift.types import Array, PyTree

SMALL = 4096  # entries of an array that is worth copying to save an argument

Packed: TypeAlias = Sequence[Array]


@dataclasses.dataclass(frozen=True)
class Place:
    """Where an array is kept: in which packed array, and from which entry on; None where it is the whole of that."""

    array: int
    at: int | None
    shape: tuple[int, ...]
    is_key: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """How a pytree is packed: its small arrays one behind the other, those of one type in one array; large ones as they
    are, and keys by their numbers. Layouts of equal pytrees are the same object, so that they are quick to compare."""

    structure: Structure
    places: tuple[Place, ...]
    sizes: tuple[int, ...]  # of the packed arrays; 0 for one that is a leaf as it is

    @staticmethod
    def of(tree: PyTree) -> Layout:
        """For arrays like these, or for their shapes."""
        leaves, structure = jax.tree.flatten(tree)
        kinds = tuple(
            (leaf.shape, np.dtype(np.uint32) if _is_key(leaf) else leaf.dtype, _is_key(leaf)) for leaf in leaves
        )
        return _layout(structure, kinds)

    def pack(self, tree: PyTree) -> Packed:
        """Inside a compiled function."""
        leaves = [_numbers(leaf) for leaf in jax.tree.leaves(tree)]
        parts: list[list[jax.Array]] = [[] for _ in self.sizes]
        for place, leaf in zip(self.places, leaves, strict=True):
            parts[place.array].append(leaf if place.at is None else leaf.reshape(-1))
        return [jnp.concatenate(part) if size else part[0] for part, size in zip(parts, self.sizes, strict=True)]

    def unpack(self, packed: Packed) -> PyTree:
        """The pytree again."""
        leaves = [self._leaf(place, packed[place.array]) for place in self.places]
        return self.structure.unflatten(leaves)

    def _leaf(self, place: Place, array: Array) -> PyTree:
        if place.at is not None:
            count = int(np.prod(place.shape + ((2,) if place.is_key else ())))
            array = array[place.at : place.at + count].reshape(place.shape + ((2,) if place.is_key else ()))
        return jax.random.wrap_key_data(jnp.asarray(array), impl="threefry2x32") if place.is_key else array


@functools.lru_cache(maxsize=256)
def _layout(structure: Structure, kinds: tuple[tuple[tuple[int, ...], np.dtype, bool], ...]) -> Layout:
    places: list[Place] = []
    sizes: list[int] = []
    shared: dict[np.dtype, int] = {}
    for shape, dtype, is_key in kinds:
        size = int(np.prod(shape)) * (2 if is_key else 1)
        if size > SMALL:
            places.append(Place(len(sizes), None, shape, is_key))
            sizes.append(0)
            continue
        if dtype not in shared:
            shared[dtype] = len(sizes)
            sizes.append(0)
        number = shared[dtype]
        places.append(Place(number, sizes[number], shape, is_key))
        sizes[number] += size
    return Layout(structure, tuple(places), tuple(sizes))


def _is_key(leaf: PyTree) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _numbers(leaf: PyTree) -> jax.Array:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf
