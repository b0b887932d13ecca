"""Who comes to a walk: agents start, load and compile; who cannot take part is set aside, who is slow comes later."""

from __future__ import annotations

import collections
import logging
import time
from typing import TYPE_CHECKING, NamedTuple

from ergodrift.distributed.peers import RETRY_DELAY, START_TIMEOUT, AgentError, Peers
from ergodrift.distributed.replies import Fault, LostError, NotPlainError, Ready, parsed, read

if TYPE_CHECKING:
    from ray import ObjectRef

MAX_DEATHS = 2  # how often a process may end before it is ready, at the start of a walk
GRACE = 15.0  # seconds that those who are slow have at least once a quorum is ready...
GRACE_SHARE = 3.0  # ... and in all, at least so many times what the quorum took
EXCLUDED = "excluded by its network's owner"
SAY_AFTER = 5.0  # seconds after which those who are waited for are named

log = logging.getLogger("ergodrift.distributed")


class Gathered(NamedTuple):
    """Who came: those who are ready, why others cannot take part, and what is awaited of those who may come later."""

    ready: dict[int, Ready]
    reasons: dict[int, str]
    awaited: dict[int, ObjectRef]

    @property
    def num_constraints(self) -> int:
        """On which all who are ready agree."""
        return next(iter(self.ready.values())).constraints


def gather(network: Peers, walk: bytes, spec: bytes, patience: float, quorum: int) -> Gathered:
    """Prepare all agents for a walk that can begin with `quorum` of them, but those that the network excludes.

    Raises:
        AgentError: fewer are ready in time; who is not, and why.
    """
    excluded = {agent: EXCLUDED for agent, name in enumerate(network.names) if name in network.excluded}
    return _Gathering(network, walk, spec, excluded).run(max(patience, START_TIMEOUT), quorum)


class _Gathering:
    def __init__(self, network: Peers, walk: bytes, spec: bytes, reasons: dict[int, str]) -> None:
        self.network, self.ray, self.walk = network, network.ray, walk
        self.spec = self.ray.put(spec)
        self.ready: dict[int, Ready] = {}
        self.reasons = reasons
        self.deaths: collections.Counter[int] = collections.Counter()
        self.looked_for: set[int] = set()  # those whose process ended, until it is there again
        self.awaited: dict[ObjectRef, int] = {}
        for agent in range(len(network.agents)):
            if agent not in reasons:
                self.awaited[network.actors[agent].prepare.remote(walk, self.spec)] = agent

    def run(self, timeout: float, quorum: int) -> Gathered:
        began, enough, named = time.monotonic(), None, False
        nowhere = self._nowhere()
        while self.awaited:
            now = time.monotonic() - began
            if enough is None and len(self.ready) >= quorum:
                enough = now
            late = enough is not None and now > max(enough + GRACE, GRACE_SHARE * enough)
            if now > timeout or late:
                break
            if len(self.ready) + len(self.awaited) < quorum:
                break  # it can no longer be reached
            if enough is not None and nowhere.issuperset(self.awaited.values()):
                break  # a machine for them may come later, and they with it
            if not named and now > SAY_AFTER:
                named = True
                log.warning("waiting for %s", ", ".join(self.network.names[agent] for agent in self.awaited.values()))
            done, _ = self.ray.wait(list(self.awaited), num_returns=len(self.awaited), timeout=0.1)
            for ref in done:
                self._hear(ref, self.awaited.pop(ref))
        self._agree()
        if len(self.ready) < quorum:
            raise AgentError(self._refusal(quorum, time.monotonic() - began, nowhere))
        for agent in self.awaited.values():
            log.warning("%s is away: it is not ready yet", self.network.names[agent])
        return Gathered(self.ready, self.reasons, {agent: ref for ref, agent in self.awaited.items()})

    def _hear(self, ref: ObjectRef, agent: int) -> None:
        try:
            said = parsed(read(self.ray, ref, 0.0))
        except NotPlainError as error:
            return self._set_aside(agent, f"it answered with {error}")
        except LostError as error:
            return self._lost(agent, error)
        if isinstance(said, Ready):
            self.ready[agent] = said
        elif isinstance(said, Fault):
            self._set_aside(agent, said.text)
        elif isinstance(said, int):  # its process is there again
            self.looked_for.discard(agent)
            self.awaited[self.network.actors[agent].prepare.remote(self.walk, self.spec)] = agent
        else:
            self._set_aside(agent, "it answered what it was not asked")
        return None

    def _lost(self, agent: int, error: LostError) -> None:
        """Its process has ended. Whether that is its own doing shows when it ends again."""
        self.deaths[agent] += error.given_up or agent not in self.looked_for
        if self.deaths[agent] >= MAX_DEATHS:
            return self._set_aside(agent, f"its process ended {MAX_DEATHS} times before it was ready ({error})")
        if agent not in self.looked_for:  # else it is still on its way back
            log.warning("%s: its process ended before it was ready (%s)", self.network.names[agent], error)
        self.looked_for.add(agent)
        self.network.restart(agent, error)
        time.sleep(RETRY_DELAY)
        self.awaited[self.network.actors[agent].process_id.remote()] = agent
        return None

    def _set_aside(self, agent: int, reason: str) -> None:
        self.reasons[agent] = reason
        log.warning("%s is set aside: %s", self.network.names[agent], reason)

    def _agree(self) -> None:
        """Set those aside whose number of constraints is not that of most."""
        counts = [said.constraints for _, said in sorted(self.ready.items())]
        if len(set(counts)) > 1:
            most = collections.Counter(counts).most_common(1)[0][0]
            one = next(agent for agent, said in sorted(self.ready.items()) if said.constraints == most)
            for agent, said in list(self.ready.items()):
                if said.constraints != most:
                    del self.ready[agent]
                    self._set_aside(
                        agent, f"it has {said.constraints} constraints, but {self.network.names[one]} has {most}"
                    )

    def _nowhere(self) -> set[int]:
        """The agents that no machine of the cluster has room for."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        found: set[int] = set()
        for agent in self.awaited.values():
            needs = self.network.agents[agent].resources
            if not any(all(node.get(name, 0) >= amount for name, amount in needs.items()) for node in nodes):
                found.add(agent)
                log.warning("%s: no machine of the cluster has %s", self.network.names[agent], dict(needs))
        return found

    def _refusal(self, quorum: int, seconds: float, nowhere: set[int]) -> str:
        said = [f"{self.network.names[agent]} cannot take part: {text}" for agent, text in sorted(self.reasons.items())]
        for agent in sorted(self.awaited.values()):
            needs = dict(self.network.agents[agent].resources)
            hint = f"; is there a node with {needs}?" if agent in nowhere else ""
            said.append(f"{self.network.names[agent]} was not ready in time, {seconds:.0f} seconds{hint}")
        count = len(self.network.agents)
        return f"{len(self.ready)} of {count} agents are ready, below quorum={quorum}: " + "; ".join(said)
