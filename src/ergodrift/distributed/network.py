"""The agents as Ray actors: started where their data are, restarted when they die, kept from walk to walk."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import warnings
from collections.abc import Generator, Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ergodrift.distributed.actor import AgentActor
from ergodrift.distributed.agent import Agent
from ergodrift.distributed.serialization import serialize

if TYPE_CHECKING:
    from ray import ObjectRef

START_TIMEOUT = 120.0  # seconds that agents have at least to start and to load their data
CONNECT_TIMEOUT = 10.0  # seconds for a cluster's machine to answer at all
RETRY_DELAY = 0.02  # seconds before an agent whose process died is asked again, or one that is away is looked for


class AgentError(RuntimeError):
    """An agent cannot take part; the message names it and says why."""


class QuorumError(RuntimeError):
    """Too few agents are left to go on; the message says where the state of the walk is kept."""


def agent_list(agents: object) -> list[Agent]:
    """The agents as a list, which holds nothing else and is not empty."""
    if isinstance(agents, Agent) or not isinstance(agents, Iterable):
        raise TypeError(f"agents must be a list of Agent(data), got {type(agents).__name__}: {agents!r}")
    found = list(agents)
    for agent in found:
        if not isinstance(agent, Agent):
            raise TypeError(f"agents must hold Agent(data), got {type(agent).__name__}: {agent!r}")
    if not found:
        raise ValueError("agents is empty; pass one Agent(data) for each node of the graph")
    return found


class Network:
    """The agents, each in a process of its own that lasts from walk to walk. Close it, or use it in a `with` block.

    Args:
        agents: agent i stands at node i of the graph.
        address: of a running Ray cluster, such as "auto" or "10.0.0.1:6379"; without one (and without RAY_ADDRESS) a
            cluster of this machine alone is started, and stopped at the end. It listens on all addresses of the
            machine; who has no token is refused. TLS and tokens are settings of Ray's own environment (RAY_USE_TLS,
            RAY_AUTH_MODE, ...) and are left as they are. Ray is no barrier between agents that do not trust each
            other: who may join a cluster may run code on it.
        runtime_env: what Ray should set up for the agents, such as {"working_dir": "."} where their machines do not
            have your code.
    """

    def __init__(
        self, agents: Iterable[Agent], *, address: str | None = None, runtime_env: Mapping[str, object] | None = None
    ) -> None:
        self.agents = agent_list(agents)
        self.names = [agent.name or f"agent {number}" for number, agent in enumerate(self.agents)]
        if len(set(self.names)) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise ValueError(f"agents: two of them have the name {twice!r}")
        self.walking = threading.Lock()
        self.ray = _import_ray()
        self.owns_cluster = _join(self.ray, address)
        self.runtime_env = runtime_env
        self.actors: list[Any] = []
        try:
            self.actors = [self._start(number) for number in range(len(self.agents))]
            self.ask = [actor.answer.remote for actor in self.actors]  # once: Ray makes a new object every time
        except BaseException:
            self.close()  # a cluster that nobody knows of would stay
            raise

    def _start(self, number: int) -> Any:
        """An actor for this agent, on a node that has what it needs; Ray restarts it whenever its process dies."""
        agent = self.agents[number]
        needs = dict(agent.resources)
        options: dict[str, Any] = {"num_cpus": needs.pop("CPU", 0), "num_gpus": needs.pop("GPU", 0)}
        if self.runtime_env is not None:
            options["runtime_env"] = self.runtime_env
        # Ray would note every hop for its dashboard, which takes time from the hop.
        actor = self.ray.remote(AgentActor).options(
            resources=needs, max_restarts=-1, max_task_retries=0, enable_task_events=False, **options
        )
        return actor.remote(serialize(agent), number)

    def restart(self, number: int, error: Exception) -> None:
        """Start an agent anew where Ray has given it up; one that Ray is restarting is left to that."""
        if isinstance(error, self.ray.exceptions.ActorDiedError):
            actor = self._start(number)
            self.actors[number], self.ask[number] = actor, actor.answer.remote

    @contextlib.contextmanager
    def exclusive(self) -> Generator[None]:
        """Refuse other walks meanwhile: an agent knows one at a time."""
        if not self.actors:
            raise RuntimeError("agents: this Network is closed; make a new one, and walk inside its `with` block")
        if not self.walking.acquire(blocking=False):
            raise RuntimeError("agents: there is a walk on this Network already; make another Network for this one")
        try:
            yield
        finally:
            self.walking.release()

    def prepare(self, walk: bytes, spec: bytes, patience: float) -> tuple[int, list[dict[str, str]]]:
        """Prepare all agents for a walk; the number of constraints, on which they must agree, and what their
        functions compute."""
        shared, deadline = self.ray.put(spec), time.monotonic() + max(patience, START_TIMEOUT)
        asked = [actor.prepare.remote(walk, shared) for actor in self.actors]
        prepared = [self._await_prepared(number, walk, shared, ref, deadline) for number, ref in enumerate(asked)]
        counts = [count for count, _ in prepared]
        for name, count in zip(self.names, counts, strict=True):
            if count != counts[0]:
                raise AgentError(f"{name} has {count} constraints, but {self.names[0]} has {counts[0]}")
        return counts[0], [functions for _, functions in prepared]

    def _await_prepared(
        self, number: int, walk: bytes, spec: ObjectRef, ref: ObjectRef, deadline: float
    ) -> tuple[int, dict[str, str]]:
        name, needs, faults = self.names[number], dict(self.agents[number].resources), self.ray.exceptions
        while True:
            try:
                return self.ray.get(ref, timeout=max(deadline - time.monotonic(), 0.0))
            except faults.RayTaskError as error:
                raise AgentError(f"{name} cannot take part: {error.cause}") from error
            except faults.RayError as error:
                if time.monotonic() >= deadline or "creation task" in str(error):
                    hint = f"; is there a node with {needs}?" if needs else ""
                    raise AgentError(f"{name} was not ready in time{hint} ({error})") from error
                self.restart(number, error)
                time.sleep(RETRY_DELAY)
                ref = self.actors[number].prepare.remote(walk, spec)

    def processes(self) -> list[int]:
        """The process of each agent, on its own machine; waits for those that are being restarted."""
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                return self.ray.get([actor.process_id.remote() for actor in self.actors], timeout=START_TIMEOUT)
            except self.ray.exceptions.RayActorError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_DELAY)

    def close(self) -> None:
        """End the agents' processes, and the cluster where it was started here."""
        if self.ray.is_initialized():
            for actor in self.actors:
                self.ray.kill(actor)
            if self.owns_cluster:
                self.ray.shutdown()
        self.actors, self.ask = [], []

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _import_ray() -> ModuleType:
    try:
        import ray
    except ImportError:
        raise ImportError('walks over real agents need Ray: pip install "ergodrift[ray]"') from None
    return ray


def _join(ray: ModuleType, address: str | None) -> bool:
    """Join the cluster, or start one; whether that was done here, so that leaving it is, too."""
    if ray.is_initialized():
        joined = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", "local", joined) and not str(address).startswith("ray://"):
            raise ValueError(f"address={address!r}, but this process has joined {joined}; call ray.shutdown() first")
        return False
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    _check_reachable(address)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        options["include_dashboard"] = False
    with warnings.catch_warnings():
        # Ray starts its processes by a fork that is followed by an exec at once, which does JAX no harm.
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        ray.init(address=address, **options)
    return True


def _check_reachable(address: str) -> None:
    """Raise where nobody listens: Ray would try for a quarter of an hour."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in address or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConnectionError(
            f"address={address!r}: nobody answers there ({error}); is the cluster up, and its port open?"
        ) from error
