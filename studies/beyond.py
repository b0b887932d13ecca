"""Beyond the paper: RDPP and WDPP beside the paper's algorithms, all on the same fresh paths.

Tables of the paper's designs, networks of 50 agents, mixing times from 1 to 10,000 at 300 tau samples each, of what one
path says of the stationary law, and of what was tried with other constants and other estimators.
`python -m studies.beyond` runs them all and writes beyond.json, beyond.md and sweep.svg.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from ergodrift import metrics
from ergodrift._core.files import write_whole
from ergodrift.cli.common import UsageError, keep_others, make_room, needs
from ergodrift.data.chain import MarkovChain
from ergodrift.data.tables import IIDSource, MarkovSource
from ergodrift.engine.run import run
from ergodrift.experiments.config import configure
from ergodrift.experiments.reproduce import Experiment, versions
from ergodrift.methods.algorithms import Algorithm, edpp, rdpp, wdpp
from ergodrift.methods.estimator import MultiLevel, SingleSample
from ergodrift.methods.memory import Aging
from ergodrift.methods.windows import GrowingWindow
from ergodrift.problem import Problem
from ergodrift.problems import fairness, synthetic
from ergodrift.solve.reference import Reference, solve_reference
from studies.beyond_report import draw_sweep, tables
from studies.laws import law_errors, laws
from studies.variants import Antithetic, Balanced, Clipped

SCHEMA = "ergodrift beyond v2"
FRESH = 7_000_000  # path seeds start here: none was looked at while the algorithms were made
OTHER = 80_000  # where constants were compared
AGENTS = 50
DESIGNS = ("default", "wide", "infeasible-start")


def beyond(quick: bool = False, log: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """All tables, ready for JSON; `quick` is a smaller version of each for a first look."""
    seeds = 4 if quick else 20
    found: dict[str, Any] = {"schema": SCHEMA, "quick": quick, "versions": versions()}
    found["networks"] = networks(seeds, visits=100 if quick else 1000, log=log)
    found["designs"] = designs(seeds, 10_000 if quick else 100_000, log=log)
    taus = (1, 10, 100) if quick else (1, 10, 100, 1000, 10_000)
    found["sweep"] = sweep(seeds, taus, log=log)
    found["tried"] = tried(seeds, 10_000 if quick else 100_000, log=log)
    found["laws"] = known_laws(seeds, 10_000 if quick else 100_000, log=log)
    found["streams"] = streams(8 if quick else 100, 10_000 if quick else 100_000, log=log)
    return found


def designs(seeds: int, samples: int, log: Callable[[str], None] = lambda line: None) -> list[dict[str, Any]]:
    """The paper's experiment in three designs: Lagrangian gaps and infeasibility at several sample counts."""
    counts = sorted({count for count in (1000, 3000, 10_000, 30_000) if count < samples} | {samples})
    rows = []
    for design in DESIGNS:
        experiment = Experiment.prepare(configure(design, seeds=seeds, samples=samples))
        paths = np.asarray(experiment.source.paths(range(FRESH, FRESH + seeds), samples))
        theirs = experiment.algorithms()
        chosen = {name: theirs[name][0] for name in ("EDPP-t", "PD", "DPP-t", "MDPP")}
        for name, algorithm in (chosen | {"RDPP": rdpp(), "RDPP (visits)": rdpp("visits"), "WDPP": wdpp()}).items():
            row = measure(
                *(algorithm, experiment.problem, experiment.source, experiment.reference),
                x0=np.asarray(experiment.config.x0, np.float32),
                paths=paths,
                counts=counts,
            )
            rows.append({"design": design, "algorithm": name, **row})
            log(f"{design:17} {name:14} {row['gap'][-1]:.2e}")
    return rows


