"""Who is present: questions to agents, asked again after a crash until patience ends; what they cost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ergodrift.distributed.network import RETRY_DELAY, Network

if TYPE_CHECKING:
    from ray import ObjectRef

POLL_INTERVAL = 1.0  # seconds to wait for one answer before looking at the others
MAX_MISSES = 3  # how often in a row an agent may be away when asked

log = logging.getLogger("ergodrift.distributed")


class Roster:
    """The conversation of one walk with its agents.

    A question and its answer belong together by Ray's own reference, and a hop is made when its answers are absorbed,
    once. An agent whose process or node died is asked again until `patience` is over. From then on it is away, and not
    asked until it responds again; its late answer, to a hop already made, is thrown away. An agent whose answer is
    wrong is set aside for good, and so is one that responds, and yet has no answer in time again and again.

    Attributes:
        present: (agents,) who is neither away nor set aside.
        messages, bytes: for each agent, what travelled, both ways.
        asked: for each agent, feedbacks asked for, whether or not they were answered.
        restarts: for each agent, how often it did not know the walk: processes that were started anew.
        missed: for each agent, how often in a row it was asked and away.
        reasons: of those set aside.
        late: answers thrown away.
    """

    def __init__(
        self,
        network: Network,
        walk: bytes,
        spec: bytes,
        question_bytes: int,
        answer_bytes: int,
        rounds: int,
        patience: float,
    ) -> None:
        self.network, self.walk, self.rounds, self.patience = network, walk, rounds, patience
        self.ray, self.spec = network.ray, network.ray.put(spec)
        self.question_bytes, self.answer_bytes = question_bytes, answer_bytes
        count = len(network.agents)
        self.present = np.ones(count, bool)
        self.messages, self.bytes, self.asked, self.restarts, self.missed = ([0] * count for _ in range(5))
        self.reasons: dict[int, str] = {}
        self.late = 0
        self.preparing: set[ObjectRef] = set()  # waited for: new processes that were told of this walk
        self.probes: dict[int, ObjectRef] = {}  # what those who are away were last asked
        self.polled_at = 0.0

    def ask(self, questions: dict[int, bytes]) -> Callable[[], dict[int, bytes]]:
        """Send the questions to each agent. What is returned waits for the answers, of those who give one."""
        deadline = time.monotonic() + self.patience
        sent = {self._send(agent, asked): agent for agent, asked in questions.items()}

        def answers() -> dict[int, bytes]:
            found, turn = {}, list(sent)
            while turn:
                for ref in turn:
                    agent = sent.pop(ref)
                    reply = self._reply(agent, questions[agent], ref, deadline)
                    if isinstance(reply, bytes):
                        found[agent] = reply
                    elif reply is not None:
                        sent[reply] = agent
                    if reply is ref:  # silent so far: others may be ready
                        break
                turn = self._next_ready(sent, deadline)
            return found

        return answers

    def _next_ready(self, awaited: dict[ObjectRef, int], deadline: float) -> list[ObjectRef]:
        """What to hear next: whoever is ready, so that nobody who was restarted waits for another one's answer."""
        if not awaited:
            return []
        ready, _ = self.ray.wait(list(awaited), timeout=max(deadline - time.monotonic(), 0.0))
        return ready or list(awaited)

    def _send(self, agent: int, asked: bytes) -> ObjectRef:
        ref = self.network.ask[agent](self.walk + asked)
        self.messages[agent] += 1  # while it travels
        self.bytes[agent] += len(asked)
        self.asked[agent] += len(asked) // self.question_bytes * self.rounds
        return ref

    def _reply(self, agent: int, asked: bytes, ref: ObjectRef, deadline: float) -> bytes | ObjectRef | None:
        """The answer; or what to wait for instead, where there is none yet; or nothing, where there will be none."""
        faults, left = self.ray.exceptions, deadline - time.monotonic()
        was_preparing = ref in self.preparing
        self.preparing.discard(ref)
        try:
            answer = self.ray.get(ref, timeout=min(max(left, 0.0), POLL_INTERVAL))
        except faults.GetTimeoutError:
            if left <= POLL_INTERVAL:
                return self._mark_away(agent, ref)
            self.preparing |= {ref} if was_preparing else set()
            return ref
        except faults.RayTaskError as error:
            return self.set_aside(agent, f"it failed with {error.cause!r}")
        except faults.RayError as error:  # its process or node died, or the answer was lost with it
            if left <= 0:
                return self._mark_away(agent, None)
            self.network.restart(agent, error)
            time.sleep(RETRY_DELAY)
            return self._send(agent, asked)
        if was_preparing:
            return self._send(agent, asked)
        self.messages[agent] += 1
        if isinstance(answer, bytes) and not answer:  # its process is a new one, which does not know this walk
            if left <= 0:
                return self._mark_away(agent, None)
            self.restarts[agent] += 1
            ref = self.network.actors[agent].prepare.remote(self.walk, self.spec)
            self.preparing.add(ref)
            return ref
        return self._checked(agent, answer, len(asked) // self.question_bytes)

    def _checked(self, agent: int, answer: object, count: int) -> bytes | None:
        if not isinstance(answer, bytes):
            return self.set_aside(agent, f"it answered with {type(answer).__name__}, not with bytes")
        self.bytes[agent] += len(answer)
        if len(answer) != count * self.answer_bytes:
            return self.set_aside(agent, f"its answer has {len(answer)} bytes, not {count} x {self.answer_bytes}")
        self.missed[agent] = 0
        return answer

    def set_aside(self, agent: int, reason: str) -> None:
        """Never ask this agent again."""
        self.present[agent] = False
        self.probes.pop(agent, None)
        self.reasons[agent] = reason
        log.warning("%s is set aside: %s", self.network.names[agent], reason)

    @property
    def all_present(self) -> bool:
        """Whether all agents are present."""
        return not self.probes and not self.reasons

    @property
    def absences(self) -> dict[str, str]:
        """Why, for each agent that is not present."""
        away = dict.fromkeys(self.probes, f"away, no answer within {self.patience:g} seconds")
        return {self.network.names[agent]: reason for agent, reason in sorted({**away, **self.reasons}.items())}

    def _mark_away(self, agent: int, ref: ObjectRef | None) -> None:
        """Do without this agent until it responds again; for good, where that has happened too often."""
        self.missed[agent] += 1
        if self.missed[agent] < MAX_MISSES:
            self.present[agent] = False
            self.probes[agent] = self.network.actors[agent].process_id.remote() if ref is None else ref
            log.warning("%s is away: no answer within %g seconds", self.network.names[agent], self.patience)
        else:
            self.set_aside(agent, f"no answer within {self.patience:g} seconds, {MAX_MISSES} times in a row")

    def poll(self) -> None:
        """Take back those who were away and respond again."""
        if not self.probes or time.monotonic() < self.polled_at + RETRY_DELAY:
            return
        self.polled_at = time.monotonic()
        for agent, ref in list(self.probes.items()):
            if self.ray.wait([ref], timeout=0)[0]:
                self._check_probe(agent)

    def _check_probe(self, agent: int) -> None:
        faults = self.ray.exceptions
        try:
            answer = self.ray.get(self.probes[agent])
        except faults.RayTaskError as error:
            self.set_aside(agent, f"it failed with {error.cause!r}")
        except faults.RayError as error:
            self.network.restart(agent, error)
            self.probes[agent] = self.network.actors[agent].process_id.remote()
        else:
            del self.probes[agent]
            if isinstance(answer, bytes):  # what it was asked for, not only where it is
                self.messages[agent] += 1
                self.bytes[agent] += len(answer)
                self.late += answer != b""
            self.present[agent] = True
            log.warning("%s is back", self.network.names[agent])
