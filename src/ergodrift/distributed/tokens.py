"""The tokens at the hub: the carry of the core's own loop, one row a token, with feedback that comes from elsewhere."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import tree
from ergodrift.data.sampler import BLOCK, Transitions, random_block
from ergodrift.data.source import level_keys, path_keys, seed_keys
from ergodrift.distributed import wire
from ergodrift.distributed.wire import Program, Token, Visit
from ergodrift.engine import loop
from ergodrift.methods.method import zero_feedback
from ergodrift.types import Feedback

MOVED, STAYED, DIVERGED = range(3)  # what becomes of a token at a hop


class Bits(NamedTuple):
    """A sampler that hands out its random bits: the hub decides with them, since a token may have to hold its place."""

    def start(self, key: jax.Array) -> jax.Array:
        return key

    def block(self, key: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
        return key, random_block(key, number)


@jax.jit
def next_places(chain: Transitions, places: Any, bits: Any, number: Any) -> jax.Array:
    """Where tokens go from there by this move of a block of hops."""
    return jax.vmap(chain.move)(jnp.asarray(places, jnp.int32), bits[:, number])


@jax.jit
def route(chain: Transitions, places: Any, bits: Any, first: Any) -> jax.Array:
    """Where tokens are after each move of a block of hops, (BLOCK, tokens), standing at `places` before the `first`."""

    def move(places: Any, number: Any) -> tuple[Any, Any]:
        places = jnp.where(number < jnp.asarray(first, jnp.int32), places, next_places(chain, places, bits, number))
        return places, places

    return jax.lax.scan(move, jnp.asarray(places, jnp.int32), jnp.arange(BLOCK, dtype=jnp.int32))[1]


class Tokens(NamedTuple):
    """All tokens between two hops, one row each: what a hop changes, as words, and the rest of the carry.

    One array, since each that goes into a compiled function, or comes out of it, adds to the time of a hop.
    """

    moving: Any
    resting: loop.Carry  # None where `moving` has it


class Hub:
    """The compiled functions of a walk on its tokens; two walks that differ in numbers only share them."""

    def __init__(self, program: Program) -> None:
        self.program = program
        answer = wire.row(_answer(program))
        self.word, self.width = answer.dtype, answer.shape[0]
        self.answer_bytes, self.question_bytes = wire.size(answer), wire.size(wire.question(program))
        self.start = wire.bound(start, program)
        self.packed = wire.bound(packed, program)
        self.unpacked = wire.bound(unpacked, program)
        self.questions = wire.bound(questions, program)
        self.block = wire.bound(block, program, donate=True)
        self.observe = wire.bound(observe, program)
        self._arrive = wire.bound(arrive, program, donate=True)

    def arrive(self, tokens: Tokens, sheet: np.ndarray) -> tuple[Tokens, np.ndarray]:
        """The tokens after all answers, and the next questions, whose last word says what became of the token.

        The sheet has for each token, row after row: the answer, who was asked, and 1 if there is an answer. The token
        has MOVED; or, without an answer or with one that is not finite, it has STAYED as it is, to the last bit; or so
        it has because it would have become infinite itself: DIVERGED.
        """
        moving, questions = self._arrive(tokens.moving, sheet)
        return Tokens(moving, tokens.resting), np.asarray(questions)


def start(program: Program, starts: Any, levels: Any) -> Tokens:
    """The tokens before the first hop."""
    return packed(program, _first(program, starts, levels))


def packed(program: Program, carry: loop.Carry) -> Tokens:
    """The tokens that a carry of the core's loop holds, one row a token."""
    moving = {name: getattr(carry, name) for name in _moving(program)}
    return Tokens(jax.vmap(wire.pack)(moving), carry._replace(**dict.fromkeys(moving)))


def unpacked(program: Program, tokens: Tokens) -> loop.Carry:
    """The carry of the core's loop."""
    moving = jax.vmap(lambda words: wire.unpack(words, _like(program)))(tokens.moving)
    return tokens.resting._replace(**moving)


def questions(program: Program, tokens: Tokens) -> jax.Array:
    """What the agents are asked first, one row a token, as `arrive` leaves it."""
    return jax.vmap(lambda one: _question(program, one, STAYED))(unpacked(program, tokens))


