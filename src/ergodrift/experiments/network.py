"""The demo of `ergodrift walk`: agents with different data on a network, a walk over them for real, and its judges."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import scipy

from ergodrift import check, metrics
from ergodrift.algorithms import Algorithm, adpp, dpp, edpp, mdpp, pd, rdpp, wdpp
from ergodrift.chain import MarkovChain
from ergodrift.distributed import Agent, Privacy, Walk, walk
from ergodrift.experiments.reproduce import versions
from ergodrift.linear import Rows
from ergodrift.problems import FairnessBounds, fairness, synthetic
from ergodrift.reference import solve_reference
from ergodrift.run import run
from ergodrift.source import MarkovSource

SCHEMA = "ergodrift walk v1"
SPREAD = 45.0  # degrees: the agents' clusters are turned from minus to plus this
RECORDS = 12
ABOUT = (
    "Means over tokens at x̄, judged with all data in one place, as no agent could: the Lagrangian gap is 0 at the "
    "optimum and positive elsewhere; constraints are met where they are at most 0."
)
KINDS = ("metropolis", "max_degree", "lazy", "simple")
GRAPHS = ("ring", "grid", "star", "geometric", "complete")
ALGORITHMS = ("edpp", "mdpp", "adpp", "dpp", "rdpp", "wdpp", "pd")


@dataclasses.dataclass(frozen=True)
class Demo:
    """What a demo walks over, and how.

    Attributes:
        graph: one of GRAPHS.
        agents: how many.
        kind: which walk on the graph, see `MarkovChain.from_graph`.
        algorithm: one of ALGORITHMS; "edpp" is told the exact mixing time of the walk.
        tokens: how many walk at once.
        samples: of each token.
        local_rounds: how many of these in a row at a visited agent.
        points: an agent has twice as many rows, half with each label.
        seed: fixes data, places and paths.
        clip: the norm that every part of an answer is clipped to, or None.
        noise: Gaussian noise on the clipped answers, in multiples of `clip`.
    """

    graph: str = "ring"
    agents: int = 8
    kind: str = "metropolis"
    algorithm: str = "edpp"
    tokens: int = 1
    samples: int = 2000
    local_rounds: int = 1
    points: int = 100
    seed: int = 0
    clip: float | None = None
    noise: float = 0.0

    def __post_init__(self) -> None:
        check.choice("graph", self.graph, GRAPHS)
        check.choice("algorithm", self.algorithm, ALGORITHMS)
        check.integer("agents", self.agents, at_least=3)
        for name, least in [("tokens", 1), ("samples", 1), ("local_rounds", 1), ("points", 2), ("seed", 0)]:
            check.integer(name, getattr(self, name), at_least=least)
        if self.samples % self.local_rounds:
            raise ValueError(f"samples={self.samples} must be a multiple of local_rounds={self.local_rounds}")
        if self.noise and self.clip is None:
            raise ValueError(f"noise={self.noise} needs clip: noise is in multiples of what an answer is clipped to")


def network(graph: str, agents: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A graph by its name: adjacency (agents, agents), and places (agents, 2) to draw it with.

    "geometric" joins agents at random places that are near each other, and what that leaves apart by a least spanning
    tree.

    >>> adjacency, _ = network("star", 4)
    >>> adjacency[0].astype(int).tolist()
    [0, 1, 1, 1]
    """
    numbers = np.arange(agents)
    places = _circle(numbers / agents)
    if graph == "ring":
        joined = np.isin((numbers[:, None] - numbers) % agents, (1, agents - 1))
    elif graph == "complete":
        joined = ~np.eye(agents, dtype=bool)
    elif graph == "star":
        joined = (numbers[:, None] == 0) ^ (numbers == 0)
        places = np.where(numbers[:, None] == 0, 0.0, _circle(numbers / (agents - 1)))
    elif graph == "grid":
        places = np.stack(np.divmod(numbers, int(np.ceil(np.sqrt(agents))))[::-1], axis=1).astype(float)
        joined = np.abs(places[:, None] - places).sum(axis=2) == 1
    elif graph == "geometric":
        places = np.random.default_rng([seed, agents]).random((agents, 2))
        apart = np.linalg.norm(places[:, None] - places, axis=2)
        tree = scipy.sparse.csgraph.minimum_spanning_tree(apart).toarray()
        joined = (apart < np.sqrt(5 / (np.pi * agents))) & (apart > 0) | (tree + tree.T > 0)  # about 5 neighbours
    else:
        raise ValueError(f"graph must be one of {', '.join(GRAPHS)}, got {graph!r}")
    return joined.astype(float), places


def _circle(turns: np.ndarray) -> np.ndarray:
    """Places on the unit circle, clockwise from the top of the picture, whose second axis points down."""
    return np.stack([np.sin(2 * np.pi * turns), -np.cos(2 * np.pi * turns)], axis=1)


