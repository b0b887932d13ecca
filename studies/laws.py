"""How well one path tells the stationary law, and what that costs: the floor under RDPP with weights from visits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ergodrift import metrics
from ergodrift.data.expectation import expectations
from ergodrift.data.tables import IIDSource
from ergodrift.engine.run import run
from ergodrift.experiments.reproduce import Experiment
from ergodrift.solve.reference import solve_reference
from ergodrift.trust.transitions import stationary_laws, transition_counts

TURNS = 2000  # of the fixed-point iteration for a reversible chain; it has long settled by then


def shares(path: np.ndarray, size: int) -> np.ndarray:
    """The share of samples that each state has."""
    return np.bincount(path, minlength=size) / len(path)


def by_transitions(path: np.ndarray, size: int) -> np.ndarray:
    """The stationary law of the most likely chain, P_ij = N_ij / N_i.

    The path comes into a state as often as it leaves it, but for its two ends; so N_i are stationary for this P to
    1 / n, and this law is that of the shares.
    """
    counts = transition_counts(path[None], size)[0]
    law, seen = np.zeros(size), np.flatnonzero(counts.sum(axis=1) > 0)
    inside = counts[np.ix_(seen, seen)]
    law[seen] = stationary_laws((inside / inside.sum(axis=1, keepdims=True))[None])[0]
    return law


def by_reversible_transitions(path: np.ndarray, size: int) -> np.ndarray:
    """The stationary law of the most likely reversible chain: flows X_ij = (N_ij + N_ji) / (N_i / X_i + N_j / X_j).

    The fixed point of Bowman, Beauchamp, Boxer and Pande 2009.
    """
    counts = transition_counts(path[None], size)[0]
    both, leaves = counts + counts.T, np.maximum(counts.sum(axis=1), 1e-12)
    flow = both / both.sum()
    for _ in range(TURNS):
        rate = leaves / np.maximum(flow.sum(axis=1), 1e-300)
        flow = both / (rate[:, None] + rate[None, :])
        flow /= flow.sum()
    return flow.sum(axis=1)


ESTIMATES: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "visits": shares,
    "transitions": by_transitions,
    "reversible": by_reversible_transitions,
}


def law_errors(paths: np.ndarray, law: np.ndarray) -> dict[str, float]:
    """Total variation distance to the law of what each estimate makes of a path, mean over paths."""
    return {
        name: float(np.mean([np.abs(estimate(path, len(law)) - law).sum() / 2 for path in paths]))
        for name, estimate in ESTIMATES.items()
    }


def floor(experiment: Experiment, paths: np.ndarray) -> np.ndarray:
    """Lagrangian gaps of the exact optimum under each path's shares: of all that this path says of the law."""
    reference, found = experiment.reference, []
    for path in paths:
        seen = IIDSource(experiment.source.data, shares(path, len(experiment.source.weights)))
        best = solve_reference(experiment.problem, seen, np.asarray(experiment.config.x0)).x
        loss, constraints = expectations(experiment.problem, experiment.source, best)
        found.append(float(loss - reference.value + constraints @ reference.multipliers))
    return np.array(found)


def laws(experiment: Experiment, paths: np.ndarray, algorithms: dict[str, Any]) -> dict[str, Any]:
    """One row of the table: errors of the estimated law, the floor, and gaps of algorithms on the same paths."""
    row: dict[str, Any] = {"errors": law_errors(paths, experiment.source.weights)}
    gaps = {"exact, shares": floor(experiment, paths)}
    for name, algorithm in algorithms.items():
        result = run(
            algorithm,
            experiment.problem,
            experiment.source,
            x0=np.asarray(experiment.config.x0, np.float32),
            num_samples=paths.shape[1],
            seeds=len(paths),
            record=1,
            paths=paths,
        )
        quality = metrics.evaluate(result, experiment.problem, experiment.source, experiment.reference)
        gaps[name] = quality.lagrangian_gap[:, -1]
    summaries = {name: metrics.summarise(np.asarray(values)) for name, values in gaps.items()}
    return row | {
        "gap": {name: float(found.mean) for name, found in summaries.items()},
        "standard_error": {name: float(found.standard_error) for name, found in summaries.items()},
    }
