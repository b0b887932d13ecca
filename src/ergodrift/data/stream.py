"""Streams: sources on the device. A stream draws the entries of a path in blocks and makes samples of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import tree
from ergodrift.data.sampler import BLOCK, Sampler, split
from ergodrift.types import Key, PyTree


class Stream(Sampler, Protocol):
    """A sampler whose entries stand for samples. It is a pytree, so that its numbers can be traced."""

    def xi(self, entry: PyTree, /) -> PyTree:
        """The sample that an entry stands for."""
        ...


class TableStream(NamedTuple):
    """Rows of a table: `sampler` draws their numbers, `data` are looked up with them.

    Of a recorded series `data` may be a window that begins with row number `first`.
    """

    sampler: Sampler
    data: PyTree
    first: PyTree = None

    def start(self, key: Key) -> PyTree:
        return self.sampler.start(key)

    def block(self, carry: PyTree, number: jax.Array) -> tuple[PyTree, PyTree]:
        return self.sampler.block(carry, number)

    def xi(self, entry: PyTree) -> PyTree:
        place = entry if self.first is None else entry - self.first

        def row(leaf: jax.Array | Transposed) -> jax.Array:
            return leaf.array[place].T if isinstance(leaf, Transposed) else leaf[place]

        return jax.tree.map(row, self.data, is_leaf=lambda leaf: isinstance(leaf, Transposed))


@tree.module()
class Transposed:
    """An array whose samples are tall and narrow, (n, d) with a small d, kept as (d, n): twice as fast to multiply."""

    array: jax.Array


def stored(leaf: PyTree) -> jax.Array | Transposed:
    """An array of samples as it is kept on the device."""
    if is_narrow(leaf.shape[1:]):
        turned = np.ascontiguousarray(leaf.swapaxes(-1, -2)) if isinstance(leaf, np.ndarray) else leaf.swapaxes(-1, -2)
        return Transposed(jnp.asarray(turned))
    return jnp.asarray(leaf)


def is_narrow(shape: tuple[int, ...]) -> bool:
    """Whether a sample of this shape is better kept on its side."""
    return len(shape) == 2 and 4 * shape[1] <= shape[0]


@tree.module("init", "sample")
class Simulated:
    """Samples that a simulator makes one after the other; an entry is a sample.

    Sample t of a seed gets a key of its own, a function of the seed and of t: how a run is cut changes nothing.
    """

    init: Callable[[Key], PyTree]
    sample: Callable[[Key, PyTree], tuple[PyTree, PyTree]]

    def start(self, key: Key) -> tuple[Key, PyTree]:
        first, later = split(key)
        with jax.threefry_partitionable(True):  # as in `sampler`: no setting of JAX changes a path
            return later, jax.tree.map(jnp.asarray, self.init(first))

    def block(self, carry: tuple[Key, PyTree], number: jax.Array) -> tuple[tuple[Key, PyTree], PyTree]:
        key, state = carry

        def one(state: PyTree, key: Key) -> tuple[PyTree, PyTree]:
            found = self.sample(key, state)
            if not isinstance(found, tuple) or len(found) != 2:
                raise TypeError(f"sample(key, state) must return a pair (state, xi), got {type(found).__name__}")
            return jax.tree.map(_like, found[0], state), jax.tree.map(jnp.asarray, found[1])

        keys = split(jax.random.fold_in(key, number), BLOCK)
        with jax.threefry_partitionable(True):
            state, samples = jax.lax.scan(one, state, keys)
        return (key, state), samples

    def xi(self, entry: PyTree) -> PyTree:
        return entry


def _like(new: jax.Array, old: jax.Array) -> jax.Array:
    """A state in the precision of the one before."""
    if jnp.issubdtype(old.dtype, jax.dtypes.prng_key):
        return new
    if jnp.issubdtype(jnp.result_type(new), jnp.floating) and not jnp.issubdtype(old.dtype, jnp.floating):
        raise TypeError(
            f"sample(key, state) turns a state of type {old.dtype} into {jnp.result_type(new)}, which would be cut to "
            "whole numbers; let init(key) return floating-point numbers, such as jnp.zeros(())"
        )
    return jnp.asarray(new, old.dtype)


class Paired(NamedTuple):
    """Samplers or streams side by side, each with a key of its own."""

    parts: tuple[PyTree, ...]

    def start(self, key: Key) -> tuple[PyTree, ...]:
        return tuple(part.start(own) for part, own in zip(self.parts, split(key, len(self.parts)), strict=True))

    def block(self, carry: tuple[PyTree, ...], number: jax.Array) -> tuple[tuple[PyTree, ...], tuple[PyTree, ...]]:
        pairs = [part.block(own, number) for part, own in zip(self.parts, carry, strict=True)]
        return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)

    def xi(self, entry: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
        return tuple(part.xi(own) for part, own in zip(self.parts, entry, strict=True))


class Replay(NamedTuple):
    """Entries given beforehand, which are themselves the carry, in the place of those that `stream` would draw."""

    stream: Stream

    @property
    def data(self) -> PyTree:
        """The table that entries are looked up in, where there is one."""
        return getattr(self.stream, "data", None)

    def start(self, key: PyTree) -> PyTree:
        """`key` is the path."""
        return key

    def block(self, carry: PyTree, number: jax.Array) -> tuple[PyTree, PyTree]:
        # Slices past the end would be shifted back silently: `padded` makes the path a whole number of blocks.
        return carry, jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, number * BLOCK, BLOCK), carry)

    def xi(self, entry: PyTree) -> PyTree:
        return self.stream.xi(entry)


def padded(paths: np.ndarray) -> jax.Array:
    """Paths, one row per seed, up to a whole number of blocks."""
    filling = [(0, 0), (0, -paths.shape[1] % BLOCK), *[(0, 0)] * (paths.ndim - 2)]
    return jnp.asarray(np.pad(paths, filling, mode="edge"))
