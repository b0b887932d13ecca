"""Tokens on their way: hop by hop, what was seen, and the checkpoint that a killed hub goes on from."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift.chain import MarkovChain
from ergodrift.checkpoint import Checkpoint
from ergodrift.distributed.network import QuorumError
from ergodrift.distributed.roll import AGAIN, Roll
from ergodrift.distributed.tokens import Hub, Moves
from ergodrift.progress import Progress
from ergodrift.sampler import BLOCK
from ergodrift.source import level_keys, path_keys


class Trip:
    """All tokens of a walk, between two hops.

    Attributes:
        carry: the tokens, as the core's loop carries seeds.
        place: (tokens,) the agent each stands at.
        target: (tokens,) the agent each is to visit next.
        hop: hops made.
        held: (tokens,) hops without a round.
        visits: (agents,) answers taken in.
        records: what was recorded so far.
    """

    def __init__(
        self, hub: Hub, roll: Roll, chain: MarkovChain, keys: Any, paths: Any, hops: int, grid: np.ndarray, quorum: int
    ) -> None:
        self.hub, self.roll, self.paths, self.hops, self.quorum = hub, roll, paths, hops, quorum
        self.moves = Moves(chain.sampler())
        starts, first = jax.vmap(chain.sampler().start)(path_keys(keys))
        self.target = np.asarray(first) if paths is None else paths[:, 0]
        self.place = self.target
        self.carry = hub.start(starts, level_keys(keys))
        self.stops = np.union1d(grid, [hops])  # the solution is taken at the end, whether or not that is recorded
        shapes = jax.eval_shape(hub.observe, self.carry, jnp.zeros(len(keys), jnp.int32))
        room = (len(keys), len(self.stops))
        self.records: Any = jax.tree.map(lambda leaf: np.zeros((*room, *leaf.shape[1:]), leaf.dtype), shapes)
        self.hop = 0
        self.held = np.zeros(len(keys), np.int64)
        self.visits = np.zeros(len(roll.present), np.int64)
        self.saved: Checkpoint | None = None
        self.every = 0

    def keep(self, saved: Checkpoint, every: int) -> None:
        """Go on from what was saved, and save every so many hops."""
        self.saved, self.every = saved, every
        roll = self.roll
        self.carry, self.records, where, counts, numbers = saved.restore(self._whole())
        self.place, self.target, self.held = where
        self.visits, roll.messages, roll.bytes, roll.asked, roll.restarts, aside = counts
        self.hop, roll.late = (int(number) for number in numbers)
        for agent in np.flatnonzero(aside):
            roll.set_aside(int(agent), "it was before the walk was resumed")

    def _whole(self) -> Any:
        roll = self.roll
        aside = np.isin(np.arange(len(self.visits)), list(roll.reasons)).astype(np.int64)
        counts = np.stack([self.visits, roll.messages, roll.bytes, roll.asked, roll.restarts, aside])
        where = np.stack([self.place, self.target, self.held]).astype(np.int64)
        return self.carry, self.records, where, counts, np.array([self.hop, roll.late])

    def save(self) -> None:
        """Write the walk to its checkpoint, if it has one."""
        if self.saved is not None:
            self.saved.save(self._whole())

    def go(self, name: str) -> None:
        """Make all hops that are left."""
        bar, began, first = Progress(name, self.hops), time.monotonic(), self.hop
        questions, ahead = np.asarray(self.hub.leave(self.carry)), np.asarray(self.carry.indices)
        self._observe()
        try:
            while self.hop < self.hops:
                at = self.hop % BLOCK
                if at == 0:
                    self.carry = self.hub.block(self.carry, np.int32(self.hop))
                    ahead = np.asarray(self.carry.indices)
                    bar.update(self.hop, self._note(time.monotonic() - began, first))
                questions = self._visit(questions)
                self.hop += 1
                if self.paths is None:
                    self.target = self.moves(self.place, ahead[:, at])
                elif self.hop < self.hops:
                    self.target = self.paths[:, self.hop]
                self._observe()
                if self.every and self.hop % self.every == 0:
                    self.save()
        finally:
            bar.close()
        self.save()

    def _visit(self, questions: np.ndarray) -> np.ndarray:
        """One hop of all tokens; the next questions."""
        roll, target = self.roll, self._allowed()
        answers, answered = np.empty((len(target), self.hub.answer_width), np.uint32), roll.present[target]
        groups = {int(agent): np.flatnonzero(answered & (target == agent)) for agent in np.unique(target[answered])}
        heard = roll.ask({agent: questions[rows] for agent, rows in groups.items()})
        for agent, rows in groups.items():
            if agent in heard:
                answers[rows] = heard[agent]
            else:
                answered[rows] = False
        self.carry, questions, moved = self.hub.arrive(self.carry, answers, target, answered)
        moved = np.asarray(moved)
        if not moved.all():
            for agent in np.unique(target[answered & ~moved]):
                roll.set_aside(int(agent), "its answer is not finite")
            self.held += ~moved
        self.place = np.where(moved, target, self.place)
        self.visits += np.bincount(target[moved], minlength=len(self.visits))
        self._check_quorum()
        return np.asarray(questions)

    def _allowed(self) -> np.ndarray:
        """Where tokens go at this hop: to their targets, or nowhere, where these are not there."""
        roll = self.roll
        while True:
            roll.look()
            there = roll.present[self.target]
            if there.all():
                return self.target
            # A walk that is told where to go has no other place to go to.
            target = self.target if self.paths is not None else np.where(there, self.target, self.place)
            blocked = ~roll.present[target]
            if not blocked.all() or not any(int(agent) in roll.probes for agent in target):
                return target
            time.sleep(AGAIN)  # every token waits for someone who may come back

    def _check_quorum(self) -> None:
        left = int(self.roll.present.sum())
        if left >= self.quorum:
            return
        self.hop += 1  # this hop is made
        self.save()
        where = "was not kept: pass checkpoint=" if self.saved is None else f"is kept in {self.saved.path}"
        gone = ", ".join(np.array(self.roll.network.names)[~self.roll.present])
        raise QuorumError(f"{left} agents are left, below quorum={self.quorum}: lost {gone}; the walk {where}")

    def _observe(self) -> None:
        slot = int(np.searchsorted(self.stops, self.hop))
        if self.stops[slot] == self.hop:
            taken = (self.hop - self.held) * self.hub.program.local_rounds
            seen = self.hub.observe(self.carry, jnp.asarray(taken, jnp.int32))
            for kept, new in zip(jax.tree.leaves(self.records), jax.tree.leaves(seen), strict=True):
                kept[:, slot] = np.asarray(new)

    def _note(self, elapsed: float, first: int) -> str:
        rate = (self.hop - first) * len(self.place) / max(elapsed, 1e-9)
        visits = f"{self.visits.min():,} to {self.visits.max():,} visits an agent"
        return f"; {rate:,.0f} hops/s, {visits}, {self.roll.bytes.sum() / 1e6:,.1f} MB"
