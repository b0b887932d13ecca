"""Who is present: questions to agents, asked again after a crash until patience ends; what they cost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ergodrift.distributed.gathering import EXCLUDED, Gathered
from ergodrift.distributed.peers import RETRY_DELAY, Peers
from ergodrift.distributed.replies import MOST_BYTES, Fault, LostError, NotPlainError, Ready, parsed, read
from ergodrift.distributed.robust import Bounds

if TYPE_CHECKING:
    from ray import ObjectRef


POLL_INTERVAL = 1.0  # seconds to wait for one answer before looking at the others
MAX_MISSES = 3  # how often in a row an agent may be away when asked
MAX_DEATHS = 10  # how often in a row an agent's process may end before it is ready again
NEVER_READY = f"its process ended {MAX_DEATHS} times in a row before it was ready"
MAX_RELAPSES = 5  # how often in a row a process that was started anew may end...
FEW_ANSWERS = 20  # ... before it has given so many answers

log = logging.getLogger("ergodrift.distributed")


class Roster:
    """The conversation of one walk with its agents.

    A question and its answer belong together by Ray's own reference, and a hop is made when its answers are absorbed,
    once. An agent whose process or node died is asked again until `patience` is over. From then on it is away, and not
    asked until it responds again; its late answer, to a hop already made, is thrown away. An agent whose answer is
    wrong is set aside for good, and so is one that responds, and yet has no answer in time again and again, or one
    whose process ends whenever it has been started.

    Attributes:
        present: (agents,) who is neither away nor set aside.
        messages, bytes: for each agent, what travelled, both ways.
        asked: for each agent, feedbacks asked for, whether or not they were answered.
        restarts: for each agent, how often it did not know the walk: processes that were started anew.
        missed: for each agent, how often in a row it was asked and away.
        ready: what each agent said when it was ready, as far as it has.
        reasons: of those set aside.
        late: answers thrown away.
    """

    def __init__(
        self,
        network: Peers,
        walk: bytes,
        spec: bytes,
        question_bytes: int,
        answer_bytes: int,
        rounds: int,
        patience: float,
        gathered: Gathered,
        bounds: Bounds | None = None,
        number_bytes: int = 8,
    ) -> None:
        self.network, self.walk, self.rounds, self.patience = network, walk, rounds, patience
        self.ray, self.spec = network.ray, network.ray.put(spec)
        self.question_bytes, self.answer_bytes, self.bounds = question_bytes, answer_bytes, bounds
        self.number_bytes = number_bytes
        count = len(network.agents)
        self.messages, self.bytes, self.asked, self.restarts, self.missed = ([0] * count for _ in range(5))
        self.deaths, self.relapses, self.answered = ([0] * count for _ in range(3))
        self.ready, self.num_constraints = dict(gathered.ready), gathered.num_constraints
        self.reasons: dict[int, str] = dict(gathered.reasons)
        self.probes: dict[int, ObjectRef] = dict(gathered.awaited)  # what those who are away were last asked
        self.present = np.array([agent in gathered.ready for agent in range(count)])
        self.late = 0
        self.preparing: set[ObjectRef] = set()  # waited for, or probed: new processes that were told of this walk
        self.polled_at = 0.0
        self.longest = MOST_BYTES  # bytes that are read of a reply
        self.heeded = -1
        self.heed()

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

    def sound_out(self, question: bytes) -> None:
        """Ask everybody the same, so that nobody's first answer has to be believed for want of others."""
        self.ask(dict.fromkeys(np.flatnonzero(self.present).tolist(), question))()

    def _next_ready(self, awaited: dict[ObjectRef, int], deadline: float) -> list[ObjectRef]:
        """What to hear next: whoever is ready, so that nobody who was restarted waits for another one's answer."""
        if not awaited:
            return []
        ready, _ = self.ray.wait(list(awaited), timeout=max(deadline - time.monotonic(), 0.0))
        return ready or list(awaited)

    def _send(self, agent: int, asked: bytes) -> ObjectRef:
        ref = self.network.ask[agent](self.walk + asked)
        self.longest = max(self.longest, self._expected_bytes(asked) + 1)
        self.messages[agent] += 1  # while it travels
        self.bytes[agent] += len(asked)
        self.asked[agent] += self._num_questions(asked) * self.rounds
        return ref

    def _num_questions(self, asked: bytes) -> int:
        return len(asked) // self.question_bytes

    def _expected_bytes(self, asked: bytes) -> int:
        """How long the answer to this must be."""
        return self._num_questions(asked) * self.answer_bytes

    def _reply(self, agent: int, asked: bytes, ref: ObjectRef, deadline: float) -> bytes | ObjectRef | None:
        """The answer; or what to wait for instead, where there is none yet; or nothing, where there will be none."""
        left = deadline - time.monotonic()
        was_preparing = ref in self.preparing
        self.preparing.discard(ref)
        try:
            reply = read(self.ray, ref, min(max(left, 0.0), POLL_INTERVAL), self.longest)
            said = parsed(reply) if reply else None
        except self.ray.exceptions.GetTimeoutError:
            if left <= POLL_INTERVAL:
                return self._mark_away(agent, ref)
            self.preparing |= {ref} if was_preparing else set()
            return ref
        except NotPlainError as error:
            return self.set_aside(agent, f"it answered with {error}")
        except LostError as error:  # its process or node died, or the answer was lost with it
            self.deaths[agent] += was_preparing
            if self.deaths[agent] >= MAX_DEATHS:
                return self.set_aside(agent, NEVER_READY)
            if left <= 0:
                return self._mark_away(agent, None)
            self.network.restart(agent, error)
            time.sleep(RETRY_DELAY)
            return self._send(agent, asked)
        if isinstance(said, Fault):
            return self.set_aside(agent, said.text)
        if was_preparing:
            return self._send(agent, asked) if self._is_fit(agent, said) else None
        self.messages[agent] += 1
        if said is None:  # its process is a new one, which does not know this walk
            if left <= 0:
                return self._mark_away(agent, None)
            if not self._may_start_anew(agent):
                return None
            ref = self.network.actors[agent].prepare.remote(self.walk, self.spec)
            self.preparing.add(ref)
            return ref
        return self._checked(agent, said, asked)

    def _is_fit(self, agent: int, said: object) -> bool:
        """Whether an agent that has been prepared can take part; it is set aside if not."""
        if not isinstance(said, Ready):
            self.set_aside(agent, "it answered what it was not asked")
        elif said.constraints != self.num_constraints:
            self.set_aside(agent, f"it has {said.constraints} constraints, not {self.num_constraints}")
        else:
            self.ready[agent], self.deaths[agent] = said, 0
        return agent not in self.reasons

    def _may_start_anew(self, agent: int) -> bool:
        """Count a new process of this agent. One that ends again and again after a few answers would hold up all."""
        self.restarts[agent] += 1
        if not self.deaths[agent]:  # the process before it was ready
            self.relapses[agent] = self.relapses[agent] + 1 if self.answered[agent] < FEW_ANSWERS else 1
        self.answered[agent] = 0
        if self.relapses[agent] > MAX_RELAPSES:
            few = f"within {FEW_ANSWERS} answers of its start"
            self.set_aside(agent, f"its process ended {few}, {MAX_RELAPSES} times in a row")
        return agent not in self.reasons

    def _checked(self, agent: int, answer: object, asked: bytes) -> bytes | None:
        if not isinstance(answer, bytes):
            return self.set_aside(agent, "it answered what it was not asked")
        self.bytes[agent] += len(answer)
        if len(answer) != self._expected_bytes(asked):
            return self.set_aside(agent, f"its answer has {len(answer)} bytes, not {self._expected_bytes(asked)}")
        if self.bounds is not None and (complaint := self.bounds.complaint(agent, answer)):
            return self.set_aside(agent, complaint)
        self.missed[agent] = 0
        self.answered[agent] += 1
        return answer

    def set_aside(self, agent: int, reason: str) -> None:
        """Never ask this agent again."""
        self.present[agent] = False
        self.probes.pop(agent, None)
        self.reasons[agent] = reason
        log.warning("%s is set aside: %s", self.network.names[agent], reason)

    def is_to_blame(self, agent: int) -> bool:
        """Whether a token that became infinite by this agent's answer did so for its sake: it is far beyond others'."""
        return self.bounds is not None and self.bounds.is_loud(agent)

    @property
    def num_agents(self) -> int:
        """How many agents there are."""
        return len(self.present)

    @property
    def num_present(self) -> int:
        """How many of them are present."""
        return int(np.count_nonzero(self.present))

    @property
    def all_present(self) -> bool:
        """Whether all agents are present."""
        return not self.probes and not self.reasons and self.heeded == self.network.changes

    @property
    def absences(self) -> dict[str, str]:
        """Why, for each agent that is not present."""
        silent = f"away, no answer within {self.patience:g} seconds"
        away = {agent: silent if agent in self.ready else "away, not ready yet" for agent in self.probes}
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

    def heed(self) -> None:
        """Do as the network has been told since: without those who are excluded, and again with those let in."""
        self.heeded = self.network.changes
        for agent, name in enumerate(self.network.names):
            if name in self.network.excluded and self.reasons.get(agent) != EXCLUDED:
                self.set_aside(agent, EXCLUDED)
            elif name not in self.network.excluded and self.reasons.get(agent) == EXCLUDED:
                del self.reasons[agent]
                self.probes[agent] = self.network.actors[agent].prepare.remote(self.walk, self.spec)

    def poll(self) -> None:
        """Take back those who were away and respond again."""
        if self.heeded != self.network.changes:
            self.heed()
        if not self.probes or time.monotonic() < self.polled_at + RETRY_DELAY:
            return
        self.polled_at = time.monotonic()
        for agent, ref in list(self.probes.items()):
            if self.ray.wait([ref], timeout=0)[0]:
                self._check_probe(agent)

    def _check_probe(self, agent: int) -> None:
        was_preparing = self.probes[agent] in self.preparing
        self.preparing.discard(self.probes[agent])
        try:
            reply = read(self.ray, self.probes[agent], POLL_INTERVAL, self.longest)
            said = parsed(reply) if reply else None
        except NotPlainError as error:
            return self.set_aside(agent, f"it answered with {error}")
        except LostError as error:
            self.deaths[agent] += was_preparing
            if self.deaths[agent] >= MAX_DEATHS:
                return self.set_aside(agent, NEVER_READY)
            self.network.restart(agent, error)
            self.probes[agent] = self.network.actors[agent].process_id.remote()
            return None
        if isinstance(said, Fault):
            return self.set_aside(agent, said.text)
        if isinstance(said, Ready) and not self._is_fit(agent, said):
            return None
        if agent not in self.ready:  # a new process, while the one before it was on its way here
            if not isinstance(said, int):
                return self.set_aside(agent, "it answered what it was not asked")
            self.probes[agent] = self.network.actors[agent].prepare.remote(self.walk, self.spec)
            self.preparing.add(self.probes[agent])
            return None
        del self.probes[agent]
        if isinstance(said, bytes):  # what it was asked for, not only where it is
            self.late += 1
        if not isinstance(said, int | Ready):
            self.messages[agent] += 1
            self.bytes[agent] += len(reply or b"A") - 1  # without the byte that says what it is
        self.present[agent] = True
        log.warning("%s is back", self.network.names[agent])
        return None