def graphs() -> Iterable[tuple[str, np.ndarray, str]]:
    """Name, adjacency and walk: a ring, a grid, a random geometric graph, and hubs with leaves."""
    numbers = np.arange(AGENTS)
    ring = (np.abs(numbers[:, None] - numbers) % (AGENTS - 2) == 1).astype(float)
    yield "ring", ring, "metropolis"
    row, column = numbers // 25, numbers % 25
    apart = np.abs(row[:, None] - row) + np.abs(column[:, None] - column)
    yield "grid 2 x 25", (apart == 1).astype(float), "metropolis"
    places = np.random.default_rng(3).random((AGENTS, 2))
    distance = np.linalg.norm(places[:, None] - places, axis=2)
    near = (distance < 0.17) & (distance > 0)
    yield "geometric", _connected(near, distance).astype(float), "metropolis"
    star = np.zeros((AGENTS, AGENTS))  # five hubs in a ring, nine leaves at each
    for agent in range(AGENTS):
        star[agent, (agent + 1) % 5 if agent < 5 else agent % 5] = 1
    yield "hubs and leaves", np.maximum(star, star.T), "simple"


def _connected(near: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """The graph with the shortest edges that join its parts."""
    from scipy.sparse import csgraph

    near = near.copy()
    while True:
        count, part = csgraph.connected_components(near)
        if count == 1:
            return near
        between = np.where(part[:, None] != part, distance, np.inf)
        i, j = np.unravel_index(np.argmin(between), between.shape)
        near[i, j] = near[j, i] = True


def networks(seeds: int, visits: int, log: Callable[[str], None] = lambda line: None) -> list[dict[str, Any]]:
    """50 agents with data turned from -45 to 45 degrees, the target the uniform law; `visits` an agent on average.

    The simple walk on hubs and leaves has another law than the target; there EDPP-t sees each agent's loss and
    constraints multiplied by target / law, which makes its averages right, and RDPP is given the target.
    """
    angles = np.linspace(-45.0, 45.0, AGENTS)
    problem, data, _ = fairness(*synthetic(0, angles=angles.tolist(), points=24))
    # Each agent's loss and constraints times target / law: the mean under the walk is then the mean under the target.
    weighed = Problem(
        lambda x, xi: xi["ratio"] * problem.loss(x, xi["rows"]),
        lambda x, xi: xi["ratio"] * problem.constraints(x, xi["rows"]),
        problem.geometry,
    )
    uniform = np.full(AGENTS, 1 / AGENTS)
    target = IIDSource(data)
    reference = solve_reference(problem, target, np.zeros(3))
    rows = []
    for name, adjacency, kind in graphs():
        chain = MarkovChain.from_graph(adjacency, kind)
        tau, samples = chain.mixing_time(), visits * AGENTS
        source = MarkovSource(chain, data)
        paths = np.asarray(source.paths(range(FRESH, FRESH + seeds), samples))
        corrected = MarkovSource(chain, {"rows": data, "ratio": uniform / chain.stationary})
        for label, algorithm, seen_problem, seen in [
            ("EDPP-t", edpp(tau), weighed, corrected),
            ("WDPP", wdpp(), weighed, corrected),
            ("RDPP", rdpp(uniform), problem, source),
        ]:
            row = measure(
                *(algorithm, problem, target, reference),
                x0=np.zeros(3, np.float32),
                paths=paths,
                counts=[samples],
                seen=(seen_problem, seen),
            )
            rows.append({"graph": name, "walk": kind, "tau_mix": tau, "algorithm": label, **row})
            log(f"{name:17} {label:14} {row['gap'][-1]:.2e}")
    return rows


def sweep(seeds: int, taus: Iterable[int], log: Callable[[str], None] = lambda line: None) -> list[dict[str, Any]]:
    """The default design with p = 1 / (3 tau) and 300 tau samples; fewer rows and, at 10,000, fewer seeds, for time."""
    rows = []
    for tau in taus:
        samples, count = 300 * tau, seeds if tau < 10_000 else min(seeds, 5)
        experiment = Experiment.prepare(configure(seeds=count, samples=samples, points=48, p=min(1 / (3 * tau), 0.333)))
        paths = np.asarray(experiment.source.paths(range(FRESH, FRESH + count), samples))
        theirs = experiment.algorithms()
        chosen = {name: theirs[name][0] for name in ("EDPP-t", "PD", "DPP-t", "MDPP")}
        for name, algorithm in (chosen | {"WDPP": wdpp(), "RDPP": rdpp()}).items():
            row = measure(
                *(algorithm, experiment.problem, experiment.source, experiment.reference),
                x0=np.zeros(3, np.float32),
                paths=paths,
                counts=[samples],
            )
            rows.append({"tau_mix": tau, "algorithm": name, **row})
            log(f"tau_mix {tau:<9} {name:14} {row['gap'][-1]:.2e}")
    return rows


def tried(seeds: int, samples: int, log: Callable[[str], None] = lambda line: None) -> list[dict[str, Any]]:
    """Other constants, windows, estimators and averages than those of RDPP and WDPP, on smaller data, other paths."""
    memory, window = rdpp(), wdpp()
    levels = MultiLevel.with_cap(16).max_level
    variants: dict[str, tuple[Algorithm, Any]] = {
        "RDPP": (memory, None),
        **{f"RDPP, c = {c}": (dataclasses.replace(memory, schedule=Aging(c)), None) for c in (0.0, 0.5, 3.0)},
        "RDPP, uniform": (memory, "uniform"),
        "RDPP, weights t": (memory, ("polynomial", 1)),
        "RDPP, weights t^4": (memory, ("polynomial", 4)),
        "RDPP, suffix": (memory, "suffix"),
        "WDPP": (window, None),
        "WDPP, no window": (dataclasses.replace(window, estimator=SingleSample()), None),
        **{f"WDPP, k = {k}": (dataclasses.replace(window, estimator=GrowingWindow(k)), None) for k in (1, 9, 25, 150)},
        "WDPP, weights t": (window, ("polynomial", 1)),
        "WDPP, MLMC": (dataclasses.replace(window, estimator=MultiLevel(levels)), None),
        "WDPP, MLMC clipped": (dataclasses.replace(window, estimator=Clipped(levels)), None),
        "WDPP, MLMC antithetic": (dataclasses.replace(window, estimator=Antithetic(levels)), None),
    }
    counts = [count for count in (1000, 3000, 10_000) if count < samples] + [samples]
    rows = []
    for design in DESIGNS:
        experiment = Experiment.prepare(configure(design, seeds=seeds, samples=samples, points=96))
        paths = np.asarray(experiment.source.paths(range(OTHER, OTHER + seeds), samples))
        theirs = {name: algorithm for name, (algorithm, _) in experiment.algorithms().items()}
        multi, diameter = theirs["MDPP"], 2 * experiment.config.radius
        own: dict[str, tuple[Algorithm, Any]] = {
            **{name: (theirs[name], None) for name in ("EDPP-t", "PD", "MDPP")},
            "MDPP, clipped": (dataclasses.replace(multi, estimator=Clipped(levels)), None),
            "MDPP, antithetic": (dataclasses.replace(multi, estimator=Antithetic(levels)), None),
            "MDPP, own scales": (dataclasses.replace(multi, estimator=Balanced(multi.estimator, diameter)), None),
            "ADPP": (theirs["ADPP"], None),
            "ADPP, own scales": (
                dataclasses.replace(theirs["ADPP"], estimator=Balanced(SingleSample(), diameter)),
                None,
            ),
            "WDPP, own scales": (
                dataclasses.replace(window, estimator=Balanced(window.estimator, diameter)),
                None,
            ),
        }
        for name, (algorithm, average) in (own | variants).items():
            row = measure(
                *(algorithm, experiment.problem, experiment.source, experiment.reference),
                x0=np.asarray(experiment.config.x0, np.float32),
                paths=paths,
                counts=counts,
                average=average,
            )
            rows.append({"design": design, "algorithm": name, **row})
            log(f"{design:17} {name:18} {row['gap'][-1]:.2e}")
    return rows


def known_laws(seeds: int, samples: int, log: Callable[[str], None] = lambda line: None) -> list[dict[str, Any]]:
    """What one path says of the stationary law, and how far the exact optimum under that is from the optimum."""
    rows: list[dict[str, Any]] = []
    for design in DESIGNS:
        experiment = Experiment.prepare(configure(design, seeds=seeds, samples=samples, points=96))
        paths = np.asarray(experiment.source.paths(range(FRESH, FRESH + seeds), samples))
        chosen = {"EDPP-t": experiment.algorithms()["EDPP-t"][0], "RDPP (visits)": rdpp("visits"), "RDPP": rdpp()}
        rows.append({"chain": design, "samples": samples, **laws(experiment, paths, chosen)})
        log(f"{design:17} floor          {rows[-1]['gap']['exact, shares']:.2e}")
    for name, adjacency, kind in graphs():
        source = MarkovSource(MarkovChain.from_graph(adjacency, kind), np.zeros(AGENTS))
        paths = np.asarray(source.paths(range(FRESH, FRESH + seeds), samples // 2))
        rows.append({"chain": name, "samples": samples // 2, "errors": law_errors(paths, source.weights)})
    return rows


def streams(seeds: int, samples: int, log: Callable[[str], None] = lambda line: None) -> list[dict[str, Any]]:
    """The default design over more seeds, where WDPP and PD are close: each beside WDPP on the same paths."""
    experiment = Experiment.prepare(configure(seeds=seeds, samples=samples))
    first = FRESH + 1000
    paths = np.asarray(experiment.source.paths(range(first, first + seeds), samples))
    theirs = experiment.algorithms()
    rows: list[dict[str, Any]] = []
    for name in ("WDPP", "PD", "EDPP-t"):
        row = measure(
            *(wdpp() if name == "WDPP" else theirs[name][0], experiment.problem, experiment.source),
            experiment.reference,
            x0=np.asarray(experiment.config.x0, np.float32),
            paths=paths,
            counts=[samples],
        )
        more = np.array(row["gaps"]) - np.array(rows[0]["gaps"] if rows else row["gaps"])
        found = {"more": float(more.mean()), "more_error": float(more.std(ddof=1) / np.sqrt(seeds))}
        rows.append({"algorithm": name, **row, **found})
        log(f"{seeds} seeds {name:14} {row['gap'][-1]:.2e}")
    return rows


def measure(
    algorithm: Algorithm,
    problem: Problem,
    target: Any,
    reference: Reference,
    *,
    x0: Any,
    paths: np.ndarray,
    counts: list[int],
    seen: Any = None,
    average: Any = None,
) -> dict[str, Any]:
    """Mean Lagrangian gap, its standard error, and the worst infeasibility over seeds, of the returned point.

    `seen` is the problem and source that the algorithm is run on, where they are not those it is judged by.
    """
    seen_problem, source = seen or (problem, target)
    seeds, samples = paths.shape
    result = run(
        algorithm,
        seen_problem,
        source,
        x0=jnp.asarray(x0),
        num_samples=samples,
        seeds=seeds,
        record=counts,
        paths=paths,
        average=average,
    )
    quality = metrics.evaluate(result, problem, target, reference)
    gaps = metrics.summarise(quality.lagrangian_gap)
    return {
        "seeds": seeds,
        "samples": counts,
        "gap": gaps.mean.tolist(),
        "standard_error": gaps.standard_error.tolist(),
        "infeasibility": quality.infeasibility.max(axis=(0, 2)).tolist(),
        "gaps": quality.lagrangian_gap[:, -1].tolist(),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m studies.beyond", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="4 seeds and shorter runs: a few minutes")
    parser.add_argument("--out", type=Path, default=Path("beyond-out"), help="folder (default: %(default)s)")
    parser.add_argument("--force", action="store_true", help="replace results of another configuration in that folder")
    options = parser.parse_args(arguments)
    try:
        needs("beyond draws its figure with", "plots", "matplotlib.figure")
        keep_others(options.out / "beyond.json", (), {"quick": options.quick}, options.force, ("beyond.md",))
        make_room(options.out)
    except UsageError as error:
        parser.error(str(error))
    results = beyond(options.quick, log=functools.partial(print, flush=True))
    write_whole(options.out / "beyond.json", json.dumps(results))
    write_whole(options.out / "beyond.md", tables(results))
    draw_sweep(results["sweep"], options.out / "sweep.svg")
    print(f"tables: {options.out / 'beyond.md'}")


if __name__ == "__main__":
    main()