def own_rows(number: int, agents: int, points: int, seed: int) -> Rows:
    """The data of one agent, which makes them itself, where it runs: its clusters are turned by an angle of its own."""
    return _fairness(number, agents, points, seed)[1]


def _fairness(number: int, agents: int, points: int, seed: int) -> tuple[Any, Rows, FairnessBounds]:
    angle = np.linspace(-SPREAD, SPREAD, agents)[number]
    own = int(np.random.SeedSequence([seed, number]).generate_state(1)[0] >> 1)  # 31 bits: a seed
    problem, data, bounds = fairness(*synthetic(own, angles=[angle], points=points))
    return problem, jax.tree.map(lambda leaf: leaf[0], data), bounds


def demo(config: Demo, **options: Any) -> tuple[Walk, dict[str, Any]]:
    """Walk, then judge: the walk, and what to say about it, ready for JSON but for the walk itself.

    The judges pool all data: the optimum from an independent solver, and `run` on the same paths, which must end at
    the same points. Options are those of `walk` for engine and faults: `address`, `checkpoint`, `patience`, ...
    """
    adjacency, places = network(config.graph, config.agents, config.seed)
    chain = MarkovChain.from_graph(adjacency, config.kind)
    privacy = None if config.clip is None else Privacy(config.clip, config.noise)
    shared = {"agents": config.agents, "points": config.points, "seed": config.seed}
    agents = [
        Agent(functools.partial(own_rows, number, **shared), f"agent {number}", privacy=privacy)
        for number in range(config.agents)
    ]
    pooled = [_fairness(number, **shared) for number in range(config.agents)]
    problem = pooled[0][0]
    source = MarkovSource(chain, jax.tree.map(lambda *rows: np.stack(rows), *(data for _, data, _ in pooled)))
    tau = chain.mixing_time()
    algorithm = _algorithm(config, tau, [bounds for *_, bounds in pooled])
    x0 = np.zeros(3)
    hops = config.samples // config.local_rounds
    grid = np.unique(np.geomspace(min(10, hops), hops, RECORDS).round().astype(int)) * config.local_rounds
    setting = {"x0": x0, "num_samples": config.samples, "record": grid}
    walked = walk(
        *(problem, chain, agents, algorithm),
        tokens=range(config.seed, config.seed + config.tokens),
        local_rounds=config.local_rounds,
        **setting,
        **options,
    )
    reference = solve_reference(problem, source, x0)
    quality = metrics.evaluate(walked.result, problem, source, reference)
    records = [
        {
            "samples": int(samples),
            "Lagrangian gap": float(np.mean(quality.lagrangian_gap[:, k])),
            **{
                f"constraint {i + 1}": float(np.mean(quality.infeasibility[:, k, i]))
                for i in range(quality.infeasibility.shape[-1])
            },
        }
        for k, samples in enumerate(grid)
    ]
    found = {
        "schema": SCHEMA,
        "versions": versions(),
        "config": {**dataclasses.asdict(config), "mixing_time": tau},
        "about": ABOUT,
        "records": records,
        "reference": {"x": reference.x.tolist(), "value": float(reference.value)},
        "solution": np.asarray(walked.solution).tolist(),
        "places": places.tolist(),
    }
    if privacy is None and not np.any(walked.held) and not walked.set_aside:
        found["difference"] = _difference(walked, algorithm, problem, source, config, setting)
    return walked, found


def _difference(
    walked: Walk, algorithm: Algorithm, problem: Any, source: MarkovSource, config: Demo, setting: dict[str, Any]
) -> float:
    """The largest difference between the walk's points and queues and those of `run` on the pooled data."""
    seeds = range(config.seed, config.seed + config.tokens)
    visited = np.asarray(source.paths(seeds, config.samples // config.local_rounds))
    alone = run(
        algorithm, problem, source, seeds=seeds, paths=np.repeat(visited, config.local_rounds, axis=1), **setting
    )
    pairs = [(walked.result.x, alone.x), (walked.result.queue, alone.queue)]
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs)


def _algorithm(config: Demo, tau: int, bounds: list[FairnessBounds]) -> Algorithm:
    """The algorithm by its name; mixing times are counted in samples, of which a visit takes `local_rounds`."""
    steepest = max(max(bound.loss_grad, bound.constraint_jac) for bound in bounds)
    makers: dict[str, Callable[[], Algorithm]] = {
        "edpp": lambda: edpp(tau * config.local_rounds),
        "mdpp": mdpp,
        "adpp": adpp,
        "dpp": dpp,
        "rdpp": rdpp,
        "wdpp": wdpp,
        "pd": lambda: pd(config.samples, steepest, max(bound.constraints for bound in bounds)),
    }
    return makers[config.algorithm]()
