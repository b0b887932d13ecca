"""Section 5 of the paper, end to end: data, chain, the eight algorithms, metrics. Finished algorithms are kept."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import scipy

import ergodrift
from ergodrift import metrics
from ergodrift._core.files import write_whole
from ergodrift.data.chain import MarkovChain
from ergodrift.data.tables import MarkovSource
from ergodrift.engine.result import Result
from ergodrift.engine.run import run
from ergodrift.experiments.config import Config
from ergodrift.experiments.results import AlgorithmResults, Results
from ergodrift.methods.algorithms import Algorithm, adpp, dpp, edpp, mdpp, pd, pd2
from ergodrift.problem import Problem
from ergodrift.problems import FairnessBounds, SyntheticData, fairness, synthetic
from ergodrift.solve.reference import Reference, solve_reference

SCHEMA = "ergodrift reproduce v1"

# The metrics of a curve; "_last" is of x_t, without it of the mean x̄_t.
POINT_METRICS = ("gap", "infeasibility_0", "infeasibility_1", "lagrangian_gap")
METRICS = (*POINT_METRICS, *(f"{name}_last" for name in POINT_METRICS), "regret", "violation_0", "violation_1")


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The experiment made ready: all that its runs share."""

    config: Config
    rows: SyntheticData
    problem: Problem
    source: MarkovSource
    bounds: FairnessBounds
    reference: Reference
    benchmarks: list[np.ndarray] = dataclasses.field(default_factory=list)  # losses of x*, once they are needed

    @staticmethod
    def prepare(config: Config) -> Experiment:
        """Draw the data, build the chain and solve for the optimum."""
        rows = Experiment.rows_of(config)
        problem, data, bounds = fairness(*rows, limit=config.limit, radius=config.radius)
        states = len(config.angles)
        chain = MarkovChain(np.full((states, states), config.p) + (1 - states * config.p) * np.eye(states))
        source = MarkovSource(chain, data)
        return Experiment(config, rows, problem, source, bounds, solve_reference(problem, source, np.zeros(3)))

    @staticmethod
    def rows_of(config: Config) -> SyntheticData:
        """The data that a configuration stands for."""
        return synthetic(config.seed, angles=config.angles, scale=config.scale, phi=config.phi, points=config.points)

    def algorithms(self) -> dict[str, tuple[Algorithm, dict[str, float]]]:
        """The eight algorithms by name, each with the parameters it was given."""
        config, bounds = self.config, self.bounds
        tau, beta, horizon = config.tau_mix, config.beta, config.samples
        gradient = max(bounds.loss_grad, bounds.constraint_jac)
        delta = bounds.delta(2 * config.radius)
        both = {"gradient_bound": gradient, "constraint_bound": bounds.constraints}
        return {
            "PD": (pd(horizon, **both), {"horizon": horizon, **both}),
            "PD2": (pd2(gradient), {"gradient_bound": gradient, "beta": 0.5}),
            "DPP-T": (dpp(horizon), {"horizon": horizon}),
            "DPP-t": (dpp(), {}),
            "EDPP-T": (edpp(tau, beta, horizon), {"tau_mix": tau, "beta": beta, "horizon": horizon}),
            "EDPP-t": (edpp(tau, beta), {"tau_mix": tau, "beta": beta}),
            "MDPP": (
                mdpp(delta, beta, config.cap, add_delta=False),
                {"delta": delta, "beta": beta, "cap": config.cap},
            ),
            "ADPP": (adpp(beta), {"beta": beta}),
        }

    def path_seeds(self) -> list[int]:
        """One integer per path; neighbouring values of `seed` share none."""
        return [self.config.seed * 10_000 + number for number in range(self.config.seeds)]

    @functools.cached_property
    def paths(self) -> np.ndarray:
        """The states that every algorithm sees, one row per seed; drawn once."""
        return np.asarray(self.source.paths(self.path_seeds(), self.config.samples))

    def run(self, name: str) -> AlgorithmResults:
        """One algorithm over all seeds: its curves, final values and spreads, ready for JSON."""
        config = self.config
        algorithm, parameters = self.algorithms()[name]
        began = time.monotonic()
        result = run(
            algorithm,
            self.problem,
            self.source,
            x0=np.asarray(config.x0, np.float32),
            num_samples=config.samples,
            seeds=self.path_seeds(),
            record=grid(config),
            paths=self.paths,
        )
        curves = self.curves(result)
        return {
            "parameters": parameters,
            "seconds": time.monotonic() - began,
            "rounds": np.asarray(result.rounds)[:, -1].tolist(),
            "samples_used": np.asarray(result.samples_used)[:, -1].tolist(),
            "solution": np.asarray(result.solution, float).tolist(),
            "curves": {metric: _rounded(values) for metric, values in curves.items()},
            "final": {metric: _rounded(values[:, -1]) for metric, values in curves.items()},
            "summary": {metric: _summary(values) for metric, values in curves.items()},
        }

    def curves(self, result: Result) -> dict[str, np.ndarray]:
        """All metrics, each (seeds, records)."""
        found: dict[str, np.ndarray] = {}
        for point, suffix in [("x_mean", ""), ("x", "_last")]:
            quality = metrics.evaluate(result, self.problem, self.source, self.reference, point)
            over = np.moveaxis(quality.infeasibility, 2, 0)
            for name, values in zip(POINT_METRICS, (quality.gap, *over, quality.lagrangian_gap), strict=True):
                found[name + suffix] = values
        if not self.benchmarks:  # all algorithms see the same paths, so they share the best points in hindsight
            self.benchmarks.append(metrics.benchmark_losses(result, self.problem, self.source))
        found["regret"] = np.asarray(result.loss_sum, dtype=float) - self.benchmarks[0]
        found["violation_0"], found["violation_1"] = np.moveaxis(metrics.violation(result), 2, 0)
        return found


