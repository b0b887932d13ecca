"""What travels: a row of words for each token, each way."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from ergodrift._core import tree
from ergodrift._core.compiled import Table
from ergodrift.engine.carry import RunSpec, Sums
from ergodrift.methods.estimator import Prefetched
from ergodrift.methods.method import zero_feedback
from ergodrift.types import PyTree, State

T = TypeVar("T")
Leaf = jax.Array | jax.ShapeDtypeStruct
ID_BYTES = 16  # of the identifier of a walk, which stands before its questions
KEY_TYPE = "threefry2x32"  # the generator of all keys, as `source.seed_keys` makes them


@tree.module("num_constraints", "local_rounds", "batch", "x64", "secure")
class WalkSpec:
    """What an agent is told once, when a walk begins: the problem, the method, and how a question reads.

    With `local_rounds` = 1 a question is x_t and its answer the `Feedback`; else a question is a token (its state and
    last weights) and the answer the same token so many rounds later, with the sums over these, and 1 if no feedback on
    the way was at fault where the token is not finite.
    """

    run_spec: RunSpec  # without stream and grid: the agent has its own data
    x0: PyTree
    num_constraints: int
    local_rounds: int
    batch: int  # how many questions an agent answers at a time: one size, so that one is compiled
    x64: bool  # whether the hub computes with 64-bit numbers
    secure: bool = False  # whether answers are masked, so that only sums over groups can be read


class Token(NamedTuple):
    """What a token carries to an agent that makes the rounds itself."""

    state: State
    weights: PyTree


class Visit(NamedTuple):
    """A token on its way through local rounds, with the sums over them."""

    state: State
    weights: PyTree
    recent: Sums


def first_token(spec: WalkSpec) -> Token:
    """A token before its first round."""
    method, x0 = spec.run_spec.method, spec.x0
    state = method.init(x0, spec.num_constraints, jax.random.key(0, impl=KEY_TYPE))
    zero = zero_feedback(x0, spec.num_constraints)._replace(state=jnp.int32(0))
    return Token(state, method.step(state, zero)[1].weights)


def token_shapes(spec: WalkSpec) -> Token:
    """A token's structure and shapes."""
    return jax.eval_shape(lambda: first_token(spec))


def first_question(spec: WalkSpec) -> jax.Array:
    """The words of a question as the first one is."""
    return pack(spec.x0 if spec.local_rounds == 1 else first_token(spec))


def question_shape(spec: WalkSpec) -> jax.ShapeDtypeStruct:
    """How many words of what kind a question has."""
    return jax.eval_shape(lambda: first_question(spec))


def zero_sums(spec: WalkSpec) -> Sums:
    """Sums over no rounds."""
    zero = zero_feedback(spec.x0, spec.num_constraints)
    weight = spec.run_spec.average.weight(jnp.int32(0), zero.loss.dtype)
    return Sums(zero.loss_grad, None if weight is None else jnp.zeros_like(weight), zero.loss, zero.constraints)


def without_prefetch(state: State) -> State:
    """The state without what its estimator drew beforehand, which whoever goes on draws again from the same origin."""

    def is_prefetched(node: object) -> bool:
        return isinstance(node, Prefetched)

    return jax.tree.map(lambda node: node.origin if is_prefetched(node) else node, state, is_leaf=is_prefetched)


def pack(numbers: PyTree) -> jax.Array:
    """All numbers of a pytree as one vector of words, as wide as the widest of them.

    That number's bits are a word as they are. In words of half its width it would be put together from two, and each
    leaf of such numbers would cost a kernel.
    """
    bits = [_bits(leaf).ravel() for leaf in jax.tree.leaves(numbers)]
    word = max((part.dtype for part in bits), key=lambda kind: kind.itemsize)
    return jnp.concatenate([part.astype(word) for part in bits])


def packed_bytes(numbers: PyTree) -> bytes:
    """The same as bytes."""
    return np.asarray(pack(jax.tree.map(jnp.asarray, numbers))).tobytes()


def unpack(words: jax.Array, like: PyTree) -> PyTree:
    """The pytree with the structure of `like` whose `pack` these words are."""
    leaves, structure = jax.tree.flatten(like)
    out, start = [], 0
    for leaf in leaves:
        (count,) = packed_shape(leaf).shape
        out.append(_leaf(words[start : start + count], leaf))
        start += count
    return structure.unflatten(out)


def packed_shape(like: PyTree) -> jax.ShapeDtypeStruct:
    """How many words of what kind a pytree of these shapes packs into."""
    return jax.eval_shape(pack, like)


def num_bytes(words: jax.ShapeDtypeStruct) -> int:
    """How many bytes these words are."""
    return words.shape[0] * words.dtype.itemsize


def _is_key(leaf: Leaf) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _bits(leaf: jax.Array) -> jax.Array:
    """The bits of each number, as a whole number of 32 or 64 of them."""
    leaf = jax.random.key_data(leaf) if _is_key(leaf) else leaf
    if leaf.dtype.itemsize < 4:  # bools and half floats take a word each
        leaf = leaf.astype(_carrier(leaf))
    return jax.lax.bitcast_convert_type(leaf, jnp.uint64 if leaf.dtype.itemsize == 8 else jnp.uint32)


def _leaf(words: jax.Array, like: Leaf) -> jax.Array:
    if _is_key(like):
        data = jax.eval_shape(jax.random.key_data, like)
        return jax.random.wrap_key_data(words.astype(data.dtype).reshape(data.shape), impl=KEY_TYPE)
    kind = _carrier(like) if like.dtype.itemsize < 4 else like.dtype
    bits = words.astype(jnp.uint64 if like.dtype.itemsize == 8 else jnp.uint32).reshape(like.shape)
    return jax.lax.bitcast_convert_type(bits, kind).astype(like.dtype)


def _carrier(leaf: Leaf) -> DTypeLike:
    return jnp.int32 if leaf.dtype == bool else jnp.float32


class Layout(NamedTuple):
    """Where the parts of a feedback stand in an answer, for who looks at its numbers without compiling anything."""

    widths: tuple[int, ...]  # numbers of the loss, its gradient, the constraints and their Jacobian
    dtype: np.dtype

    @staticmethod
    def of(spec: WalkSpec) -> Layout:
        """That of the answers of a walk."""
        parts = jax.eval_shape(lambda: zero_feedback(spec.x0, spec.num_constraints)[:4])
        widths = tuple(sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(part)) for part in parts)
        return Layout(widths, np.dtype(tree.dtype(spec.x0)))

    def numbers(self, answer: bytes) -> np.ndarray:
        """(questions, numbers), those of each answer in a row."""
        return np.frombuffer(answer, self.dtype).reshape(-1, sum(self.widths))

    def bytes(self, numbers: np.ndarray) -> bytes:
        """The answer that these numbers are."""
        return numbers.astype(self.dtype).tobytes()


def on_host(value: T) -> T:
    """The pytree with its arrays on the host, to be sent."""
    return jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, value)


def compile_for(fixed: PyTree, function: Callable[..., T], donate: bool = False) -> Callable[..., T]:
    """`function` compiled, its first argument always this pytree.

    It is taken apart here, not at every call: classes of ours are taken apart in Python, which costs more than a hop.
    """
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, fixed))
    return functools.partial(_table(function, donate).of(structure), leaves)


@functools.cache
def _table(function: Callable[..., object], donate: bool) -> Table:
    return Table(function, donate_argnums=(1,) if donate else ())
