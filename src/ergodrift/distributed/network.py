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
from typing import Any, cast

from ergodrift._core import check
from ergodrift.distributed.actor import AgentActor
from ergodrift.distributed.agent import Agent
from ergodrift.distributed.replies import LostError, parsed, read
from ergodrift.distributed.serialization import serialize

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


def agent_names(agents: Iterable[Agent]) -> list[str]:
    """How agents are called; those without a name by their number."""
    return [agent.name or f"agent {number}" for number, agent in enumerate(agents)]


def _sendable(name: str, agent: Agent, key: str | os.PathLike[str] | None) -> bytes:
    try:
        return serialize(agent, key)
    except Exception as error:  # there is no end to what pickling raises
        raise AgentError(
            f"{name} cannot be sent where it is to run: {type(error).__name__}: {error}; give a file, or a function "
            "that loads its data there"
        ) from error


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
        key: the file of the hub's private key (Ed25519, PEM), with which all that agents run is signed; that of
            $ERGODRIFT_HUB_KEY unless given. Machines whose `Site` names hub keys refuse what none of them has signed.
    """

    def __init__(
        self,
        agents: Iterable[Agent],
        *,
        address: str | None = None,
        runtime_env: Mapping[str, object] | None = None,
        key: str | os.PathLike[str] | None = None,
    ) -> None:
        self.agents = agent_list(agents)
        self.names = agent_names(self.agents)
        if len(set(self.names)) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise ValueError(f"agents: two of them have the name {twice!r}")
        self.walking = threading.Lock()
        self.ray = _import_ray()
        self.key = key or os.environ.get("ERGODRIFT_HUB_KEY")
        self.sent = [_sendable(name, agent, self.key) for name, agent in zip(self.names, self.agents, strict=True)]
        self.owns_cluster = _join(self.ray, address)
        self.runtime_env = runtime_env
        self.excluded: set[str] = set()
        self.changes = 0  # how often that set has changed
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
        return actor.remote(self.sent[number], number, self.names[number])

    def exclude(self, *names: str) -> None:
        """Do without these agents from the next hop on, in this walk and in those to come."""
        self._change(self.excluded | self._known(names))

    def readmit(self, *names: str) -> None:
        """Let agents in again that were excluded."""
        self._change(self.excluded - self._known(names))

    def _known(self, names: Iterable[str]) -> set[str]:
        for name in names:
            if name not in self.names:
                raise ValueError(f"names: there is no agent {name!r}, only {check.some(self.names)}")
        return set(names)

    def _change(self, excluded: set[str]) -> None:
        self.excluded, self.changes = excluded, self.changes + 1

    def restart(self, number: int, error: LostError) -> None:
        """Start an agent anew where Ray has given it up; one that Ray is restarting is left to that."""
        if error.given_up:
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

    def processes(self) -> list[int]:
        """The process of each agent, on its own machine; waits for those that are being restarted."""
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                asked = [actor.process_id.remote() for actor in self.actors]
                return [cast("int", parsed(read(self.ray, ref, START_TIMEOUT))) for ref in asked]
            except LostError:
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
