"""The agents as Ray actors: started where their data are, asked, asked again after a crash, set aside."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from typing import Any

from ergodrift.distributed.agent import Agent
from ergodrift.distributed.desk import Desk
from ergodrift.distributed.parcel import parcel
from ergodrift.distributed.wire import Program

log = logging.getLogger("ergodrift.distributed")
AGAIN = 0.05  # seconds before an agent that is being restarted is asked again


class AgentError(RuntimeError):
    """An agent cannot take part; the message names it and says why."""


class QuorumError(RuntimeError):
    """Too few agents are left to go on; the message says where the state of the walk is kept."""


class Network:
    """The agents, each in a process of its own that lasts from walk to walk. Close it, or use it in a `with` block.

    Args:
        agents: agent i stands at node i of the graph.
        address: of a running Ray cluster, such as "auto" or "10.0.0.1:6379"; without one (and without RAY_ADDRESS) a
            cluster of this machine alone is started, and stopped at the end. TLS and tokens are settings of Ray's own
            environment (RAY_USE_TLS, RAY_AUTH_MODE, ...) and are left as they are.
        runtime_env: what Ray should set up for the agents, such as {"working_dir": "."} where their machines do not
            have your code.
    """

    def __init__(self, agents: Sequence[Agent], *, address: str | None = None, runtime_env: Any = None) -> None:
        agents = list(agents)
        for agent in agents:
            if not isinstance(agent, Agent):
                raise TypeError(f"agents must hold Agent(data), got {type(agent).__name__}: {agent!r}")
        if not agents:
            raise ValueError("agents is empty; pass one Agent(data) for each node of the graph")
        self.agents = agents
        self.names = [agent.name or f"agent {number}" for number, agent in enumerate(agents)]
        if len(set(self.names)) < len(agents):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise ValueError(f"agents: two of them have the name {twice!r}")
        self.ray = _ray()
        self.owns_cluster = _join(self.ray, address)
        self.runtime_env = runtime_env
        self.desks = [self._start(number) for number in range(len(agents))]

    def _start(self, number: int) -> Any:
        """A desk for this agent, on a node that has what it needs; Ray restarts it whenever its process dies."""
        needs = dict(self.agents[number].resources)
        options: dict[str, Any] = {"num_cpus": needs.pop("CPU", 0), "num_gpus": needs.pop("GPU", 0)}
        if self.runtime_env is not None:
            options["runtime_env"] = self.runtime_env
        desk = self.ray.remote(Desk).options(resources=needs, max_restarts=-1, max_task_retries=0, **options)
        agent = self.agents[number]
        return desk.remote(parcel(agent, *([agent.data] if callable(agent.data) else [])), number)

    def told(self, program: Program) -> bytes:
        return parcel(program, program.setup.problem.loss, program.setup.problem.constraints)

    def open(self, walk: str, program: Program, patience: float) -> int:
        """Make all agents ready for a walk; the number of constraints, on which they must agree."""
        shared = self.ray.put(self.told(program))
        asked = [desk.open.remote(walk, shared) for desk in self.desks]
        counts, deadline = [], time.monotonic() + patience
        for name, ref in zip(self.names, asked, strict=True):
            try:
                counts.append(self.ray.get(ref, timeout=max(deadline - time.monotonic(), 0.0)))
            except self.ray.exceptions.RayTaskError as error:
                raise AgentError(f"{name} cannot take part: {error.cause}") from error
            except self.ray.exceptions.GetTimeoutError:
                wanted = dict(self.agents[self.names.index(name)].resources)
                reason = f"; no node may have the resources it asks for, {wanted}" if wanted else ""
                raise AgentError(f"{name} was not ready within patience={patience:g} seconds{reason}") from None
        odd = [name for name, count in zip(self.names, counts, strict=True) if count != counts[0]]
        if odd:
            raise AgentError(
                f"{odd[0]} has {counts[self.names.index(odd[0])]} constraints, {self.names[0]} has {counts[0]}"
            )
        return counts[0]

    def revive(self, number: int, error: Any) -> None:
        """Start an agent anew where Ray has given it up; one that Ray restarts by itself is left to that."""
        died = self.ray.exceptions.ActorDiedError
        if isinstance(error, died) and not error.preempted and "restart" not in str(error):
            self.desks[number] = self._start(number)

    def close(self) -> None:
        """End the agents' processes, and the cluster where it was started here."""
        if not self.ray.is_initialized():
            return
        for desk in self.desks:
            self.ray.kill(desk)
        self.desks = []
        if self.owns_cluster:
            self.ray.shutdown()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ImportError('walks over real agents need Ray: pip install "ergodrift[ray]"') from None
    return ray


def _join(ray: Any, address: str | None) -> bool:
    """Join the cluster, or start one; whether it was started here, and so is ours to stop."""
    if ray.is_initialized():
        return False
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        quiet |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    ray.init(address=address, **quiet)
    return True
