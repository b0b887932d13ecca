"""The demo of `ergodrift walk`: agents with different data on a network, a walk over them for real, and its judges."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ergodrift import metrics
from ergodrift._core import check
from ergodrift.data.chain import MarkovChain
from ergodrift.data.tables import MarkovSource
from ergodrift.distributed import Agent, Privacy, Walk, walk
from ergodrift.engine.result import Result
from ergodrift.engine.run import run
from ergodrift.experiments.graphs import GRAPHS, network
from ergodrift.experiments.reproduce import versions
from ergodrift.methods.algorithms import Algorithm, adpp, dpp, edpp, mdpp, pd, rdpp, wdpp
from ergodrift.problem import Problem, Rows
from ergodrift.problems import FairnessBounds, fairness, synthetic
from ergodrift.solve.reference import Reference, solve_reference

SCHEMA = "ergodrift walk v1"
SPREAD = 45.0  # degrees: the agents' clusters are turned from minus to plus this
RECORDS = 12
ABOUT = (
    "Means over tokens at x̄, judged with all data in one place, as no agent could: the Lagrangian gap is 0 at the "
    "optimum and positive elsewhere; constraints are met where they are at most 0."
)
KINDS = ("metropolis", "max_degree", "lazy", "simple")
ALGORITHMS = ("edpp", "mdpp", "adpp", "dpp", "rdpp", "wdpp", "pd")


@dataclasses.dataclass(frozen=True)
class DemoConfig:
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

    @property
    def seeds(self) -> range:
        """Those of the tokens' paths."""
        return range(self.seed, self.seed + self.tokens)

    @property
    def shared(self) -> dict[str, int]:
        """What every agent must know to make its own rows."""
        return {"agents": self.agents, "points": self.points, "seed": self.seed}


def own_rows(number: int, agents: int, points: int, seed: int) -> Rows:
    """The data of one agent, which makes them itself, where it runs: its clusters are turned by an angle of its own."""
    return _fairness(number, agents, points, seed)[1]


def _fairness(number: int, agents: int, points: int, seed: int) -> tuple[Problem, Rows, FairnessBounds]:
    angle = np.linspace(-SPREAD, SPREAD, agents)[number]
    own = int(np.random.SeedSequence([seed, number]).generate_state(1)[0] >> 1)  # 31 bits: a seed
    problem, data, bounds = fairness(*synthetic(own, angles=[angle], points=points))
    return problem, jax.tree.map(lambda leaf: leaf[0], data), bounds


