"""Several passes over a record, each in an order of its own: row numbers inside a compiled loop, with nothing stored.

The order of a pass is a keyed permutation of 0..n-1, worked out place by place, so that a seed carries its key alone,
however long the record is.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import tree
from ergodrift.data.sampler import BLOCK, all_bits
from ergodrift.types import Array, PyTree

ROUNDS, SIDE = 12, 8  # of the permutation: with fewer, or on less than 8 x 8 places, a million draws show a difference
ORDERS = ("given", "shuffled", "blocks")


def radices(size: int) -> tuple[int, int]:
    """a and b from 8 to 2^16 with a b >= size, as little above it as can be, and neither much larger than the other."""
    if size <= SIDE**2:
        return SIDE, SIDE
    root = int(np.ceil(np.sqrt(size)))
    first = np.arange(max(int(0.8 * root), SIDE), root + 1)
    a = int(first[np.argmin(-(-size // first) * first)])
    return a, -(-size // a)


def permuted(keys: jax.Array, places: jax.Array, size: int | jax.Array, sides: tuple[PyTree, PyTree]) -> jax.Array:
    """Where a permutation of 0..size-1 sends these places, uint32.

    A Feistel network on pairs (l, r) of Z_a x Z_b: in turn l + F(r) (mod a) and r + F(l) (mod b), with F a keyed hash,
    each a bijection whatever F is. Places that end up beyond the size go through it again until they are back (cycle
    walking), so that what is left is a bijection of 0..size-1 (Black and Rogaway 2002, Ciphers with arbitrary finite
    domains).

    Args:
        keys: uint32, (ROUNDS,), or with the leading axes of `places` before that.
        places: uint32, below `size`.
        size: below 2^31.
        sides: a and b of `radices(size)`.
    """
    count, a, b = (jnp.asarray(number, jnp.uint32) for number in (size, *sides))
    missing = (1,) * (places.ndim + 1 - keys.ndim)
    beside = jnp.moveaxis(keys, -1, 0).reshape(ROUNDS, *keys.shape[:-1], *missing)

    def through(x: jax.Array) -> jax.Array:
        left, right = x // b, x % b
        for number in range(0, ROUNDS, 2):
            left = _added(left, _below(a, right ^ beside[number]), a)
            right = _added(right, _below(b, left ^ beside[number + 1]), b)
        return left * b + right

    def beyond(x: jax.Array) -> jax.Array:
        return jnp.any(x >= count)

    return jax.lax.while_loop(beyond, lambda x: jnp.where(x >= count, through(x), x), through(places))


def _added(x: jax.Array, y: jax.Array, modulus: jax.Array) -> jax.Array:
    total = x + y
    return jnp.where(total >= modulus, total - modulus, total)


def _below(limit: jax.Array, x: jax.Array) -> jax.Array:
    """A number below the limit, which is below 2^16, from the high bits of a hash: multiply, mix, multiply."""
    x = x * np.uint32(0x9E3779B1)
    x = (x ^ (x >> 15)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return ((x >> 16) * limit) >> 16


@tree.module("rows", "order", "batch", "block_length")
class Passes:
    """Row numbers of pass after pass: (BLOCK,) in a block, or (BLOCK, batch) where samples are batches of them.

    Every row comes once in a pass. A batch that ends with the rows of its pass is filled up with -1.

    Args:
        rows: of the record, below 2^31.
        order: "given": 0, 1, 2, ...; "shuffled": a new permutation for each pass; "blocks": from a random row on, round
            the end to the beginning, cut into blocks of `block_length` that come in random order, what is left over
            last.
        batch: rows of a sample; None where a sample is a row.
        block_length: at most `rows`.
    """

    rows: int
    order: str
    batch: int | None
    block_length: int

    @property
    def per_pass(self) -> int:
        return -(-self.rows // (self.batch or 1))

    def start(self, key: jax.Array) -> jax.Array:
        return key

    def block(self, key: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
        samples = number * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32)
        epochs, within = samples // self.per_pass, (samples % self.per_pass).astype(jnp.uint32)
        size = self.batch or 1
        places = within[:, None] * np.uint32(size) + jnp.arange(size, dtype=jnp.uint32)[None]
        real = places < np.uint32(self.rows)
        rows = self._rows(key, epochs, jnp.where(real, places, np.uint32(0))).astype(jnp.int32)
        rows = jnp.where(real, rows, jnp.int32(-1))
        return key, rows[:, 0] if self.batch is None else rows

    def _rows(self, key: jax.Array, epochs: jax.Array, places: jax.Array) -> jax.Array:
        """The rows at these places (BLOCK, batch) of passes (BLOCK,)."""
        if self.order == "given":
            return places
        # All passes that a block touches: two, unless the record is shorter than a block.
        touched = epochs[0] + jnp.arange((BLOCK + self.per_pass - 2) // self.per_pass + 1, dtype=jnp.int32)
        keys = jax.vmap(lambda epoch: jax.random.fold_in(key, epoch))(touched)
        bits, which = jax.vmap(lambda one: all_bits(one, (ROUNDS + 1,)))(keys), epochs - epochs[0]
        own = bits[which]
        if self.order == "shuffled":
            return permuted(own[:, :ROUNDS], places, self.rows, radices(self.rows))
        length, count, n = np.uint32(self.block_length), self.rows // self.block_length, np.uint32(self.rows)
        shifts = own[:, ROUNDS] % n
        whole = places < np.uint32(count * self.block_length)
        sides = radices(count)
        blocks = permuted(own[:, :ROUNDS], jnp.where(whole, places // length, np.uint32(0)), count, sides)
        rows = jnp.where(whole, blocks * length + places % length, places) + shifts[:, None]  # below 2^32
        return jnp.where(rows >= n, rows - n, rows)


def weighed(path: Array, counts: np.ndarray) -> np.ndarray:
    """How many rows the first `counts` batches of paths (..., samples, batch) hold, (..., counts)."""
    held = np.cumsum((np.asarray(path) >= 0).sum(axis=-1), axis=-1)
    return np.concatenate([np.zeros_like(held[..., :1]), held], axis=-1)[..., counts]
