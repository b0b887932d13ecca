"""Questions that are on their way: one message at a time for each process, heard in the order of their answers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ergodrift.distributed.hosts import Crowd
from ergodrift.distributed.roster import Roster

if TYPE_CHECKING:
    from ray import ObjectRef

SOUNDED = 32  # agents of a crowd who are asked before a walk, where answers are judged by what others answer
POLL_INTERVAL = 0.1  # seconds to wait for any answer before looking at deadlines


class Message(NamedTuple):
    """What one process is asked: the tokens (rows) that stand with its agents, and which of these each is with."""

    peer: int
    agents: np.ndarray
    rows: np.ndarray
    asked: bytes = b""
    deadline: float = 0.0


class Heard(NamedTuple):
    """A message and what came of it: (rows, words) and which of these are answers; no words where nothing came."""

    message: Message
    words: np.ndarray | None
    good: np.ndarray


class Mail:
    """The questions of a walk that are not answered yet.

    A process has one message at a time. Tokens that come to it meanwhile wait, and go together in the next one: a slow
    agent is asked about many tokens at once, and none waits longer than two answers take.
    """

    def __init__(self, roster: Roster | Crowd, word: np.dtype) -> None:
        self.crowd = roster if isinstance(roster, Crowd) else None
        self.roster = roster.roster if isinstance(roster, Crowd) else roster
        self.word = word
        self.sent: dict[ObjectRef, Message] = {}
        self.busy: set[int] = set()

    def peers(self, agents: np.ndarray) -> np.ndarray:
        """The process of each of these agents."""
        return agents if self.crowd is None else self.crowd.hosts.host_of[agents]

    def send(self, peer: int, agents: np.ndarray, rows: np.ndarray, words: np.ndarray) -> None:
        """Ask a process that is not busy about these tokens."""
        if self.crowd is not None:
            words = np.concatenate([words, agents[:, None].astype(words.dtype)], axis=1)
            self._count(agents, words.shape[1] - 1)
            np.add.at(self.crowd.asked, agents, self.roster.rounds)
        asked = words.tobytes()
        message = Message(peer, agents, rows, asked, time.monotonic() + self.roster.patience)
        self.sent[self.roster._send(peer, asked)] = message  # type: ignore[reportPrivateUsage]
        self.busy.add(peer)

    def receive(self) -> list[Heard]:
        """What has come; waits for a moment where there is nothing yet."""
        ray, waiting = self.roster.ray, list(self.sent)
        if not waiting:
            return []
        ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        if not ready:
            ready, _ = ray.wait(waiting, num_returns=1, timeout=POLL_INTERVAL)
        now = time.monotonic()
        heard = []
        for ref in {*ready, *(ref for ref in waiting if self.sent[ref].deadline <= now)}:
            message = self.sent.pop(ref)
            reply = self.roster._reply(message.peer, message.asked, ref, message.deadline)  # type: ignore[reportPrivateUsage]
            if reply is None or isinstance(reply, bytes):
                self.busy.discard(message.peer)
                heard.append(self._read(message, reply))
            else:
                self.sent[reply] = message
        return sorted(heard, key=lambda one: one.message.peer)

    def _read(self, message: Message, reply: bytes | None) -> Heard:
        if reply is None:
            return Heard(message, None, np.zeros(len(message.rows), bool))
        words = np.frombuffer(reply, self.word).reshape(len(message.rows), -1)
        if self.crowd is None:
            return Heard(message, words, np.ones(len(message.rows), bool))
        good = words[:, -1] == 1
        self._count(message.agents, words.shape[1] - 1)
        for agent in np.unique(message.agents[~good]).tolist():
            self.crowd.set_aside(agent, "it could not answer; the log of its process says why")
        return Heard(message, words[:, :-1], good & self._believed(message.agents, words[:, :-1], good))

    def _believed(self, agents: np.ndarray, words: np.ndarray, good: np.ndarray) -> np.ndarray:
        """Which answers are within bounds; who sent others is set aside."""
        assert self.crowd is not None
        if self.crowd.bounds is None or not good.any():
            return good
        numbers = self.crowd.bounds.layout.numbers(words[good].tobytes())
        complaints = self.crowd.bounds.complaints(agents[good], numbers)
        for agent, complaint in complaints.items():
            self.crowd.set_aside(agent, complaint)
        return ~np.isin(agents, list(complaints))

    def sound_out(self, question: bytes) -> None:
        """Ask some agents of a crowd the same, so that no first answer has to be believed for want of others.

        Not all, since they would load their data for it.
        """
        assert self.crowd is not None
        there = np.flatnonzero(self.crowd.present)
        asked = np.unique(there[np.linspace(0, len(there) - 1, SOUNDED).astype(int)])
        peers, words = self.peers(asked), np.frombuffer(question, self.word)
        for peer in np.unique(peers).tolist():
            agents = asked[peers == peer]
            self.send(peer, agents, np.arange(len(agents)), np.tile(words, (len(agents), 1)))
        while self.sent:
            self.receive()

    def _count(self, agents: np.ndarray, words: int) -> None:
        assert self.crowd is not None
        np.add.at(self.crowd.bytes, agents, words * self.word.itemsize)
        self.crowd.messages[np.unique(agents)] += 1