@dataclasses.dataclass(frozen=True)
class Demo:
    """The agents of a demo, and for its judges all their data in one place."""

    config: DemoConfig
    chain: MarkovChain
    places: np.ndarray
    problem: Problem
    source: MarkovSource
    bounds: list[FairnessBounds]
    reference: Reference  # the optimum, by an independent solver

    @staticmethod
    def prepare(config: DemoConfig) -> Demo:
        """Build the network and draw everybody's data."""
        adjacency, places = network(config.graph, config.agents, config.seed)
        chain = MarkovChain.from_graph(adjacency, config.kind)
        problems, data, bounds = zip(
            *(_fairness(number, **config.shared) for number in range(config.agents)), strict=True
        )
        source = MarkovSource(chain, jax.tree.map(lambda *rows: np.stack(rows), *data))
        reference = solve_reference(problems[0], source, np.zeros(3))
        return Demo(config, chain, places, problems[0], source, list(bounds), reference)

    def agents(self) -> list[Agent]:
        """Agents that make their own data, where they run."""
        config = self.config
        privacy = None if config.clip is None else Privacy(config.clip, config.noise)
        loaders = [functools.partial(own_rows, number, **config.shared) for number in range(config.agents)]
        return [Agent(loader, f"agent {number}", privacy=privacy) for number, loader in enumerate(loaders)]

    def algorithm(self) -> Algorithm:
        """The algorithm by its name; mixing times are counted in samples, of which a visit takes `local_rounds`."""
        config, bounds = self.config, self.bounds
        steepest = max(max(bound.loss_grad, bound.constraint_jac) for bound in bounds)
        makers: dict[str, Callable[[], Algorithm]] = {
            "edpp": lambda: edpp(self.chain.mixing_time() * config.local_rounds),
            "mdpp": mdpp,
            "adpp": adpp,
            "dpp": dpp,
            "rdpp": rdpp,
            "wdpp": wdpp,
            "pd": lambda: pd(config.samples, steepest, max(bound.constraints for bound in bounds)),
        }
        return makers[config.algorithm]()

    def options(self) -> dict[str, Any]:
        """What `walk` and `run` are both told."""
        hops, rounds = self.config.samples // self.config.local_rounds, self.config.local_rounds
        grid = np.unique(np.geomspace(min(10, hops), hops, RECORDS).round().astype(int)) * rounds
        return {"x0": np.zeros(3), "num_samples": self.config.samples, "record": grid}

    def walk(self, **options: Any) -> Walk:
        """The walk over processes; options are those of `walk`."""
        given = self.algorithm(), self.problem, self.chain, self.agents()
        config, options = self.config, {**self.options(), **options}
        return walk(*given, tokens=config.seeds, local_rounds=config.local_rounds, **options)

    def run(self) -> Result:
        """The same in this process, on all data."""
        config = self.config
        visited = np.asarray(self.source.paths(config.seeds, config.samples // config.local_rounds))
        paths = np.repeat(visited, config.local_rounds, axis=1)
        return run(self.algorithm(), self.problem, self.source, seeds=config.seeds, paths=paths, **self.options())

    def judge(self, result: Result) -> list[dict[str, Any]]:
        """At each record the means over tokens of the Lagrangian gap and of the constraints, at x̄."""
        quality = metrics.evaluate(result, self.problem, self.source, self.reference)
        gaps, constraints = (np.mean(values, axis=0) for values in (quality.lagrangian_gap, quality.infeasibility))
        return [
            {
                "samples": int(samples),
                "Lagrangian gap": float(gap),
                **{f"constraint {i}": float(value) for i, value in enumerate(values)},
            }
            for samples, gap, values in zip(result.samples, gaps, constraints, strict=True)
        ]


def run_demo(config: DemoConfig, **options: Any) -> tuple[Walk, dict[str, Any]]:
    """Walk, then judge: the walk, and what to say about it, ready for JSON.

    The judges have all data in one place: the optimum from an independent solver, and, for a walk without noise on
    which every hop was made, `run` on the same paths, which must come by the same points.

    Args:
        config: what to walk over, and how.
        options: of `walk`, for cluster and faults: `address`, `checkpoint`, `patience`, ...
    """
    demo = Demo.prepare(config)
    walked = demo.walk(**options)
    found = {
        "schema": SCHEMA,
        "versions": versions(),
        "config": {**dataclasses.asdict(config), "mixing_time": demo.chain.mixing_time()},
        "about": ABOUT,
        "records": demo.judge(walked.result),
        "reference": {"x": demo.reference.x.tolist(), "value": float(demo.reference.value)},
        "solution": np.asarray(walked.solution).tolist(),
        "places": demo.places.tolist(),
    }
    if config.clip is None and not walked.held.any() and not walked.set_aside:
        pooled = demo.run()
        pairs = [(walked.result.x, pooled.x), (walked.result.queue, pooled.queue)]
        found["difference"] = max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs)
    return walked, found


def local_rounds_study(
    algorithms: Sequence[str] = ("edpp", "rdpp"),
    rounds: Sequence[int] = (1, 4, 16),
    visits: int = 1000,
    tokens: int = 16,
) -> str:
    """What local rounds cost and save, as a Markdown table: the same number of visits, and the same number of samples.

    By `run`, which gives the walk's numbers.
    """
    longest = visits * max(rounds)
    prepared = Demo.prepare(DemoConfig(tokens=tokens))

    def end(algorithm: str, k: int, samples: int) -> str:
        config = dataclasses.replace(prepared.config, algorithm=algorithm, samples=samples, local_rounds=k)
        demo = dataclasses.replace(prepared, config=config)
        return f"{demo.judge(demo.run())[-1]['Lagrangian gap']:.1e}"

    head = ["Lagrangian gap of x̄", "k", f"{visits:,} visits per token", f"{longest:,} samples per token"]
    rows = [
        (name.upper(), str(k), end(name, k, visits * k), end(name, k, longest)) for name in algorithms for k in rounds
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * 4, *rows])


if __name__ == "__main__":
    print(local_rounds_study())