def arrive(program: Program, moving: Any, sheet: Any) -> tuple[Any, jax.Array]:
    """All answers taken in: what moves, and the next questions, with what became of the tokens as their last words."""
    take = _take_feedback if program.local_rounds == 1 else _take_visit
    answer_like, token_like = _answer(program), _like(program)
    resting: dict[str, Any] = {name: None for name in loop.Carry._fields if name not in token_like}

    def one(words: Any, row: Any) -> tuple[Any, jax.Array]:
        answer, carry = wire.unpack(row[:-2], answer_like), loop.Carry(**wire.unpack(words, token_like), **resting)
        new = take(program, carry, answer, row[-2].astype(jnp.int32))
        # All of the answer is looked at: a gradient that is not finite may wait in a window for rounds before it shows.
        numbers = [leaf for leaf in jax.tree.leaves(answer) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        finite, sound = loop.finite(numbers), loop.finite((new.state.x, new.state.queue, new.weights))
        if program.local_rounds > 1:  # the answer is the token: who is at fault, the agent says
            finite, sound = answer[1] == 1, finite & sound
        good = (row[-1] == 1) & finite
        carry = _select(good & sound, new, carry)
        kept = wire.pack({name: getattr(carry, name) for name in token_like})
        return kept, _question(program, carry, jnp.where(good, jnp.where(sound, MOVED, DIVERGED), STAYED))

    return jax.vmap(one)(moving, sheet.reshape(len(moving), -1))


def block(program: Program, tokens: Tokens, hop: Any) -> Tokens:
    """The tokens at the start of the block of hops that begins here, with its random bits."""
    carry = jax.vmap(lambda one: loop.next_block(program.setup, one, hop))(unpacked(program, tokens))
    return packed(program, _as_kept(program, carry))


def observe(program: Program, tokens: Tokens, taken: Any) -> loop.Record:
    """The records of tokens that have taken so many samples."""
    carry = unpacked(program, tokens)
    return jax.vmap(lambda one, taken: loop.observe(program.setup, one, taken))(carry, taken)


def _first(program: Program, starts: Any, levels: Any) -> loop.Carry:
    return _as_kept(program, loop.start(program.setup, program.x0, program.num_constraints, starts, levels))


def _moving(program: Program) -> tuple[str, ...]:
    """The parts of a carry that a hop changes."""
    return "state", "weights", "recent" if program.local_rounds == 1 else "settled"


def _like(program: Program) -> dict[str, Any]:
    """The shapes of what moves, of one token."""
    keys = seed_keys(1)
    carry = jax.eval_shape(functools.partial(_first, program), path_keys(keys), level_keys(keys))
    return {name: jax.tree.map(_row, getattr(carry, name)) for name in _moving(program)}


def _row(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def _as_kept(program: Program, carry: loop.Carry) -> loop.Carry:
    # Where agents make the rounds they draw levels themselves, and the hub has no use for them.
    return carry if program.local_rounds == 1 else carry._replace(state=wire.unstocked(carry.state))


def _question(program: Program, carry: loop.Carry, became: Any) -> jax.Array:
    """What is asked of a token, and what became of it."""
    asked = carry.state.x if program.local_rounds == 1 else Token(wire.unstocked(carry.state), carry.weights)
    question = wire.pack(asked)
    return jnp.append(question, jnp.asarray(became, question.dtype))


def _answer(program: Program) -> Any:
    """What an answer packs."""
    if program.local_rounds == 1:
        return zero_feedback(program.x0, program.num_constraints)[:4]
    return Visit(*wire.blank_token(program), wire.zero_sums(program)), jnp.int32(1)


def _take_feedback(program: Program, carry: loop.Carry, answer: Any, agent: Any) -> loop.Carry:
    return loop.absorb(program.setup, carry, Feedback(*answer, state=agent))


def _take_visit(program: Program, carry: loop.Carry, answer: Any, agent: Any) -> loop.Carry:
    visit, _ = answer
    settled = tree.compensated_add(carry.settled, visit.recent)
    return carry._replace(state=visit.state, weights=visit.weights, settled=settled)


def _select(ready: Any, new: Any, old: Any) -> Any:
    """`tree.select` for trees with keys among their leaves, which never change."""

    def leaf(new: Any, old: Any) -> Any:
        return old if jnp.issubdtype(old.dtype, jax.dtypes.prng_key) else jnp.where(ready, new, old)

    return jax.tree.map(leaf, new, old)
