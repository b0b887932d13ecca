"""The tokens at the hub: the carry of the core's own loop, one row a token, with feedback that comes from elsewhere."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift import loop, tree
from ergodrift.distributed import wire
from ergodrift.distributed.wire import Program, Token, Visit
from ergodrift.method import zero_feedback
from ergodrift.sampler import Transitions, random_block
from ergodrift.types import Feedback


class Bits(NamedTuple):
    """A sampler that hands out its random bits: the hub decides with them, since a token may have to hold its place."""

    def start(self, key: jax.Array) -> jax.Array:
        return key

    def block(self, key: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
        return key, random_block(key, number)


class Moves:
    """Where tokens go: the very comparisons of the chain's own sampler, on the host, from wherever a token stands."""

    def __init__(self, table: Transitions) -> None:
        self.thresholds, self.targets = np.asarray(table.thresholds), np.asarray(table.targets)

    def __call__(self, places: np.ndarray, bits: np.ndarray) -> np.ndarray:
        chosen = (bits[:, None] >= self.thresholds[places]).sum(axis=1)
        return self.targets[places, chosen]


class Hub:
    """The compiled functions of a walk on its tokens; two walks that differ in numbers only share them."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.answer_width = wire.width(_answer(program))
        self.moving = ("state", "weights", "recent" if program.local_rounds == 1 else "settled")
        self.start = wire.bound(start, program)
        self.questions = wire.bound(questions, program)
        self.block = wire.bound(block, program, donate=True)
        self.observe = wire.bound(observe, program)
        self._arrive = wire.bound(arrive, program, donate=True)

    def sheet(self, agents: np.ndarray) -> np.ndarray:
        """Room for the answers of a hop, one row a token: the answer, who was asked, and 1 if there is an answer.

        One array, since each that goes into a compiled function costs a call time.
        """
        sheet = np.zeros((len(agents), self.answer_width + 2), np.uint32)
        sheet[:, -2] = agents
        return sheet

    def arrive(self, carry: loop.Carry, sheet: np.ndarray) -> tuple[loop.Carry, np.ndarray, np.ndarray]:
        """The carry after all answers, the next questions, and which tokens have moved.

        A token without an answer, or with one that is not finite, stays as it is, to the last bit.
        """
        # Of a carry, a hop needs three parts; every array that goes along costs a call time.
        resting = {name: getattr(carry, name) for name in carry._fields if name not in self.moving}
        new, out = self._arrive(carry._replace(**dict.fromkeys(resting)), sheet)
        out = np.asarray(out)
        return new._replace(**resting), out[:, :-1], out[:, -1] == 1


def start(program: Program, starts: Any, levels: Any) -> loop.Carry:
    """The carry before the first hop, one row a token."""
    carry = loop.start(program.setup, program.x0, program.num_constraints, starts, levels)
    return _as_kept(program, carry)


def questions(program: Program, carry: loop.Carry) -> jax.Array:
    """What the agents are asked, one row a token."""
    return jax.vmap(lambda one: _question(program, one))(carry)


def arrive(program: Program, carry: loop.Carry, sheet: Any) -> tuple[loop.Carry, jax.Array]:
    """All answers taken in: the carry, and the next questions with a last column that says which tokens have moved."""
    take = _take_feedback if program.local_rounds == 1 else _take_visit
    like = _answer(program)

    def one(carry: loop.Carry, row: Any) -> tuple[loop.Carry, jax.Array]:
        answer = wire.unpack(row[:-2], like)
        new = take(program, carry, answer, row[-2].astype(jnp.int32))
        # All of the answer is looked at: a gradient that is not finite may wait in a window for rounds before it shows.
        numbers = [leaf for leaf in jax.tree.leaves(answer) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        moved = (row[-1] == 1) & loop.finite((numbers, new.state.x, new.state.queue, new.weights))
        carry = _select(moved, new, carry)
        return carry, jnp.append(_question(program, carry), moved.astype(jnp.uint32))

    return jax.vmap(one)(carry, sheet)


def block(program: Program, carry: loop.Carry, hop: Any) -> loop.Carry:
    """The carry at the start of the block of hops that begins here, with its random bits."""
    return _as_kept(program, jax.vmap(lambda one: loop.next_block(program.setup, one, hop))(carry))


def observe(program: Program, carry: loop.Carry, taken: Any) -> loop.Record:
    """The records of tokens that have taken so many samples."""
    return jax.vmap(lambda one, taken: loop.observe(program.setup, one, taken))(carry, taken)


def _as_kept(program: Program, carry: loop.Carry) -> loop.Carry:
    # Where agents make the rounds they draw levels themselves, and the hub has no use for them.
    return carry if program.local_rounds == 1 else carry._replace(state=wire.unstocked(carry.state))


def _question(program: Program, carry: loop.Carry) -> jax.Array:
    if program.local_rounds == 1:
        return wire.pack(carry.state.x)
    return wire.pack(Token(wire.unstocked(carry.state), carry.weights))


def _answer(program: Program) -> Any:
    """What an answer packs."""
    if program.local_rounds == 1:
        return zero_feedback(program.x0, program.num_constraints)[:4]
    return Visit(*wire.blank_token(program), wire.zero_sums(program))


def _take_feedback(program: Program, carry: loop.Carry, answer: Any, agent: Any) -> loop.Carry:
    return loop.take_in(program.setup, carry, Feedback(*answer, state=agent))


def _take_visit(program: Program, carry: loop.Carry, visit: Visit, agent: Any) -> loop.Carry:
    settled = tree.compensated_add(carry.settled, visit.recent)
    return carry._replace(state=visit.state, weights=visit.weights, settled=settled)


def _select(ready: Any, new: Any, old: Any) -> Any:
    """`tree.select` for trees with keys among their leaves, which never change."""

    def leaf(new: Any, old: Any) -> Any:
        return old if jnp.issubdtype(old.dtype, jax.dtypes.prng_key) else jnp.where(ready, new, old)

    return jax.tree.map(leaf, new, old)
