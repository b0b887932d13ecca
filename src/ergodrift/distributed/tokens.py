"""The tokens at the hub: the carry of the core's own loop, one row per token, with feedback from elsewhere."""

from __future__ import annotations

import functools
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import tree
from ergodrift.data.sampler import BLOCK, Transitions, random_block
from ergodrift.data.source import level_keys, path_keys, seed_keys
from ergodrift.distributed import wire
from ergodrift.distributed.wire import Token, Visit, WalkSpec
from ergodrift.engine import loop
from ergodrift.methods.memory import MemoryState
from ergodrift.methods.method import zero_feedback
from ergodrift.types import Array, Feedback, Key, PyTree, Scalar, State

T = TypeVar("T")
MOVED, STAYED, DIVERGED = range(3)  # what becomes of a token at a hop


class RandomBits(NamedTuple):
    """A sampler that hands out its random bits: the hub decides with them, since a token may have to hold its place."""

    def start(self, key: Key) -> Key:
        return key

    def block(self, key: Key, number: jax.Array) -> tuple[Key, jax.Array]:
        return key, random_block(key, number)


@jax.jit
def next_places(chain: Transitions, places: Array, bits: jax.Array, number: Scalar) -> jax.Array:
    """Where tokens go from there by this move of a block of hops."""
    return jax.vmap(chain.move)(jnp.asarray(places, jnp.int32), bits[:, number])


