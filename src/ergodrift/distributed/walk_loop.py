"""The loop of a walk: hop by hop, what was seen, and the checkpoint that a killed hub resumes from."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from ergodrift._core.progress import Progress
from ergodrift.data.chain import MarkovChain
from ergodrift.data.sampler import BLOCK
from ergodrift.data.source import level_keys, path_keys
from ergodrift.distributed.hosts import Crowd
from ergodrift.distributed.outcome import Arrivals
from ergodrift.distributed.peers import RETRY_DELAY, QuorumError
from ergodrift.distributed.plan import HopPlan, SingleTokenPlan
from ergodrift.distributed.roster import Roster
from ergodrift.distributed.telemetry import Callback
from ergodrift.distributed.tokens import DIVERGED, MOVED, Hub, next_places, route
from ergodrift.engine import loop
from ergodrift.engine.checkpoint import Checkpoint
from ergodrift.engine.run import NonFiniteError
from ergodrift.types import Key

SAVE_INTERVAL = 2.0  # seconds after which a walk is written to its checkpoint, however many hops they were
PROGRESS_INTERVAL = 0.5  # seconds between two looks at the bar, where a block of hops takes longer


class WalkLoop:
    """All tokens of a walk, between two hops.

    Attributes:
        importance: (agents,) what answers are weighed by, if by anything.
        tell: who is told how the walk goes on, if anybody.
        arrivals: the order in which answers came; all tokens hop together here, so there is but one.
        tokens: what the core's loop carries for each seed.
        place: (tokens,) the agent each stands at.
        target: (tokens,) the agent each is to visit next.
        made: (tokens,) hops that each has made.
        hop: the fewest of these; all make them together here.
        blocks: (tokens,) blocks of hops whose random bits are drawn.
        held: (tokens,) hops without a round.
        unanswered: for each agent, how many of these were for want of its answer.
        visits: for each agent, answers absorbed.
        as_drawn: whether all tokens went where they were to go, and had an answer there.
        records: what was recorded so far.
    """

    arrivals: Arrivals | None = None
    importance: np.ndarray | None = None
    tell: Callback | None = None

    def __init__(
        self,
        hub: Hub,
        roster: Roster | Crowd,
        chain: MarkovChain,
        keys: Key,
        paths: np.ndarray | None,
        hops: int,
        grid: np.ndarray,
        quorum: int,
    ) -> None:
        self.hub, self.roster, self.chain, self.paths, self.hops, self.quorum = hub, roster, chain, paths, hops, quorum
        self.sampler = jax.tree.map(jnp.asarray, chain.sampler())
        starts, first = jax.vmap(self.sampler.start)(path_keys(keys))
        self.target = np.asarray(first) if paths is None else paths[:, 0]
        self.place = self.target
        self.tokens = hub.start(starts, level_keys(keys))
        # The solution is taken at the end, whether or not that is recorded.
        self.slots = {int(hop): slot for slot, hop in enumerate(np.union1d(grid, [hops]))}
        shapes = jax.eval_shape(hub.observe, self.tokens, jnp.zeros(len(keys), jnp.int32))
        room = (len(keys), len(self.slots))
        self.records: loop.Record = jax.tree.map(lambda leaf: np.zeros((*room, *leaf.shape[1:]), leaf.dtype), shapes)
        self.hop = 0
        self.made, self.blocks = (np.zeros(len(keys), np.int64) for _ in range(2))
        self.held = np.zeros(len(keys), np.int64)
        self.visits, self.unanswered = ([0] * len(roster.present) for _ in range(2))
        self.as_drawn = True
        self.rate = 0.0
        self.saved: Checkpoint | None = None
        self.save_every = 0
        self.save_interval = SAVE_INTERVAL

    def resume(self, saved: Checkpoint, save_every: int) -> None:
        """Resume from what was saved, and save every so many hops. Agents that were set aside have another chance."""
        self.saved, self.save_every = saved, save_every
        roster = self.roster
        carry, self.records, where, counts, numbers = saved.restore(self._snapshot())
        self.tokens = self.hub.pack(carry)
        self.place, self.target, self.held, self.made, self.blocks = where
        self.visits, self.unanswered, roster.messages, roster.bytes, roster.asked, roster.restarts = counts.tolist()
        self.hop, roster.late, self.as_drawn = int(self.made.min()), int(numbers[0]), bool(numbers[1])

    def _snapshot(self) -> tuple[loop.Carry, loop.Record, np.ndarray, np.ndarray, np.ndarray]:
        """All that a checkpoint holds."""
        roster = self.roster
        counts = np.array([self.visits, self.unanswered, roster.messages, roster.bytes, roster.asked, roster.restarts])
        where = np.stack([self.place, self.target, self.held, self.made, self.blocks]).astype(np.int64)
        return (
            self.hub.unpack(self.tokens),
            self.records,
            where,
            counts,
            np.array([roster.late, self.as_drawn]),
        )

    def save(self, last: bool = False) -> bool:
        """Write the walk to its checkpoint, if it has one; whether it is there now."""
        if self.saved is None:
            return False
        self._count_hops()
        began = time.monotonic()
        written = self.saved.save(self._snapshot(), last=last)
        # A twentieth of the time is spent on it at most.
        self.save_interval = max(SAVE_INTERVAL, 20 * (time.monotonic() - began))
        return written

    def replay(self, arrivals: Arrivals) -> None:
        raise NotImplementedError("all tokens hop together: there is no order to replay")

    def _count_hops(self) -> None:
        self.made[:] = self.hop
        self.blocks[:] = -(-self.hop // BLOCK)

    def run(self, name: str, keep: bool = False) -> None:
        """Make all hops that are left. What can be done while agents think is done then, not between two questions."""
        bar, began, first = Progress(name, self.hops), time.monotonic(), self.hop
        shown, roster = began, self.roster
        assert not isinstance(roster, Crowd), "those who share processes are asked without a barrier"
        questions, path = np.asarray(self.hub.questions(self.tokens)), None
        plan = self._plan(self._targets_present())
        try:
            while self.hop < self.hops:
                answers = roster.ask(plan.asked(questions))
                self._observe()
                now = time.monotonic()
                if self.saved is not None and self.hop > first and self._save_is_due(now):
                    self.save()
                if self.hop == first + 1:  # what is compiled is compiled by now
                    began = now
                if self.hop % BLOCK == 0 or now > shown + PROGRESS_INTERVAL:
                    shown, self.rate = now, self._rate(first, began)
                    bar.update(self.hop, self._note())
                    self._tell(now - began)
                if self.hop % BLOCK == 0:
                    hops = np.full(len(self.place), self.hop, np.int32)
                    self.tokens = self.hub.next_block(self.tokens, hops, np.ones(len(hops), bool))
                    path = None
                next_plan = plan
                if self.roster.all_present:  # else it is not known who will be there next
                    path = self._path() if path is None else path
                    next_plan = self._plan(path[self.hop % BLOCK])

                found = answers()
                self.tokens, questions = self.hub.absorb(self.tokens, plan.rows_of(found))
                outcomes = questions[:, -1]
                if not np.count_nonzero(outcomes) and self.roster.all_present:  # all have MOVED, which is 0
                    self.place, self.target = plan.target, next_plan.target
                    for agent, answer in found.items():
                        self.visits[agent] += len(answer) // self.hub.answer_bytes
                    self.hop += 1
                    plan = next_plan
                    continue
                self._check_sound(outcomes, plan.target)
                self.as_drawn = False
                self._count(plan, found, outcomes == MOVED)
                self.target, path = self._next(), None
                self.hop += 1
                self._check_quorum()
                plan = self._plan(self._targets_present())
            self.rate = self._rate(first, began)
            self._observe()
            self._tell(time.monotonic() - began)
        finally:
            bar.close()
        if self.hop > first:
            self.save(last=True)

    def _save_is_due(self, now: float) -> bool:
        return self.hop % self.save_every == 0 or now > self.saved.saved_at + self.save_interval  # type: ignore[union-attr]

    def _plan(self, target: np.ndarray) -> HopPlan | SingleTokenPlan:
        return (SingleTokenPlan if len(target) == 1 else HopPlan)(self.hub, target, self.roster.present)

    def _path(self) -> np.ndarray:
        """(BLOCK, tokens) where tokens go after each hop of this block, the one to their targets and those after it."""
        if self.paths is None:
            return np.asarray(route(self.sampler, self.target, self.tokens.resting.indices, self.hop % BLOCK))
        after = self.hop - self.hop % BLOCK + 1 + np.arange(BLOCK)
        return self.paths[:, np.minimum(after, self.hops - 1)].T

    def _next(self) -> np.ndarray:
        """Where tokens go after this hop from where they stand."""
        if self.paths is None:
            return np.asarray(next_places(self.sampler, self.place, self.tokens.resting.indices, self.hop % BLOCK))
        return self.paths[:, min(self.hop + 1, self.hops - 1)]

    def _check_sound(self, outcomes: np.ndarray, target: np.ndarray) -> None:
        """Stop where a token would become infinite by an answer that is finite: nobody can say whose fault that is."""
        for token in np.flatnonzero(outcomes == DIVERGED):
            agent = int(target[token])
            if self.roster.is_to_blame(agent):
                self.roster.set_aside(agent, "a token would be infinite by its answer, which is far beyond others'")
                continue
            raise self._diverged(int(token), agent, self.hop + 1)

    def _diverged(self, token: int, agent: int, hop: int) -> NonFiniteError:
        return NonFiniteError(
            f"token {token}: its point, queue or weights are not finite after hop {hop}, though the answer of "
            f"{self.roster.network.names[agent]} is; take smaller steps or other units, or look at the data there"
        )

    def _count(self, plan: HopPlan | SingleTokenPlan, found: dict[int, bytes], moved: np.ndarray) -> None:
        """Note who has moved, and who has not for want of a good answer."""
        for agent in np.unique(plan.target[~moved]).tolist():
            if agent in found and agent not in self.roster.reasons:
                self.roster.set_aside(agent, "its answer is not finite")
        self.held += ~moved
        for agent, has in zip(plan.target.tolist(), moved.tolist(), strict=True):
            (self.visits if has else self.unanswered)[agent] += 1
        self.place = np.where(moved, plan.target, self.place)

    def _targets_present(self) -> np.ndarray:
        """Where tokens go at this hop: to their targets, or where they stand, if these are not there."""
        roster, deadline = self.roster, time.monotonic() + self.roster.patience
        roster.poll()
        while not roster.present[self.target].all():
            # A walk that is told where to go has no other place to go to.
            instead = self.target if self.paths is not None else self.place
            target = np.where(roster.present[self.target], self.target, instead)
            hopeless = not any(int(agent) in roster.probes for agent in target)
            if roster.present[target].any() or hopeless or time.monotonic() > deadline:
                return target
            time.sleep(RETRY_DELAY)  # all tokens wait for agents that may come back
            roster.poll()
        return self.target

    def _check_quorum(self) -> None:
        """Stop where too few agents are left, and say where the walk can be found."""
        roster, left = self.roster, self.roster.num_present
        if left < self.quorum:
            kept, where = self.save(), "was not kept (pass checkpoint=...)"
            if self.saved is not None:
                where = f"is kept in {self.saved.path}" if kept else f"could not be written to {self.saved.path}"
            lost = "; ".join(f"{name}: {reason}" for name, reason in roster.absences.items())
            raise QuorumError(
                f"{left} of {roster.num_agents} agents left at hop {self.hop}, below quorum={self.quorum} ({lost}); "
                f"the walk {where}"
            )

    @property
    def components(self) -> int:
        """How many connected components the agents form that are not set aside."""
        left = [agent for agent in range(len(self.visits)) if agent not in self.roster.reasons]
        edges = scipy.sparse.csr_array(self.chain.P)[left][:, left]
        return int(scipy.sparse.csgraph.connected_components(edges, directed=False)[0])

    def _due(self) -> np.ndarray:
        """The tokens of which a record is due."""
        return np.arange(len(self.place) if self.hop in self.slots else 0)

    def _observe(self) -> None:
        """Keep the records that are due."""
        due = self._due()
        if not len(due):
            return
        self._count_hops()
        made = self.made
        seen = self.hub.observe(self.tokens, jnp.asarray((made - self.held) * self.hub.spec.local_rounds, jnp.int32))
        slots = [self.slots[hop] for hop in made[due].tolist()]
        for kept, new in zip(jax.tree.leaves(self.records), jax.tree.leaves(seen), strict=True):
            kept[due, slots] = np.asarray(new)[due]
        sums = np.asarray(seen.loss_sum) + np.asarray(seen.constraint_sum).sum(axis=-1)
        if not np.isfinite(sums).all():
            token = int(np.argmin(np.isfinite(sums)))
            raise NonFiniteError(f"token {token}: a sum of losses or constraints is not finite at hop {made[token]}")

    def _rate(self, first: int, began: float) -> float:
        """Hops per second of all tokens together, since the second hop."""
        return max(self.hop - first - 1, 0) * len(self.place) / max(time.monotonic() - began, 1e-9)

    def _tell(self, seconds: float) -> None:
        """Tell whoever wants to know: means over all tokens and their samples so far."""
        if self.tell is None:
            return
        self._count_hops()
        taken = np.maximum((self.made - self.held) * self.hub.spec.local_rounds, 1)
        seen = self.hub.observe(self.tokens, jnp.asarray(taken, jnp.int32))
        violation = np.asarray(seen.constraint_sum) / taken[:, None]
        numbers = {"hop": self.hop, "seconds": seconds, "rate": self.rate, "visits": int(np.sum(self.visits))}
        numbers |= {"held": int(self.held.sum()), "bytes": int(np.sum(self.roster.bytes))}
        numbers |= {"loss": float(np.mean(np.asarray(seen.loss_sum) / taken)), "queue": float(np.mean(seen.queue))}
        self.tell(numbers | {f"constraint_{i}": float(value) for i, value in enumerate(violation.mean(axis=0))})

    def _note(self) -> str:
        visits = f"{np.min(self.visits):,} to {np.max(self.visits):,} visits per agent"
        return f"; {self.rate:,.0f} hops/s, {visits}, {sum(self.roster.bytes) / 1e6:,.1f} MB"
