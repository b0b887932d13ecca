"""The agents as Ray actors: started where their data are, restarted when they die, kept from walk to walk."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from types import ModuleType
from typing import Any, cast

import numpy as np

from ergodrift._core import check
from ergodrift.data.chain import MarkovChain
from ergodrift.distributed import survey
from ergodrift.distributed.actor import AgentActor
from ergodrift.distributed.agent import Agent
from ergodrift.distributed.forks import Forks, Lodger
from ergodrift.distributed.hosts import Hosts
from ergodrift.distributed.peers import RETRY_DELAY, START_TIMEOUT, AgentError, QuorumError
from ergodrift.distributed.replies import LostError, leave_unread, parsed, read
from ergodrift.distributed.serialization import serialize
from ergodrift.distributed.survey import Evaluation
from ergodrift.problem import Problem
from ergodrift.solve.feasibility import Feasibility
from ergodrift.trust.certificate import Certificate
from ergodrift.trust.certify import certify
from ergodrift.trust.diagnose import Diagnosis, diagnose
from ergodrift.trust.methods import CertificateMethod
from ergodrift.types import PyTree

GOODBYE = 10.0  # seconds for forked agents to end by themselves
CONNECT_TIMEOUT = 10.0  # seconds for a cluster's machine to answer at all
MOST_ALONE = 256  # agents up to which each has a process of its own, unless said otherwise
FEW = 16  # agents up to which each is an actor of Ray; more are forked, and share what they have in common

__all__ = ["AgentError", "Network", "QuorumError"]


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
    """The agents, in processes that last from walk to walk. Close it, or use it in a `with` block.

    Args:
        agents: agent i stands at node i of the graph.
        processes: how many processes the agents share, each with agents that follow each other; a process loads the
            data of an agent when it is first visited. Unless given, each of up to 256 agents has a process of its own
            (more than 16 are forked from one that has imported all they need, but for those who ask for cores or GPUs
            of their own), and more share one for each core of the cluster.
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
        processes: int | None = None,
        address: str | None = None,
        runtime_env: Mapping[str, object] | None = None,
        key: str | os.PathLike[str] | None = None,
    ) -> None:
        self.agents = agent_list(agents)
        self.names = agent_names(self.agents)
        if len(set(self.names)) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise ValueError(f"agents: two of them have the name {twice!r}")
        if processes is not None:
            processes = check.integer("processes", processes, at_least=1, at_most=len(self.agents))
        self.forks = Forks(self) if len(self.agents) > FEW else None
        self.walking = threading.Lock()
        self.ray = _import_ray()
        self.key = key or os.environ.get("ERGODRIFT_HUB_KEY")
        shared = processes is not None or len(self.agents) > MOST_ALONE
        named = zip(self.names, self.agents, strict=True)
        if self.key is not None:
            serialize(None, self.key)  # a key that cannot be used is no agent's fault
        self.sent = [] if shared else [_sendable(name, agent, self.key) for name, agent in named]
        self.owns_cluster = _join(self.ray, address)
        leave_unread(self.ray)
        self.runtime_env = runtime_env
        self.excluded: set[str] = set()
        self.changes = 0  # how often that set has changed
        self.actors: list[Any] = []
        self.hosts: Hosts | None = None
        try:
            if shared:
                cores = int(self.ray.cluster_resources().get("CPU", 1))
                try:
                    self.hosts = Hosts(self, processes or min(cores, len(self.agents)))
                except Exception:
                    for name, agent in named:  # are sent many at a time: who is it that cannot be?
                        _sendable(name, agent, self.key)
                    raise
                self.actors = self.hosts.actors
                return
            self.actors = [self._start(number) for number in range(len(self.agents))]
            self.ask = [actor.answer.remote for actor in self.actors]  # once: Ray makes a new object every time
        except BaseException:
            self.close()  # a cluster that nobody knows of would stay
            raise

    def _start(self, number: int) -> Any:
        """An actor for this agent."""
        agent = self.agents[number]
        if self.forks is not None and not {"CPU", "GPU"} & set(agent.resources):
            return self.forks.lodger(number, self.sent[number])
        return self.actor(AgentActor, agent.resources, self.sent[number], number, self.names[number])

    def actor(self, kind: type, resources: Mapping[str, float], *arguments: object, concurrency: int = 1) -> Any:
        """An actor of this class on a node that has these resources; Ray restarts it whenever its process dies."""
        needs = dict(resources)
        more: dict[str, Any] = {} if concurrency == 1 else {"max_concurrency": concurrency}
        options: dict[str, Any] = {"num_cpus": needs.pop("CPU", 0), "num_gpus": needs.pop("GPU", 0)}
        if self.runtime_env is not None:
            options["runtime_env"] = self.runtime_env
        # Ray would note every hop for its dashboard, which takes time from the hop.
        actor = self.ray.remote(kind).options(
            resources=needs, max_restarts=-1, max_task_retries=0, enable_task_events=False, **more, **options
        )
        return actor.remote(*arguments)

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
            if self.forks is not None and isinstance(self.actors[number], Lodger):
                self.forks.forget(self.actors[number])
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

    # What agents can say of a point together. Each question counts as one answer of every agent (`Privacy`).

    def evaluate(
        self,
        metrics: Mapping[str, Callable[[PyTree, PyTree], object]],
        x: PyTree,
        *,
        weights: np.ndarray | None = None,
        patience: float = 60.0,
    ) -> Evaluation:
        """Metrics at x, computed by each agent on its own data.

        Args:
            metrics: by name, functions metric(x, xi) of the point and an agent's data, one number each: an accuracy, a
                number of rows, a sum.
            x: the point.
            weights: of the agents in the means; all equal unless given.
            patience: seconds after which an agent that does not answer is done without.
        """
        return survey.evaluate(self, metrics, x, weights, patience)

    def certify(
        self,
        problem: Problem,
        x: PyTree,
        graph: object,
        confidence: float = 0.95,
        method: str | CertificateMethod | None = None,
        *,
        num_samples: int = 10_000,
        kind: str = "metropolis",
        patience: float = 60.0,
        **options: Any,
    ) -> Certificate:
        """`ed.certify` on the walk over the agents, as if their data were in one place: the same numbers to rounding.

        Under `Privacy` intervals are wider by what the noise may be, at the confidence asked for; what clipping hides
        cannot be known, and a warning says so.

        Args:
            problem: loss and constraints.
            x: a fixed point, chosen without these data.
            graph: as in `walk`.
            confidence: see `ed.certify`, as the options that are not named here (seed, tau_mix, bounds, tuned_for).
            method: see `ed.certify`.
            num_samples: length of the path.
            kind: which walk on the graph.
            patience: seconds after which an agent that does not answer is done without.
        """
        chain = graph if isinstance(graph, MarkovChain) else MarkovChain.from_graph(graph, kind)
        found = survey.survey(self, problem, x, patience)
        source, planes = survey.table(found, chain), found.problem(problem.geometry)
        noisy = survey.noise_of(found, chain.stationary) > 0
        asked = (1 + confidence) / 2 if noisy else confidence  # half of the error is the noise's
        certificate = certify(planes, found.x, source, asked, method, num_samples=num_samples, **options)
        return survey.widened(certificate, found, chain.stationary) if any(found.guards) else certificate

    def diagnose(
        self,
        problem: Problem,
        x: PyTree,
        graph: object,
        *,
        kind: str = "metropolis",
        patience: float = 60.0,
        **options: Any,
    ) -> Diagnosis:
        """`ed.diagnose` of the walk over the agents at x: mixing time and effective size, by the agents' own values."""
        chain = graph if isinstance(graph, MarkovChain) else MarkovChain.from_graph(graph, kind)
        found = survey.survey(self, problem, x, patience)
        return diagnose(survey.table(found, chain), found.problem(problem.geometry), found.x, **options)

    def feasibility(
        self, problem: Problem, x0: PyTree, *, law: np.ndarray | None = None, patience: float = 60.0
    ) -> Feasibility:
        """`ed.feasibility` of the mean over agents: can the constraints be met, by how much, and if not, which clash.

        Found by cutting planes (Kelley 1960): all agents are asked at a few points, two where constraints are linear.
        Under `Privacy` `worst` and `least` allow for the noise, at a confidence of 95 %, and it may be that nothing is
        certain ("edge"); clipping must leave the constraints and their Jacobians as they are.

        Args:
            problem: constraints and domain.
            x0: a point of the domain to start from.
            law: of the agents in the mean; uniform unless given, as for "metropolis" walks.
            patience: seconds after which an agent that does not answer is done without.
        """
        law = np.full(len(self.names), 1 / len(self.names)) if law is None else np.asarray(law, float)
        return survey.feasibility(self, problem, law, x0, patience)

    def processes(self) -> list[int]:
        """The process of each agent, on its own machine; waits for those that are being restarted."""
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                asked = [actor.process_id.remote() for actor in self.actors]
                found = [cast("int", parsed(read(self.ray, ref, START_TIMEOUT))) for ref in asked]
                return found if self.hosts is None else [found[host] for host in self.hosts.host_of]
            except LostError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_DELAY)

    def close(self) -> None:
        """End the agents' processes, and the cluster where it was started here."""
        if self.ray.is_initialized():
            if self.forks is not None and self.hosts is None:
                ended = [host.end.remote() for host in self.forks.hosts.values()]
                if ended:
                    self.ray.wait(ended, num_returns=len(ended), timeout=GOODBYE)  # what they say is not read
            if self.hosts is not None and self.actors:
                ended = [host.end.remote() for host in self.hosts.actors]
                self.ray.wait(ended, num_returns=len(ended), timeout=1.0)  # files of no use are all they would leave
            for actor in self.actors:
                self.ray.kill(getattr(actor, "actor", getattr(actor, "host", actor)))
            if self.owns_cluster:
                self.ray.shutdown()
        self.actors, self.ask, self.hosts = [], [], None

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
