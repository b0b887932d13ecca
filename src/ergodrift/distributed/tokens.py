"""The tokens at the hub: the carry of the core's own loop, one row a token, with feedback that comes from elsewhere."""

from __future__ import annotations

import functools
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


@functools.partial(jax.jit, static_argnames="local_rounds")
def begin(setup: loop.Setup, x0: Any, num_constraints: Any, starts: Any, levels: Any, local_rounds: int) -> loop.Carry:
    """The carry before the first hop, one row a token."""
    return _as_kept(loop.start(setup, x0, len(num_constraints), starts, levels), local_rounds)


def _as_kept(carry: loop.Carry, local_rounds: int) -> loop.Carry:
    # Where agents make the rounds they draw levels themselves, and the hub has no use for them.
    return carry if local_rounds == 1 else carry._replace(state=wire.unstocked(carry.state))


class Hub:
    """The compiled functions of a walk: `leave` asks, `arrive` takes answers in, `block` draws for the next 64 hops."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.setup = jax.tree.map(jnp.asarray, program.setup)
        self.local = program.local_rounds > 1
        answer = self._visit() if self.local else zero_feedback(program.x0, program.num_constraints)[:4]
        self.answer_width = wire.width(answer)
        self.leave = jax.jit(jax.vmap(self._question))
        self._arrived = wire.bound(self._arrive, self.setup, donate=True)
        self.block = wire.bound(self._block, self.setup, donate=True)
        self.observe = wire.bound(jax.vmap(loop.observe, (None, 0, 0)), self.setup)

    def start(self, starts: Any, levels: Any) -> loop.Carry:
        program = self.program
        return begin(
            self.setup, program.x0, (0,) * program.num_constraints, starts, levels, local_rounds=program.local_rounds
        )

    def arrive(self, carry: loop.Carry, answers: Any, agents: Any, answered: Any) -> tuple[loop.Carry, Any, Any]:
        """The carry after all answers, the next questions, and which tokens have moved.

        A token without an answer, or with one that is not finite, stays as it is, to the last bit.
        """
        drawn = {"sampler": carry.sampler, "indices": carry.indices}  # of no use here, and every leaf costs a call time
        new, questions, moved = self._arrived(carry._replace(sampler=None, indices=None), answers, agents, answered)
        return new._replace(**drawn), np.asarray(questions), np.asarray(moved)

    def _visit(self) -> Visit:
        return Visit(*wire.blank_token(self.program), wire.zero_sums(self.program))

    def _question(self, carry: loop.Carry) -> jax.Array:
        return wire.pack(Token(wire.unstocked(carry.state), carry.weights) if self.local else carry.state.x)

    def _arrive(
        self, setup: loop.Setup, carry: loop.Carry, answers: Any, agents: Any, answered: Any
    ) -> tuple[loop.Carry, Any, Any]:
        take = self._take_visit if self.local else self._take_feedback

        def one(carry: loop.Carry, words: Any, agent: Any, answered: Any) -> tuple[loop.Carry, jax.Array, jax.Array]:
            new = take(setup, carry, words, agent)
            sums = tree.add(new.recent, tree.subtract(new.settled[0], carry.settled[0]))
            moved = answered & loop.finite((new.state.x, new.state.queue, sums, new.weights))
            carry = _select(moved, new, carry)
            return carry, self._question(carry), moved

        return jax.vmap(one)(carry, answers, agents, answered)

    def _take_feedback(self, setup: loop.Setup, carry: loop.Carry, words: Any, agent: Any) -> loop.Carry:
        like = zero_feedback(self.program.x0, self.program.num_constraints)[:4]
        return loop.take_in(setup, carry, Feedback(*wire.unpack(words, like), state=agent))

    def _take_visit(self, setup: loop.Setup, carry: loop.Carry, words: Any, agent: Any) -> loop.Carry:
        visit: Visit = wire.unpack(words, self._visit())
        settled = tree.compensated_add(carry.settled, visit.recent)
        return carry._replace(state=visit.state, weights=visit.weights, settled=settled)

    def _block(self, setup: loop.Setup, carry: loop.Carry, hop: Any) -> loop.Carry:
        onward = jax.vmap(lambda one: loop.next_block(setup, one, hop))
        return _as_kept(onward(carry), self.program.local_rounds)


def _select(ready: Any, new: Any, old: Any) -> Any:
    """`tree.select` for trees with keys among their leaves, which never change."""
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(lambda a, b: b if is_key(b) else jnp.where(ready, a, b), new, old)
