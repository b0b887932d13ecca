"""Samplers: drawing indices inside a compiled loop, a block at a time.

Everything is decided by comparing 31 random bits with integer thresholds, so a seed gives the same path in float32 and
in float64, on every backend, and probabilities are resolved to 2^-31. A block is a function of the seed and of its
number alone: a path does not depend on how a run is cut into records, or on what else runs.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from ergodrift._core.compiled import compiled
from ergodrift.types import Array, Key, PyTree

# Random bits are drawn, and float32 sums are closed, every so many samples. Small enough that the loop over samples of
# a small problem fits what XLA's CPU backend compiles into a single function; large enough that a block costs little.
BLOCK = 64
UNROLL = 16  # moves of a chain drawn in one turn of a loop: on a GPU each turn costs a launch


class Sampler(Protocol):
    """Draws the entries of a path: indices into a table, or samples themselves."""

    def start(self, key: Key, /) -> PyTree:
        """What is carried from block to block; before the first one."""
        ...

    def block(self, carry: PyTree, number: jax.Array, /) -> tuple[PyTree, PyTree]:
        """The carry after block `number`, and its entries, along a leading axis of length BLOCK."""
        ...


def _thresholds(cumulative: np.ndarray) -> np.ndarray:
    """Cumulative probabilities as integers: outcome k is chosen when the bits reach exactly k of them.

    One bit of the 32 is left out so that probability one, 2^31, is a threshold that no draw reaches.
    """
    return np.floor(np.minimum(cumulative, 1.0) * 2.0**31).astype(np.uint32)


def random_block(key: jax.Array, number: jax.Array) -> jax.Array:
    """The random bits of block `number`, shape (BLOCK,)."""
    return random_bits(jax.random.fold_in(key, number), (BLOCK,))


def random_bits(key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
    """Uniform on 0..2^31 - 1, as uint32."""
    return all_bits(key, shape) >> 1


# JAX draws other numbers from the same key where `jax_threefry_partitionable` is off: that must not change a path.


def all_bits(key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
    """Uniform on 0..2^32 - 1, as uint32, whatever JAX is set to."""
    with jax.threefry_partitionable(True):
        return jax.random.bits(key, shape, jnp.uint32)


def split(key: jax.Array, count: int = 2) -> jax.Array:
    """Keys from a key, whatever JAX is set to."""
    with jax.threefry_partitionable(True):
        return jax.random.split(key, count)


class Categorical(NamedTuple):
    """Independent draws from 0..K-1 with given weights."""

    thresholds: Array  # (K - 1,) uint32, ascending

    @staticmethod
    def from_weights(weights: np.ndarray) -> Categorical:
        cumulative = np.cumsum(weights / np.sum(weights))
        cumulative[np.flatnonzero(weights)[-1] :] = 1.0  # whatever follows the last positive weight is never drawn
        return Categorical(_thresholds(cumulative[:-1]))

    def start(self, key: jax.Array) -> jax.Array:
        return key

    def block(self, key: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
        return key, self.pick(random_block(key, number))

    def pick(self, bits: jax.Array) -> jax.Array:
        return jnp.searchsorted(jnp.asarray(self.thresholds), bits, side="right").astype(jnp.int32)


class Transitions(NamedTuple):
    """Paths of a Markov chain. Only the positive entries of a row are kept: tables have states x largest row size."""

    thresholds: Array  # (S, K - 1) uint32, ascending in each row, K the most positive entries in a row
    targets: Array  # (S, K) int32, padded with the row's last target
    first: Categorical | None = None  # the law of the first state

    @staticmethod
    def from_matrix(P: np.ndarray | scipy.sparse.csr_array) -> Transitions:
        matrix = scipy.sparse.csr_array(P)
        matrix.eliminate_zeros()
        matrix.sort_indices()
        counts = np.diff(matrix.indptr)
        width = int(counts.max())
        column = np.arange(width)[None, :]
        gather = matrix.indptr[:-1, None] + np.minimum(column, counts[:, None] - 1)
        targets = matrix.indices[gather].astype(np.int32)
        cumulative = np.cumsum(np.where(column < counts[:, None], matrix.data[gather], 0.0), axis=1)
        stays = np.where(targets == np.arange(len(counts))[:, None], matrix.data[gather], 0.0).max(axis=1)
        if len(counts) > 1 and stays.max() > 1 - 2.0**-31:
            state = int(np.argmax(stays))
            raise ValueError(
                f"P: state {state} is left with probability below 2^-31; a path drawn from it never moves on"
            )
        return Transitions(_thresholds(cumulative[:, :-1]), targets)

    def start(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The sampler's carry: its key and the state of the sample to come."""
        first_key, path_key = split(key)
        assert self.first is not None, "the law of the first state is not set"
        return path_key, self.first.pick(random_bits(first_key))

    def block(
        self, carry: tuple[jax.Array, jax.Array], number: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        key, state = carry

        def move(state: jax.Array, bits: jax.Array) -> tuple[jax.Array, jax.Array]:
            return self.move(state, bits), state

        state, states = jax.lax.scan(move, state, random_block(key, number), unroll=UNROLL)
        return (key, state), states

    def move(self, state: jax.Array, bits: jax.Array) -> jax.Array:
        """The state after this one, chosen by random bits."""
        chosen = jnp.sum(bits >= jnp.asarray(self.thresholds)[state], dtype=jnp.int32)
        return jnp.asarray(self.targets)[state, chosen]


class InOrder(NamedTuple):
    """0, 1, 2, ...: a recorded series is read in time."""

    def start(self, key: jax.Array) -> tuple[()]:
        return ()

    def block(self, carry: tuple[()], number: jax.Array) -> tuple[tuple[()], jax.Array]:
        return carry, number * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32)


@compiled(static_argnums=2)
def draw(sampler: Sampler, key: PyTree, num_blocks: int) -> PyTree:
    """The entries of the first blocks, one after the other."""
    numbers = jnp.arange(num_blocks, dtype=jnp.int32)
    _, entries = jax.lax.scan(sampler.block, sampler.start(key), numbers)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), entries)
