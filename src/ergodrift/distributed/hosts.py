"""Agents that share processes, as the hub sees them: processes may die, agents may fail, and each is told apart."""

from __future__ import annotations

import logging
import types
import uuid
from typing import Any

import numpy as np

from ergodrift.distributed.agent import Agent
from ergodrift.distributed.gathering import EXCLUDED
from ergodrift.distributed.host import HostActor
from ergodrift.distributed.peers import Starter
from ergodrift.distributed.replies import LostError, Ready
from ergodrift.distributed.robust import Bounds
from ergodrift.distributed.roster import Roster
from ergodrift.distributed.serialization import serialize

log = logging.getLogger("ergodrift.distributed")


class Host:
    """An actor of many agents. Who they are it is told when it is prepared, since Ray may have to start it anew."""

    def __init__(self, actor: Any, agents: Any) -> None:
        self.actor, self.answer, self.process_id, self.end = actor, actor.answer, actor.process_id, actor.end
        self.prepare = types.SimpleNamespace(remote=lambda walk, spec: actor.prepare.remote(walk, spec, agents))


class Hosts:
    """The processes of agents that share them, in the place of a `Network`: each process is one to whom questions go.

    Agents with the same resources share processes; those of a process follow each other.

    Attributes:
        host_of: (agents,) the process of each.
    """

    def __init__(self, network: Starter, processes: int) -> None:
        self.network, self.ray = network, network.ray
        self.excluded, self.changes = set[str](), 0  # agents are, not processes
        agents = network.agents
        needs = [tuple(sorted(agent.resources.items())) for agent in agents]
        ends = [at for at in range(1, len(agents) + 1) if at == len(agents) or needs[at] != needs[at - 1]]
        self.spans: list[tuple[int, int]] = []
        for first, last in zip([0, *ends[:-1]], ends, strict=True):
            share = max(round(processes * (last - first) / len(agents)), 1)
            cuts = np.linspace(first, last, min(share, last - first) + 1).astype(int)
            self.spans += list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))
        self.agents = [Agent(np.zeros(1), resources=agents[first].resources) for first, _ in self.spans]
        self.names = [f"the process of {network.names[a]} to {network.names[b - 1]}" for a, b in self.spans]
        self.host_of = np.repeat(np.arange(len(self.spans)), [last - first for first, last in self.spans])
        self.name = uuid.uuid4().hex  # by which a process knows what became of the one before it
        self.actors = [self._start(number) for number in range(len(self.spans))]
        self.ask = [actor.answer.remote for actor in self.actors]

    def _start(self, number: int) -> Host:
        (first, last), needs = self.spans[number], self.agents[number].resources
        actor = self.network.actor(HostActor, needs, first, f"{self.name}-{first}")
        return Host(actor, self.ray.put(serialize(self.network.agents[first:last], self.network.key)))

    def restart(self, number: int, error: LostError) -> None:
        """Start a process anew where Ray has given it up."""
        if error.given_up:
            self.actors[number] = self._start(number)
            self.ask[number] = self.actors[number].answer.remote


class Crowd:
    """`Roster` for agents that share processes: it has a roster of the processes, and keeps count of the agents.

    Attributes: those of `Roster`, by agent.
    """

    def __init__(self, roster: Roster, hosts: Hosts, bounds: Bounds | None = None) -> None:
        self.roster, self.hosts, self.network = roster, hosts, hosts.network
        self.patience, self.ray, self.bounds = roster.patience, roster.ray, bounds
        count = len(hosts.host_of)
        self.messages, self.bytes, self.asked, self.own_restarts = (np.zeros(count, np.int64) for _ in range(4))
        self.reasons: dict[int, str] = {}
        self.good = np.ones(count, bool)
        self.ready: dict[int, Ready] = {}  # agents here do not speak for themselves
        self.heeded = -1
        self.heed()

    @property
    def present(self) -> np.ndarray:
        """(agents,) who is neither away nor set aside."""
        return self.good if self.roster.all_present else self.good & self.roster.present[self.hosts.host_of]

    @property
    def all_present(self) -> bool:
        """Whether all agents are present."""
        return not self.reasons and self.roster.all_present and self.heeded == self.network.changes

    @property
    def restarts(self) -> np.ndarray:
        """(agents,) how often each one's process was started anew."""
        return self.own_restarts + np.array(self.roster.restarts)[self.hosts.host_of]

    @restarts.setter
    def restarts(self, value: np.ndarray) -> None:
        self.own_restarts = np.array(value)

    @property
    def probes(self) -> Probes:
        """Agents whose processes are away, and may come back."""
        return Probes(self)

    @property
    def late(self) -> int:
        """Answers thrown away."""
        return self.roster.late

    @late.setter
    def late(self, value: int) -> None:
        self.roster.late = value

    @property
    def absences(self) -> dict[str, str]:
        """Why, for each agent that is not present, and for each process."""
        own = {self.network.names[agent]: reason for agent, reason in sorted(self.reasons.items())}
        return {**own, **self.roster.absences}

    def set_aside(self, agent: int, reason: str) -> None:
        """Never ask this agent again."""
        self.good = self.good.copy()
        self.good[agent] = False
        self.reasons[agent] = reason
        log.warning("%s is set aside: %s", self.network.names[agent], reason)

    def is_to_blame(self, agent: int) -> bool:
        """Whether a token that became infinite by this agent's answer did so for its sake: it is far beyond others'."""
        return self.bounds is not None and self.bounds.is_loud(agent)

    @property
    def num_agents(self) -> int:
        """How many agents there are."""
        return len(self.good)

    @property
    def num_present(self) -> int:
        """How many of them are present."""
        return int(np.count_nonzero(self.present))

    def poll(self) -> None:
        """Take back processes that were away and respond again; do as the network has been told since."""
        self.roster.poll()
        if self.heeded != self.network.changes:
            self.heed()

    def heed(self) -> None:
        """Do without those who are excluded, and again with those let in."""
        self.heeded = self.network.changes
        for agent in [agent for agent, reason in self.reasons.items() if reason == EXCLUDED]:
            del self.reasons[agent]
        self.good = np.ones(len(self.good), bool)
        self.reasons |= {i: EXCLUDED for i, name in enumerate(self.network.names) if name in self.network.excluded}
        self.good[list(self.reasons)] = False


class Probes:
    """Which agents may come back."""

    def __init__(self, crowd: Crowd) -> None:
        self.crowd = crowd

    def __contains__(self, agent: object) -> bool:
        return self.crowd.good[agent] and int(self.crowd.hosts.host_of[agent]) in self.crowd.roster.probes  # type: ignore[index]