@jax.jit
def route(chain: Transitions, places: Array, bits: jax.Array, first: Scalar) -> jax.Array:
    """Where tokens are after each move of a block of hops, (BLOCK, tokens), standing at `places` before the `first`."""

    def move(places: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
        places = jnp.where(number < jnp.asarray(first, jnp.int32), places, next_places(chain, places, bits, number))
        return places, places

    return jax.lax.scan(move, jnp.asarray(places, jnp.int32), jnp.arange(BLOCK, dtype=jnp.int32))[1]


class Moving(NamedTuple):
    """What a hop changes, one row per token.

    Attributes:
        words: all but the table. One array, since each that goes into a compiled function, or comes out of it, adds to
            the time of a hop.
        table: what tokens remember of every agent (`Memory`), else None. A hop reads and writes one entry of it, in
            place: among the words, all of it would be copied at every hop.
    """

    words: jax.Array
    table: PyTree


class Tokens(NamedTuple):
    """All tokens between two hops, one row each: what a hop changes, and the rest of the carry."""

    moving: Moving
    resting: loop.Carry  # None where `moving` has it


class Hub:
    """The compiled functions of a walk on its tokens; two walks that differ in numbers only share them."""

    def __init__(self, spec: WalkSpec) -> None:
        self.spec = spec
        answer = wire.packed_shape(_answer(spec))
        self.word, self.width = answer.dtype, answer.shape[0]
        self.answer_bytes, self.question_bytes = wire.num_bytes(answer), wire.num_bytes(wire.question_shape(spec))
        self.start = wire.compile_for(spec, start)
        self.pack = wire.compile_for(spec, pack)
        self.unpack = wire.compile_for(spec, unpack)
        self.questions = wire.compile_for(spec, questions)
        self.next_block = wire.compile_for(spec, next_block, donate=True)
        self.observe = wire.compile_for(spec, observe)
        self._absorb = wire.compile_for(spec, absorb, donate=True)

    def absorb(self, tokens: Tokens, answers: np.ndarray) -> tuple[Tokens, np.ndarray]:
        """The tokens after all answers, and the next questions, whose last word says what became of the token.

        `answers` has for each token, row after row: the answer, who was asked, and 1 if there is an answer. The token
        has MOVED; or, without an answer or with one that is not finite, it has STAYED as it is, to the last bit; or so
        it has because it would have become infinite itself: DIVERGED.
        """
        moving, questions = self._absorb(tokens.moving, answers)
        return Tokens(moving, tokens.resting), np.asarray(questions)


def start(spec: WalkSpec, starts: Key, levels: Key) -> Tokens:
    """The tokens before the first hop."""
    return pack(spec, _first(spec, starts, levels))


def pack(spec: WalkSpec, carry: loop.Carry) -> Tokens:
    """The tokens that a carry of the core's loop holds, one row per token."""
    moving = {name: getattr(carry, name) for name in _moving(spec)}
    moving["state"], table = _taken_out(spec, moving["state"])
    return Tokens(Moving(jax.vmap(wire.pack)(moving), table), carry._replace(**dict.fromkeys(moving)))


def unpack(spec: WalkSpec, tokens: Tokens) -> loop.Carry:
    """The carry of the core's loop."""
    moving = jax.vmap(lambda words: wire.unpack(words, _moving_shapes(spec)))(tokens.moving.words)
    moving["state"] = _put_back(moving["state"], tokens.moving.table)
    return tokens.resting._replace(**moving)


def questions(spec: WalkSpec, tokens: Tokens) -> jax.Array:
    """What the agents are asked first, one row per token, as `absorb` leaves it."""
    return jax.vmap(lambda one: _question(spec, one, STAYED))(unpack(spec, tokens))


def absorb(spec: WalkSpec, moving: Moving, answers: jax.Array) -> tuple[Moving, jax.Array]:
    """All answers taken in: what moves, and the next questions, with what became of the tokens as their last words."""
    take = _absorb_feedback if spec.local_rounds == 1 else _absorb_visit
    answer_like, token_like = _answer(spec), _moving_shapes(spec)
    resting: dict[str, PyTree] = {name: None for name in loop.Carry._fields if name not in token_like}

    def one(moving: Moving, row: jax.Array) -> tuple[Moving, jax.Array]:
        answer = wire.unpack(row[:-2], answer_like)
        carry = loop.Carry(**wire.unpack(moving.words, token_like), **resting)
        carry = carry._replace(state=_put_back(carry.state, moving.table))
        new = take(spec, carry, answer, row[-2].astype(jnp.int32))
        # All of the answer is looked at: a gradient that is not finite may wait in a window for rounds before it shows.
        numbers = [leaf for leaf in jax.tree.leaves(answer) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        finite, sound = loop.finite(numbers), loop.finite((new.state.x, new.state.queue, new.weights))
        if spec.local_rounds > 1:  # the answer is the token: who is at fault, the agent says
            finite, sound = answer[1] == 1, finite & sound
        good = (row[-1] == 1) & finite
        # The table takes in what was learned at the hop before, which is right whatever became of this one.
        (state, table), (before, _) = _taken_out(spec, new.state), _taken_out(spec, carry.state)
        carry = _select(good & sound, new._replace(state=state), carry._replace(state=before))
        kept = Moving(wire.pack({name: getattr(carry, name) for name in token_like}), table)
        return kept, _question(spec, carry, jnp.where(good, jnp.where(sound, MOVED, DIVERGED), STAYED))

    return jax.vmap(one)(moving, answers.reshape(len(moving.words), -1))


def next_block(spec: WalkSpec, tokens: Tokens, hops: jax.Array, due: jax.Array) -> Tokens:
    """The tokens, those that are `due` at the start of the block of hops that begins after the hops they have made."""
    carry = unpack(spec, tokens._replace(moving=tokens.moving._replace(table=None)))

    def one(carry: loop.Carry, hop: jax.Array, due: jax.Array) -> loop.Carry:
        return _select(due, _without_prefetch(spec, loop.next_block(spec.run_spec, carry, hop)), carry)

    packed = pack(spec, jax.vmap(one)(carry, hops, due))
    return packed._replace(moving=packed.moving._replace(table=tokens.moving.table))


def observe(spec: WalkSpec, tokens: Tokens, taken: jax.Array) -> loop.Record:
    """The records of tokens that have taken so many samples."""
    carry = unpack(spec, tokens)
    return jax.vmap(lambda one, taken: loop.observe(spec.run_spec, one, taken))(carry, taken)


def _first(spec: WalkSpec, starts: Key, levels: Key) -> loop.Carry:
    return _without_prefetch(spec, loop.start(spec.run_spec, spec.x0, spec.num_constraints, starts, levels))


def _moving(spec: WalkSpec) -> tuple[str, ...]:
    """The parts of a carry that a hop changes."""
    return "state", "weights", "recent" if spec.local_rounds == 1 else "settled"


def _moving_shapes(spec: WalkSpec) -> dict[str, PyTree]:
    """The shapes of what moves, of one token."""
    keys = seed_keys(1)
    carry = jax.eval_shape(functools.partial(_first, spec), path_keys(keys), level_keys(keys))
    carry = carry._replace(state=_taken_out(spec, carry.state)[0])
    return {name: jax.tree.map(_row, getattr(carry, name)) for name in _moving(spec)}


def _taken_out(spec: WalkSpec, state: State) -> tuple[State, PyTree]:
    """The state without its table of what is remembered, and that table, where the hub has one."""
    if spec.local_rounds > 1 or not isinstance(state.window, MemoryState):  # a token that travels has all with it
        return state, None
    return state._replace(window=state.window._replace(entries=None)), state.window.entries


def _put_back(state: State, table: PyTree) -> State:
    return state if table is None else state._replace(window=state.window._replace(entries=table))


def _row(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def _without_prefetch(spec: WalkSpec, carry: loop.Carry) -> loop.Carry:
    # Where agents make the rounds they draw levels themselves, and the hub has no use for them.
    return carry if spec.local_rounds == 1 else carry._replace(state=wire.without_prefetch(carry.state))


def _question(spec: WalkSpec, carry: loop.Carry, outcome: Scalar) -> jax.Array:
    """What is asked of a token, and what became of it."""
    asked = carry.state.x if spec.local_rounds == 1 else Token(wire.without_prefetch(carry.state), carry.weights)
    question = wire.pack(asked)
    return jnp.append(question, jnp.asarray(outcome, question.dtype))


def _answer(spec: WalkSpec) -> tuple[PyTree, ...]:
    """What an answer packs."""
    if spec.local_rounds == 1:
        return zero_feedback(spec.x0, spec.num_constraints)[:4]
    return Visit(*wire.token_shapes(spec), wire.zero_sums(spec)), jnp.int32(1)


def _absorb_feedback(spec: WalkSpec, carry: loop.Carry, answer: tuple[PyTree, ...], agent: jax.Array) -> loop.Carry:
    return loop.absorb(spec.run_spec, carry, Feedback(*answer, state=agent))


def _absorb_visit(spec: WalkSpec, carry: loop.Carry, answer: tuple[PyTree, ...], agent: jax.Array) -> loop.Carry:
    visit, _ = answer
    settled = tree.compensated_add(carry.settled, visit.recent)
    return carry._replace(state=visit.state, weights=visit.weights, settled=settled)


def _select(ready: jax.Array, new: T, old: T) -> T:
    """`tree.select` for trees with keys among their leaves, which never change."""

    def leaf(new: jax.Array, old: jax.Array) -> jax.Array:
        return old if jnp.issubdtype(old.dtype, jax.dtypes.prng_key) else jnp.where(ready, new, old)

    return jax.tree.map(leaf, new, old)
