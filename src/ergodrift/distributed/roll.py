"""Who is present: questions to agents, asked again after a crash, with an end to patience; what it all cost."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np

from ergodrift.distributed.network import Network
from ergodrift.distributed.wire import Program

log = logging.getLogger("ergodrift.distributed")
AGAIN = 0.02  # seconds before an agent that is being restarted is asked again, or one that is away is looked for


class Roll:
    """The conversation of one walk with its agents.

    A question and its answer belong together by Ray's own reference, and a hop is made when its answers are taken in:
    once. An agent whose process or node died is asked again until `patience` is over; from then on it is away, and not
    asked until it is heard of again (its late answer, to a hop already made, is thrown away). An agent whose answer is
    wrong is set aside for good.
    """

    def __init__(self, network: Network, walk: str, program: Program, answer_width: int, patience: float) -> None:
        self.network, self.walk, self.patience = network, walk, patience
        self.ray, self.program = network.ray, network.ray.put(network.told(program))
        self.width, self.local_rounds = answer_width, program.local_rounds
        count = len(network.agents)
        self.present = np.ones(count, bool)
        self.messages, self.bytes, self.asked, self.restarts = np.zeros((4, count), np.int64)
        self.reasons: dict[int, str] = {}  # of those set aside for good
        self.probes: dict[int, Any] = {}  # what those who are away were last asked
        self.late, self.looked_at = 0, 0.0

    def ask(self, questions: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
        """The answers to the questions (rows) for each agent, of those who gave one."""
        deadline = time.monotonic() + self.patience
        sent = {agent: self._send(agent, rows) for agent, rows in questions.items()}
        answers = {agent: self._answer(agent, questions[agent], ref, deadline) for agent, ref in sent.items()}
        return {agent: answer for agent, answer in answers.items() if answer is not None}

    def _send(self, agent: int, rows: np.ndarray) -> Any:
        self.messages[agent] += 1
        self.bytes[agent] += rows.nbytes
        self.asked[agent] += len(rows) * self.local_rounds
        return self.network.desks[agent].answer.remote(self.walk, rows)

    def _answer(self, agent: int, rows: np.ndarray, ref: Any, deadline: float) -> np.ndarray | None:
        faults = self.ray.exceptions
        while True:
            try:
                answer = self.ray.get(ref, timeout=max(deadline - time.monotonic(), 0.0))
                if answer is None:  # its process is a new one, which has not heard of this walk
                    self.restarts[agent] += 1
                    opening = self.network.desks[agent].open.remote(self.walk, self.program)
                    self.ray.get(opening, timeout=max(deadline - time.monotonic(), 0.0))
                    ref = self._send(agent, rows)
                    continue
            except faults.GetTimeoutError:
                return self._gone(agent, ref)
            except faults.RayTaskError as error:
                return self.set_aside(agent, f"it failed with {error.cause!r}")
            except faults.RayError as error:  # its process or node died, or its answer was lost with a node
                if time.monotonic() >= deadline:
                    return self._gone(agent, None)
                self.network.revive(agent, error)
                time.sleep(AGAIN)
                ref = self._send(agent, rows)
                continue
            if not isinstance(answer, np.ndarray) or answer.dtype != np.uint32 or answer.ndim != 2:
                return self.set_aside(agent, f"it answered {type(answer).__name__}, not an array of words")
            self.messages[agent] += 1
            self.bytes[agent] += answer.nbytes
            if answer.shape != (len(rows), self.width):
                return self.set_aside(agent, f"its answer has shape {answer.shape}, not {(len(rows), self.width)}")
            return answer

    def set_aside(self, agent: int, reason: str) -> None:
        """Never ask this agent again."""
        self.present[agent] = False
        self.reasons[agent] = reason
        log.warning("%s is set aside: %s", self.network.names[agent], reason)

    def _gone(self, agent: int, ref: Any) -> None:
        self.present[agent] = False
        self.probes[agent] = self.network.desks[agent].here.remote() if ref is None else ref
        log.warning("%s has not answered within %g seconds", self.network.names[agent], self.patience)

    def look(self) -> None:
        """Take back those who were away and are heard of again."""
        if not self.probes or time.monotonic() < self.looked_at + AGAIN:
            return
        self.looked_at = time.monotonic()
        faults = self.ray.exceptions
        for agent, ref in list(self.probes.items()):
            if not self.ray.wait([ref], timeout=0)[0]:
                continue
            try:
                answer = self.ray.get(ref)
            except faults.RayTaskError as error:
                del self.probes[agent]
                self.set_aside(agent, f"it failed with {error.cause!r}")
            except faults.RayError as error:
                self.network.revive(agent, error)
                self.probes[agent] = self.network.desks[agent].here.remote()
            else:
                del self.probes[agent]
                self.late += isinstance(answer, np.ndarray)
                self.present[agent] = True
                log.warning("%s is back", self.network.names[agent])
