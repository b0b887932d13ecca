"""A look at the end of a run: is its solution better than the point it began at?"""

from __future__ import annotations

import warnings

import jax
import numpy as np

from ergodrift.advice.pilot import Samples
from ergodrift.data.source import Source
from ergodrift.problem import Problem
from ergodrift.trust.start import loses
from ergodrift.types import PyTree

SAMPLES, SEEDS = 4096, 4  # that are looked at
DRAWN = 65_536  # of a path that is drawn for the look


class LosesToStartWarning(UserWarning):
    """The solution of a run is worse than the point it began at."""


def warn_of_losers(
    problem: Problem, source: Source, x0: PyTree, solution: PyTree, seeds: np.ndarray, num_samples: int, paths: PyTree
) -> None:
    """Warn where x0 has less loss than the solution, beyond chance, and violates no constraint more (`trust.loses`)."""
    if source.stationary is not None or source.paired:
        return  # the law is known, and a stretch of a slow chain says little of it: metrics compare with that
    losers = []
    for row, seed in enumerate(seeds[:SEEDS]):
        samples = Samples.of(source, _path(source, seed, row, num_samples, paths))
        end = samples.values(problem, jax.tree.map(lambda leaf, row=row: leaf[row], solution))
        start = samples.values(problem, x0)
        if loses(*end, *start):
            losers.append(f"seed {seed}: mean loss {end[0].mean():.4g} against {start[0].mean():.4g}")
    if losers:
        warnings.warn(
            f"the solution is worse than x0 on the samples of the run ({'; '.join(losers)}): take more samples, "
            "a domain that is not much larger than the solution needs, or what ed.auto(problem, source, x0) recommends",
            LosesToStartWarning,
            stacklevel=3,
        )


def _path(source: Source, seed: int, row: int, num_samples: int, paths: PyTree) -> PyTree:
    """Samples of one seed's path: evenly spread where the path is at hand, its first ones where it is drawn."""
    if paths is not None or source.per_pass is not None:
        num_samples = num_samples if paths is not None else min(num_samples, source.per_pass or num_samples)
        drawn = (source.paths([seed], num_samples), 0) if paths is None else (paths, row)
        whole = source.path_of(*drawn)
        places = np.linspace(0, num_samples - 1, min(SAMPLES, num_samples)).astype(int)
        return jax.tree.map(lambda leaf: np.asarray(leaf)[places], whole)
    drawn = source.path_of(source.paths([seed], min(DRAWN, num_samples)), 0)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:: max(DRAWN // SAMPLES, 1)], drawn)
