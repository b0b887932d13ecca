"""The loop of a walk without a barrier: each token moves on as soon as its own answer is there."""

from __future__ import annotations

import time

import numpy as np

from ergodrift._core.progress import Progress
from ergodrift.data.sampler import BLOCK
from ergodrift.distributed.hosts import Crowd
from ergodrift.distributed.mail import Heard, Mail, Message
from ergodrift.distributed.outcome import Arrivals
from ergodrift.distributed.peers import RETRY_DELAY
from ergodrift.distributed.tokens import DIVERGED, MOVED
from ergodrift.distributed.walk_loop import PROGRESS_INTERVAL, WalkLoop


class FreeLoop(WalkLoop):
    """`WalkLoop` for many tokens, each with its own count of hops, `made`.

    All tokens are absorbed by one compiled function whatever has come, those without an answer unchanged: a token's
    numbers come from the same row of the same program, and so do not depend on who came with it.
    """

    def _begin(self, keep: bool) -> None:
        self.questions = np.array(self.hub.questions(self.tokens))
        self.mail, self.keep = Mail(self.roster, self.hub.word), keep
        self.log: list[np.ndarray] = []  # one (5, visits) array a turn, the rows those of `Arrivals`
        self.messages_heard = self.turns = 0
        self.kept = self.hop  # the hop at which the walk was last written to its checkpoint
        self.waiting_since = np.full(len(self.place), np.inf)  # tokens none of whose agents is there
        self.place, self.target = np.array(self.place), np.array(self.target)
        self.visits, self.unanswered = np.array(self.visits), np.array(self.unanswered)
        self.recorded = np.isin(np.arange(self.hops + 1), list(self.slots))
        self.due = self.recorded[self.made]  # a record is to be taken before the next answer
        self.idle = self.made < self.hops  # tokens that are not asked about at the moment
        if isinstance(self.roster, Crowd):  # as arrays, where a checkpoint has left lists
            self.roster.messages, self.roster.bytes = np.array(self.roster.messages), np.array(self.roster.bytes)
            self.roster.asked = np.array(self.roster.asked)
        self.moves = self.chain.sampler()
        self.bits = np.array(self.tokens.resting.indices)  # (tokens, BLOCK), of each token's present block

    def run(self, name: str, keep: bool = False) -> None:
        """Make all hops that are left; `keep` the order in which answers come, in `arrivals`."""
        self._begin(keep)
        bar, first = Progress(name, self.hops), int(self.made.sum())
        began = shown = time.monotonic()
        try:
            while self.idle.any() or self.mail.sent:
                self.roster.poll()
                self._send()
                self._observe()
                if self.turns == 1:  # what is compiled is compiled by now
                    began, first = time.monotonic(), int(self.made.sum())
                heard = self.mail.receive()
                if heard:
                    self._absorb(heard)
                elif not self.mail.sent:
                    time.sleep(RETRY_DELAY)  # all wait for agents that may come back
                self._check_quorum()
                now = time.monotonic()
                if self.saved is not None and self._save_is_due(now):
                    self.save()
                    self.kept = self.hop
                if now > shown + PROGRESS_INTERVAL:
                    shown, self.rate = now, (int(self.made.sum()) - first) / max(now - began, 1e-9)
                    bar.update(self.hop, self._note())
                    self._tell(now - began)
            self.rate = (int(self.made.sum()) - first) / max(time.monotonic() - began, 1e-9)
            self._observe()
            self._tell(time.monotonic() - began)
            self._note_arrivals()
        finally:
            bar.close()
        self.save(last=True)

    def replay(self, arrivals: Arrivals) -> None:
        """Make the hops of a walk again, in the order in which its answers came."""
        self._begin(keep=True)
        turns = np.flatnonzero(np.diff(arrivals.turn, prepend=-1))
        for first, last in zip(turns, [*turns[1:], len(arrivals.turn)], strict=True):
            part = Arrivals(*(column[first:last] for column in arrivals))
            heard: list[Heard] = []
            for number in np.unique(part.message):
                chosen = part.message == number
                rows, agents = part.token[chosen], part.agent[chosen]
                peer = int(self.mail.peers(agents)[0])
                if part.answered[chosen].any():
                    self.mail.send(peer, agents, rows, self.questions[rows, :-1])
                else:
                    heard.append(Heard(Message(peer, agents, rows), None, np.zeros(len(rows), bool)))
            while self.mail.sent:
                heard += self.mail.receive()
            self._observe()
            self._absorb(sorted(heard, key=lambda one: one.message.peer))
        self._observe()
        self._note_arrivals()

    def _save_is_due(self, now: float) -> bool:
        assert self.saved is not None
        return self.hop >= self.kept + self.save_every or now > self.saved.saved_at + self.save_interval

    def _note_arrivals(self) -> None:
        if self.keep:
            self.arrivals = Arrivals(*np.concatenate([np.zeros((5, 0), np.int64), *self.log], axis=1))

    def _send(self) -> None:
        """Ask every agent that is not busy about all tokens that stand there."""
        rows = np.flatnonzero(self.idle)
        if not len(rows):
            return
        present, asked = self.roster.present, self.target[rows]
        if not self.roster.all_present and self.paths is None:
            # Where its target is not there, a token takes its sample where it stands.
            asked = np.where(present[asked], asked, self.place[rows])
        there = present[asked]
        self._hold_or_wait(rows[~there], asked[~there])
        rows, asked = rows[there], asked[there]
        if not len(rows):
            return
        self.waiting_since[rows] = np.inf
        peers = self.mail.peers(asked)
        order = np.argsort(peers, kind="stable")
        names, starts = np.unique(peers[order], return_index=True)
        for peer, chosen in zip(names.tolist(), np.split(order, starts[1:]), strict=True):
            if peer not in self.mail.busy:
                own = rows[chosen]
                self.idle[own] = False
                self.mail.send(peer, asked[chosen], own, self.questions[own, :-1])

    def _hold_or_wait(self, rows: np.ndarray, asked: np.ndarray) -> None:
        """Tokens none of whose agents is there wait for them as long as they may come back, within patience."""
        if not len(rows):
            return
        now = time.monotonic()
        self.waiting_since[rows] = np.minimum(self.waiting_since[rows], now)
        hopeless = np.array([int(agent) not in self.roster.probes for agent in asked])
        over = hopeless | (now > self.waiting_since[rows] + self.roster.patience)
        if over.any():
            nobody = Message(-1, asked[over], rows[over])
            self._absorb([Heard(nobody, None, np.zeros(len(nobody.rows), bool))])

    def _absorb(self, heard: list[Heard]) -> None:
        """Take in what came: each of these tokens has made a hop, with a round or without."""
        rows = np.concatenate([one.message.rows for one in heard])
        self._next_blocks(rows)
        answers = np.zeros((len(self.place), self.hub.width + 2), self.hub.word)
        for message, words, good in heard:
            answers[message.rows, -2] = message.agents
            if words is not None:
                answers[message.rows, :-2] = words if self.importance is None else self._weighed(words, message.agents)
                answers[message.rows, -1] = good
        self.tokens, questions = self.hub.absorb(self.tokens, answers)
        self.questions[rows] = questions[rows]
        asked, outcomes = answers[rows, -2].astype(np.int32), questions[rows, -1]
        self._check_outcomes(rows, asked, outcomes)
        moved, answered = outcomes == MOVED, answers[rows, -1] == 1
        for agent in np.unique(asked[answered & ~moved]).tolist():
            if agent not in self.roster.reasons:
                self.roster.set_aside(agent, "its answer is not finite")
        if self.keep:
            numbers = np.repeat(np.arange(len(heard)) + self.messages_heard, [len(one.message.rows) for one in heard])
            self.log.append(np.stack([rows, asked, numbers, np.full(len(rows), self.turns), answered]).astype(np.int64))
        self.messages_heard += len(heard)
        self.turns += 1
        self._move(rows, asked, moved)

    def _weighed(self, words: np.ndarray, agents: np.ndarray) -> np.ndarray:
        """Answers times the importance of who gave them: all their words are numbers of the walk's precision."""
        assert self.importance is not None
        kind = np.dtype(f"f{words.itemsize}")
        return (words.view(kind) * self.importance[agents, None].astype(kind)).view(words.dtype)

    def _check_outcomes(self, rows: np.ndarray, asked: np.ndarray, outcomes: np.ndarray) -> None:
        for token, agent in zip(rows[outcomes == DIVERGED], asked[outcomes == DIVERGED].tolist(), strict=True):
            if not self.roster.is_to_blame(agent):
                raise self._diverged(int(token), agent, int(self.made[token]) + 1)
            self.roster.set_aside(agent, "a token would be infinite by its answer, which is far beyond others'")

    def _move(self, rows: np.ndarray, asked: np.ndarray, moved: np.ndarray) -> None:
        """Count the hop of these tokens, and look where they go next."""
        self.as_drawn = self.as_drawn and bool(moved.all()) and bool((asked == self.target[rows]).all())
        self.held[rows] += ~moved
        np.add.at(self.visits, asked[moved], 1)
        np.add.at(self.unanswered, asked[~moved], 1)
        self.place[rows[moved]] = asked[moved]
        if self.paths is None:
            self.target[rows] = self._moved(self.place[rows], self.bits[rows, self.made[rows] % BLOCK])
        self.made[rows] += 1
        if self.paths is not None:
            self.target[rows] = self.paths[rows, np.minimum(self.made[rows], self.hops - 1)]
        self.idle[rows] = self.made[rows] < self.hops
        self.due[rows] = self.recorded[self.made[rows]]
        self.hop = int(self.made.min())

    def _moved(self, places: np.ndarray, bits: np.ndarray) -> np.ndarray:
        """`Transitions.move`, for tokens whose hops differ."""
        thresholds, targets = np.asarray(self.moves.thresholds), np.asarray(self.moves.targets)
        return targets[places, np.sum(bits[:, None] >= thresholds[places], axis=1)]

    def _next_blocks(self, rows: np.ndarray) -> None:
        """Draw the blocks of hops that these tokens need for this hop; others who need theirs get them as well."""
        if not (self.made[rows] // BLOCK >= self.blocks[rows]).any():
            return
        due = (self.made // BLOCK >= self.blocks) & (self.made < self.hops)
        self.tokens = self.hub.next_block(self.tokens, self.made.astype(np.int32), due)
        self.blocks += due
        self.bits = np.array(self.tokens.resting.indices)

    def _due(self) -> np.ndarray:
        due = np.flatnonzero(self.due)
        self.due[:] = False
        return due

    def _count_hops(self) -> None:
        pass  # counted as they are made