def grid(config: Config) -> np.ndarray:
    """Sample counts of the records: half spread evenly, half evenly in the logarithm, for both kinds of axis."""
    half = config.records // 2 + 1
    evenly = np.linspace(0, config.samples, half)[1:]
    logarithmically = np.geomspace(min(10, config.samples), config.samples, half)
    return np.unique(np.concatenate([evenly, logarithmically]).round().astype(int))


def reproduce(config: Config, parts: Path | None = None, log: Callable[[str], None] = lambda line: None) -> Results:
    """Run the whole experiment.

    Args:
        config: what to run.
        parts: a folder in which each finished algorithm is kept; those of the same configuration are not run again.
        log: called with a line about each step.

    Returns:
        The content of `results.json` but for the claims; its schema is described in docs/laboratory/reproduction.md.
    """
    experiment = Experiment.prepare(config)
    reference = experiment.reference
    log(f"data and chain ready; f# = {reference.value:.6f}, KKT residual {reference.kkt_residual:.1e}")
    algorithms: dict[str, AlgorithmResults] = {}
    for name in experiment.algorithms():
        kept = None if parts is None else _Part(parts, config, name)
        found = None if kept is None else kept.load()
        resumed = found is not None
        if found is None:
            found = experiment.run(name)
            if kept is not None:
                try:
                    kept.save(found)
                except OSError as error:  # a full disk: what was found is not lost, and is not found again either
                    log(f"{name} cannot be kept for another time: {error}")
        algorithms[name] = found
        log(f"{name:7} " + ("kept from before" if resumed else f"{found['seconds']:.1f} s"))
    return {
        "schema": SCHEMA,
        "config": {**dataclasses.asdict(config), "tau_mix": config.tau_mix},
        "versions": versions(),
        "chain": {
            "stationary": experiment.source.chain.stationary.tolist(),
            "mixing_time": experiment.source.chain.mixing_time(),
        },
        "reference": {
            "x": reference.x.tolist(),
            "value": reference.value,
            "constraints": reference.constraints.tolist(),
            "multipliers": reference.multipliers.tolist(),
            "kkt_residual": reference.kkt_residual,
        },
        "samples": grid(config).tolist(),
        "path_seeds": experiment.path_seeds(),
        "algorithms": algorithms,
    }


def versions() -> dict[str, str]:
    """What the numbers were made with."""
    return {
        "ergodrift": ergodrift.__version__,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


class _Part:
    """The finished result of one algorithm, in a file of its own."""

    def __init__(self, folder: Path, config: Config, name: str) -> None:
        identity = json.dumps([SCHEMA, dataclasses.asdict(config), versions(), name])
        self.path = folder / f"{name}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"

    def load(self) -> AlgorithmResults | None:
        try:
            return json.loads(self.path.read_text())
        except (OSError, ValueError):
            return None  # not there, or cut short by a crash: it is run again

    def save(self, content: AlgorithmResults) -> None:
        write_whole(self.path, json.dumps(content))


def _rounded(values: np.ndarray) -> list[Any]:
    """Seven significant digits: what float32 runs have."""

    def short(value: float) -> float:
        return float(f"{value:.7g}")

    return [_rounded(row) for row in values] if values.ndim > 1 else [short(value) for value in values.tolist()]


def _summary(values: np.ndarray) -> dict[str, list[float]]:
    summary = metrics.summarise(values)
    return {name: _rounded(getattr(summary, name)) for name in ("mean", "std", "low", "high")}
