"""Who is present: questions to agents, asked again after a crash, with an end to patience; what it all cost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ergodrift.distributed.network import AGAIN, Network

log = logging.getLogger("ergodrift.distributed")


class Roll:
    """The conversation of one walk with its agents.

    A question and its answer belong together by Ray's own reference, and a hop is made when its answers are taken in,
    once. An agent whose process or node died is asked again until `patience` is over. From then on it is away, and not
    asked until it is heard of again; its late answer, to a hop already made, is thrown away. An agent whose answer is
    wrong is set aside for good.

    Attributes:
        present: (agents,) who is neither away nor set aside.
        messages, bytes: (agents,) that travelled, both ways.
        asked: (agents,) feedbacks asked for, whether or not they were answered.
        restarts: (agents,) new processes met.
        reasons: of those set aside.
        late: answers thrown away.
    """

    def __init__(
        self, network: Network, walk: bytes, program: bytes, answer_width: int, rounds: int, patience: float
    ) -> None:
        self.network, self.walk, self.width, self.rounds, self.patience = network, walk, answer_width, rounds, patience
        self.ray, self.program = network.ray, network.ray.put(program)
        count = len(network.agents)
        self.present = np.ones(count, bool)
        self.messages, self.bytes, self.asked, self.restarts = np.zeros((4, count), np.int64)
        self.reasons: dict[int, str] = {}
        self.late = 0
        self.probes: dict[int, Any] = {}  # what those who are away were last asked
        self.looked_at = 0.0

    def ask(self, questions: dict[int, np.ndarray]) -> Callable[[], dict[int, np.ndarray]]:
        """Send the questions (rows) to each agent. What is returned waits for the answers, of those who give one."""
        deadline = time.monotonic() + self.patience
        sent = {agent: self._send(agent, rows) for agent, rows in questions.items()}

        def answers() -> dict[int, np.ndarray]:
            found = {agent: self._answer(agent, questions[agent], ref, deadline) for agent, ref in sent.items()}
            return {agent: answer for agent, answer in found.items() if answer is not None}

        return answers

    def _send(self, agent: int, rows: np.ndarray) -> Any:
        ref = self.network.desks[agent].answer.remote(self.walk + rows.tobytes())
        self.messages[agent] += 1  # while it travels
        self.bytes[agent] += rows.nbytes
        self.asked[agent] += len(rows) * self.rounds
        return ref

    def _answer(self, agent: int, rows: np.ndarray, ref: Any, deadline: float) -> np.ndarray | None:
        faults, reopening = self.ray.exceptions, False
        while True:
            try:
                answer = self.ray.get(ref, timeout=max(deadline - time.monotonic(), 0.0))
            except faults.GetTimeoutError:
                return self._gone(agent, ref)
            except faults.RayTaskError as error:
                return self.set_aside(agent, f"it failed with {error.cause!r}")
            except faults.RayError as error:  # its process or node died, or the answer was lost with it
                if time.monotonic() >= deadline:
                    return self._gone(agent, None)
                self.network.revive(agent, error)
                time.sleep(AGAIN)
                reopening, ref = False, self._send(agent, rows)
                continue
            if reopening:
                reopening, ref = False, self._send(agent, rows)
            elif answer == b"":  # its process is a new one, which has not heard of this walk
                self.restarts[agent] += 1
                reopening, ref = True, self.network.desks[agent].open.remote(self.walk, self.program)
            else:
                return self._checked(agent, answer, (len(rows), self.width))

    def _checked(self, agent: int, answer: Any, shape: tuple[int, int]) -> np.ndarray | None:
        self.messages[agent] += 1
        if not isinstance(answer, bytes):
            return self.set_aside(agent, f"it answered with {type(answer).__name__}, not with bytes")
        self.bytes[agent] += len(answer)
        if len(answer) != 4 * shape[0] * shape[1]:
            return self.set_aside(agent, f"its answer has {len(answer)} bytes, not 4 x {shape[0]} x {shape[1]}")
        return np.frombuffer(answer, np.uint32).reshape(shape)

    def set_aside(self, agent: int, reason: str) -> None:
        """Never ask this agent again."""
        self.present[agent] = False
        self.probes.pop(agent, None)
        self.reasons[agent] = reason
        log.warning("%s is set aside: %s", self.network.names[agent], reason)

    @property
    def everybody(self) -> bool:
        """Whether all agents are present."""
        return not self.probes and not self.reasons

    @property
    def missing(self) -> dict[str, str]:
        """Why, for each agent that is not present."""
        away = dict.fromkeys(self.probes, f"away, no answer within {self.patience:g} seconds")
        return {self.network.names[agent]: reason for agent, reason in sorted({**away, **self.reasons}.items())}

    def _gone(self, agent: int, ref: Any) -> None:
        """Do without this agent until it is heard of."""
        self.present[agent] = False
        self.probes[agent] = self.network.desks[agent].here.remote() if ref is None else ref
        log.warning("%s is away: no answer within %g seconds", self.network.names[agent], self.patience)

    def look(self) -> None:
        """Take back those who were away and are heard of again."""
        if not self.probes or time.monotonic() < self.looked_at + AGAIN:
            return
        self.looked_at = time.monotonic()
        for agent, ref in list(self.probes.items()):
            if self.ray.wait([ref], timeout=0)[0]:
                self._heard_of(agent)

    def _heard_of(self, agent: int) -> None:
        faults = self.ray.exceptions
        try:
            answer = self.ray.get(self.probes[agent])
        except faults.RayTaskError as error:
            self.set_aside(agent, f"it failed with {error.cause!r}")
        except faults.RayError as error:
            self.network.revive(agent, error)
            self.probes[agent] = self.network.desks[agent].here.remote()
        else:
            del self.probes[agent]
            self.late += isinstance(answer, bytes) and answer != b""
            self.present[agent] = True
            log.warning("%s is back", self.network.names[agent])
