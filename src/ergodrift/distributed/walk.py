"""The hub: tokens walk over a network of agents who keep their data, and the core's own `step` moves them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np
from numpy.typing import ArrayLike

from ergodrift._core import check
from ergodrift._core.signature import code
from ergodrift.advice import auto
from ergodrift.data.chain import MarkovChain
from ergodrift.data.sampler import BLOCK, draw
from ergodrift.data.source import path_keys, seed_keys
from ergodrift.data.stream import TableStream
from ergodrift.data.tables import MarkovSource
from ergodrift.distributed import wire
from ergodrift.distributed.agent import Agent, guards_of
from ergodrift.distributed.arguments import check_memory, checked_paths, hops_at, importance
from ergodrift.distributed.free_loop import FreeLoop
from ergodrift.distributed.gathering import gather
from ergodrift.distributed.groups import DEFAULT_BOUND, SECURE, GroupRoster, MaskedRoster, checked_groups
from ergodrift.distributed.hosts import Crowd
from ergodrift.distributed.mail import Mail
from ergodrift.distributed.network import Network, agent_list, agent_names
from ergodrift.distributed.outcome import Arrivals, Walk
from ergodrift.distributed.remote import checkpoint_at, is_remote
from ergodrift.distributed.replies import Ready
from ergodrift.distributed.robust import Bounds, checked_bounds
from ergodrift.distributed.roster import Roster
from ergodrift.distributed.routes import Changing, SelfRepellent
from ergodrift.distributed.serialization import serialize
from ergodrift.distributed.telemetry import Callback, callback_of
from ergodrift.distributed.tokens import Hub, RandomBits
from ergodrift.distributed.walk_loop import WalkLoop
from ergodrift.distributed.wire import Layout, WalkSpec
from ergodrift.engine import loop
from ergodrift.engine.checkpoint import Checkpoint, fingerprint
from ergodrift.engine.result import Result
from ergodrift.methods.algorithms import Algorithm
from ergodrift.methods.average import Average
from ergodrift.methods.given import check_kinds
from ergodrift.methods.memory import Memory
from ergodrift.methods.method import checked_point
from ergodrift.problem import Problem
from ergodrift.types import Array, Key, PyTree


def walk(
    algorithm: Algorithm | str,
    problem: Problem,
    graph: object,
    agents: Iterable[Agent] | Network,
    *,
    x0: PyTree,
    num_samples: int,
    tokens: int | Sequence[int] | Array = 1,
    local_rounds: int = 1,
    kind: str = "metropolis",
    law: str | ArrayLike | None = None,
    paths: ArrayLike | None = None,
    record: int | Sequence[int] | Array = 200,
    average: str | tuple[str, int] | None = None,
    combine: str | None = "mean",
    groups: Sequence[Sequence[int | str]] | None = None,
    aggregate: str = "mean",
    bounds: float | Mapping[str, float] | str | None = None,
    exclude: Iterable[str] = (),
    barrier: bool = False,
    arrivals: bool | Arrivals = False,
    patience: float = 60.0,
    quorum: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 1000,
    log: Callback | str | os.PathLike[str] | None = None,
    address: str | None = None,
    runtime_env: Mapping[str, object] | None = None,
) -> Walk:
    """Walk tokens over agents that keep their data (Kim and Lee, section 2, with agents as states).

    A token is x_t, Q_t and the algorithm's state. At every hop each token moves to a neighbour, drawn by the chain of
    the graph (`MarkovChain.from_graph`), and takes in one sample, the data of the agent it is at. The numbers are those
    of `run` on a `MarkovSource` with the same chain, the pooled data and the tokens as seeds, to rounding.

    With `local_rounds` = 1 the hub sends x_t and the agent answers with its `Feedback` at x_t. With k > 1 the hub sends
    the token, the agent makes k rounds on its own data with the very same `step`, and the token comes back: k rounds
    for one message each way. That is `run` on the path with every state repeated k times, whose mixing time, counted
    in samples, is about k times as long: set `edpp(tau_mix)` by that.

    Each token moves on when its own answer is there; those that wait for the same agent travel in one message. Its path
    and its numbers do not depend on who was faster: they come from its seed, and from its row of one compiled program.

    An agent whose process dies is restarted and asked again. One that is silent for `patience` seconds is away until it
    responds again, and one that answers NaN or a wrong shape, or three times in a row nothing, is set aside. A token
    that would move to an agent who is not there holds its place, as in a self-loop of the chain, and takes its sample
    there (a Metropolis walk on those who are left: their law stays what it was, up to a factor). Where that fails too,
    as at the hop on which an agent is missed, it makes no round and draws its next move from where it stands; `held`
    counts these hops.

    Args:
        algorithm: such as `edpp(tau_mix)`, or one of your own; "auto" takes what `ed.auto` advises for this
            chain, these tokens and so many samples.
        problem: loss, constraints and domain. It is sent to the agents, with the algorithm and what both use of your
            own modules; installed packages that they use must be there.
        graph: a networkx graph or adjacency matrix, or a `MarkovChain`, or a `Route` such as `SelfRepellent(chain)` or
            `Changing(graphs)`; agent i is at its i-th node.
        agents: an `Agent` for each node, or a `Network` of them that lasts longer than this walk.
        x0: x_1, the same for all tokens; its precision is the walk's.
        num_samples: rounds' samples of each token, a multiple of `local_rounds`.
        tokens: a count, or the seeds of their paths.
        local_rounds: k, how many samples in a row are taken at a visited agent.
        kind: which walk on the graph, see `MarkovChain.from_graph`.
        law: the law of the agents that means are taken under, "uniform" or (agents,) weights: answers of agent i are
            weighed by law_i / stationary_i. The chain's own unless given.
        paths: (tokens, hops) agents to visit; drawn on the way unless given.
        record: how many records to keep, or the sample counts to record at.
        average: how points are weighed in x̄, see `run`; a suffix starts with a hop.
        combine: "mean" for the mean of the tokens' solutions, None to keep them as seeds.
        barrier: whether all tokens hop together, and wait for the slowest answer at every hop.
        arrivals: True keeps the order in which answers came, in `Walk.arrivals`. Given such an order, the walk is made
            again in just that order, to the same bits.
        patience: seconds before an agent that does not answer is given up for the time being. A restarted agent has to
            load its data and compile within them; a quorum has two minutes for that at the start, or `patience` if
            longer, and the others at least 15 seconds more.
        groups: agents who are visited together, by number or name: each group is a node of the graph, in this order.
        aggregate: what their answers make together: "mean", "median", "trimmed", "geometric median" or "clipped", of
            which all but the first withstand liars (see `robust`), or "secure": the mean, of which nobody learns the
            parts (see `masks`).
        bounds: the largest norm of the parts of an answer; who goes beyond is set aside. A number, a mapping from parts
            ("loss", "loss_grad", "constraints", "constraint_jac"), "auto" for thirty times what the others answer,
            or None: then who goes beyond that is told of, in the log and in `Walk.loud`, and believed all the same.
            In secure aggregation, one on all entries.
        exclude: names of agents to do without, as if they were not there; `Network.exclude` does it during a walk.
        quorum: the fewest agents to begin and to go on with; half of them unless given. At the start, those who fail,
            die or cannot be placed are set aside at once, and those who are slow come when they are ready.
        checkpoint: a file to keep the walk in, here or where fsspec or pyarrow can write ("s3://bucket/walk.npz").
            Called again with the same arguments, it goes on from there, to the same numbers to the last bit if no hop
            was held. Other arguments are refused by name, functions too, as in `run`. The agents' data are not part of
            what is compared, only their shapes, and these only where there is no privacy; agents that were set aside
            have another chance.
        checkpoint_every: hops after which it is written; about every two seconds it is, too, unless that takes long.
        log: what is told every half second of hops, rate, visits, losses and constraints: a function of a dict of
            numbers, a .csv file, or a folder for TensorBoard.
        address: of a Ray cluster to join, see `Network`.
        runtime_env: see `Network`.

    Raises:
        ValueError, TypeError: an argument is wrong; nothing has run.
        AgentError: fewer agents than the quorum can take part.
        QuorumError: too few agents are left; the checkpoint holds the walk.
        NonFiniteError: a token has become infinite by answers that are finite.
    """
    check_kinds(problem=problem)
    route = graph if isinstance(graph, SelfRepellent | Changing) else None
    graph = graph if route is None else route.chain
    chain = graph if isinstance(graph, MarkovChain) else MarkovChain.from_graph(graph, kind)
    if algorithm == "auto":
        source = MarkovSource(chain, np.arange(chain.num_states))
        count = tokens if isinstance(tokens, int) else len(np.atleast_1d(tokens))
        algorithm = auto(problem, source, None, num_samples, seeds=count)
    check_kinds(algorithm=algorithm)
    algorithm = cast("Algorithm", algorithm)
    local_rounds = check.integer("local_rounds", local_rounds, at_least=1)
    num_samples = check.integer("num_samples", num_samples, at_least=1, at_most=2**31 - BLOCK)
    if num_samples % local_rounds:
        raise ValueError(f"num_samples={num_samples} must be a multiple of local_rounds={local_rounds}")
    patience = check.number("patience", patience, above=0)
    checkpoint_every = check.integer("checkpoint_every", checkpoint_every, at_least=1)
    if combine not in ("mean", None):
        raise ValueError(f"combine must be 'mean' or None, got {combine!r}")
    keys, grid = seed_keys(tokens, "tokens"), hops_at(record, num_samples, local_rounds)
    x0 = checked_point(problem.geometry, x0)
    num_hops = num_samples // local_rounds
    numbers = np.arange(len(keys)) if np.ndim(tokens) == 0 else np.asarray(tokens).astype(int)
    if route is not None:
        if paths is not None:
            raise ValueError("paths and a graph that draws them exclude each other: pass one of them")
        paths = route.paths(numbers.tolist(), num_hops)
    if groups is not None and (law is not None or arrivals is not False):
        raise ValueError("groups are visited with a barrier, by the chain's own law: leave law and arrivals out")
    weights = importance(law, chain, local_rounds)
    tell = callback_of(log)
    visited = None if paths is None else checked_paths(paths, len(keys), num_hops, chain.num_states)
    if isinstance(agents, Network) and (address is not None or runtime_env is not None):
        raise ValueError("address and runtime_env belong to the Network: pass them there")
    agents = agents if isinstance(agents, Network) else agent_list(agents)
    count = len(agents.agents if isinstance(agents, Network) else agents)
    members = None
    if groups is not None:
        known = agents.agents if isinstance(agents, Network) else agents
        members = checked_groups(groups, agent_names(known), aggregate)
    elif aggregate != "mean":
        raise ValueError(
            f"aggregate={aggregate!r} is for agents who are visited together: pass groups=[[0, 1, 2], ...]"
        )
    nodes = count if members is None else len(members)
    if nodes != chain.num_states:
        what = "agents; one at each node" if members is None else "groups; one at each node"
        raise ValueError(f"graph has {chain.num_states} nodes, but there are {nodes} {what}")
    if local_rounds > 1 and isinstance(algorithm.estimator, Memory):
        everybody = agents.agents if isinstance(agents, Network) else agents
        named = zip(agent_names(everybody), everybody, strict=True)
        check_memory(algorithm.name, [name for name, one in named if one.privacy])
    secure = aggregate == SECURE
    if bounds is not None and bounds != "auto":
        checked_bounds(bounds)  # type: ignore[arg-type]
    if local_rounds > 1 and (bounds is not None or members is not None):
        raise ValueError(
            f"bounds and groups look at feedback, which stays with agents who make local_rounds={local_rounds}"
        )
    if secure and not isinstance(bounds, int | float | None):
        raise ValueError(f"bounds must be a number where answers are masked, got {bounds!r}")
    quorum = check.integer("quorum", -(-count // 2) if quorum is None else quorum, at_least=1, at_most=count)
    weighing = Average.of(algorithm.average if average is None else average)
    estimator = algorithm.estimator.for_run(num_samples, None, chain.stationary)
    method = dataclasses.replace(algorithm, estimator=estimator).bind(problem)
    run_spec = loop.RunSpec(problem, method, TableStream(RandomBits(), None), None, weighing)

    with contextlib.ExitStack() as stack:
        if checkpoint is not None and not is_remote(checkpoint):  # what is wrong with it is found before anything runs
            stack.enter_context(Checkpoint(checkpoint))
        if isinstance(agents, Network):
            network = agents
        else:
            network = stack.enter_context(Network(agents, address=address, runtime_env=runtime_env))
        stack.enter_context(network.exclusive())
        if new := set(exclude) - network.excluded:
            network.exclude(*new)
            stack.callback(network.readmit, *new)
        walk_id = uuid.uuid4().bytes
        # Agents that only answer need no method; those that have answered such questions before are ready for more.
        told = run_spec._replace(stream=None, method=run_spec.method if local_rounds > 1 else None)
        # Up to twice an agent's share of the tokens; of few tokens, all.
        batch = 1 << (min(len(keys), max(2 * len(keys) // count, 32)) - 1).bit_length()
        spec = wire.on_host(WalkSpec(told, x0, 1, local_rounds, batch, bool(jax.config.read("jax_enable_x64")), secure))
        sent = serialize(spec, network.key)
        peers = network if network.hosts is None else network.hosts
        came = gather(peers, walk_id, sent, patience, quorum if network.hosts is None else 1)
        if local_rounds > 1 and isinstance(method.estimator, Memory):
            check_memory(algorithm.name, [network.names[agent] for agent, said in came.ready.items() if said.privacy])
        spec = dataclasses.replace(spec, run_spec=run_spec, num_constraints=came.num_constraints)
        hub, layout = Hub(spec), Layout.of(spec)
        roster: Any
        limits = None
        if local_rounds == 1 and not secure:
            limits = Bounds(bounds, layout, network.names, 2 * float(problem.geometry.reach(x0)))
        sizes = hub.question_bytes, hub.answer_bytes
        if network.hosts is not None:
            word = np.dtype(hub.word).itemsize  # of who is asked, and whether there is an answer
            sizes = hub.question_bytes + word, hub.answer_bytes + word
        own = limits if network.hosts is None else None  # a process answers for many
        roster = (MaskedRoster if secure else Roster)(
            peers, walk_id, sent, *sizes, local_rounds, patience, came, own, layout.dtype.itemsize
        )
        if network.hosts is not None:
            roster = Crowd(roster, network.hosts, limits)
        if bounds == "auto":
            asked = roster if network.hosts is None else Mail(roster, hub.word)
            asked.sound_out(wire.packed_bytes(spec.x0))
        if members is not None:
            bound = float(bounds) if secure and isinstance(bounds, int | float) else DEFAULT_BOUND
            roster = GroupRoster(roster, members, aggregate, layout, bound)
        # One token has nobody to wait for; members of a group are asked at once, and waited for.
        lockstep = (barrier or len(keys) == 1) and arrivals is False and weights is None
        lockstep = members is not None or (lockstep and network.hosts is None)
        hops = (WalkLoop if lockstep else FreeLoop)(hub, roster, chain, keys, visited, num_hops, grid, quorum)
        if checkpoint is not None:
            saved = checkpoint_at(
                checkpoint,
                known=_known(problem, {peers.names[agent]: said for agent, said in came.ready.items()}),
                domain=problem.geometry,
                algorithm=(algorithm.name, type(problem).__name__, run_spec.method, weighing, local_rounds),
                graph=chain.sampler(),
                agents=(tuple(network.names), members, aggregate),
                records=(grid, num_samples),
                law=weights,
                **{"tokens, paths or x0": (keys, visited, x0)},
            )
            hops.resume(saved, checkpoint_every)
        hops.importance, hops.tell = weights, tell
        clock = time.monotonic()
        if isinstance(arrivals, Arrivals):
            hops.replay(arrivals)
        else:
            hops.run(algorithm.name, keep=arrivals)
        seconds = time.monotonic() - clock

    unknown = np.zeros((len(keys), 0), np.int32)
    seen = _seen(visited, chain, keys, num_samples, local_rounds) if hops.as_drawn else unknown
    records = hops.records
    each = jax.tree.map(lambda leaf: leaf[:, -1], records.x_mean)
    kept = jax.tree.map(lambda leaf: leaf[:, : len(grid)], records)
    result = Result(algorithm.name, numbers, grid * local_rounds, **kept._asdict(), solution=each, paths=seen)
    return Walk(
        result=result,
        solution=each if combine is None else jax.tree.map(lambda leaf: leaf.mean(axis=0), each),
        agents=tuple(roster.network.names),
        visits=np.array(hops.visits),
        held=hops.held,
        unanswered=np.array(hops.unanswered),
        set_aside=roster.absences,
        messages=np.array(roster.messages),
        bytes=np.array(roster.bytes),
        hops=num_hops,
        local_rounds=local_rounds,
        seconds=seconds,
        rate=hops.rate,
        restarts=np.array(roster.restarts),
        late=roster.late,
        epsilon=_epsilon(network, roster.ready, np.asarray(roster.asked).tolist(), members),
        components=hops.components,
        chain=chain,
        arrivals=hops.arrivals,
        loud={} if limits is None else {network.names[agent]: said for agent, said in limits.loud.items()},
    )


def _known(problem: Problem, told: dict[str, Ready]) -> dict[str, dict[str, str]]:
    """What loss and constraints compute, as each agent says, or as they are written, where an agent keeps that private;
    and how answers are guarded: one epsilon is computed for all of an agent's answers."""
    functions = {"loss": problem.loss, "constraints": problem.constraints}
    known = {part: {who: said.functions[part] for who, said in told.items() if said.functions} for part in functions}
    if not all(said.functions for said in told.values()):
        for part, function in functions.items():
            known[part]["the hub"] = code(function)
    return {**known, "privacy": {who: fingerprint(said.privacy) for who, said in told.items()}}


def _seen(
    paths: np.ndarray | None, chain: MarkovChain, keys: Key, num_samples: int, local_rounds: int
) -> np.ndarray | None:
    """The agent of every sample, for regret; None where the seeds say it."""
    if local_rounds == 1:
        return paths
    if paths is None:
        blocks = -(-num_samples // local_rounds // BLOCK)
        paths = jax.vmap(lambda key: draw(chain.sampler(), key, blocks))(path_keys(keys))
    return np.repeat(np.asarray(paths), local_rounds, axis=1)[:, :num_samples]


def _epsilon(
    network: Network, ready: dict[int, Ready], asked: Sequence[int], members: list[list[int]] | None
) -> dict[str, float]:
    """What the answers of those with noise have cost; in a group each member is asked what the group is asked."""
    counts = dict(enumerate(asked))
    for group, own in enumerate(members or ()):
        counts |= dict.fromkeys(own, asked[group] // len(own))
    costs: dict[str, float] = {}
    for agent, privacy in enumerate(guards_of(network.agents, ready)):
        if privacy is not None and privacy.noise > 0:
            costs[network.names[agent]] = privacy.epsilon(counts[agent])
    return costs
