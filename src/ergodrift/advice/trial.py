"""What a method makes of paths of a source whose law is known, judged by that law."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import numpy as np

from ergodrift.advice.pilot import LOOKED_AT, Samples, rough, worth
from ergodrift.data.expectation import expectations
from ergodrift.data.source import Source
from ergodrift.methods.algorithms import Algorithm
from ergodrift.problem import Problem
from ergodrift.types import PyTree

MOST, TOGETHER, SEED = 16, 2**17, 2**32 - 4  # paths, samples that all have together, and the seed of the first


class Trial(NamedTuple):
    """Paths of a source, and what a point is worth by its law (`pilot.worth`).

    Attributes:
        problem, source, x0: what is tried on.
        multipliers: l, those of a rough solution.
        paths: samples of each.
        start: what x0 is worth.
    """

    problem: Problem
    source: Source
    x0: PyTree
    multipliers: np.ndarray
    paths: list[Samples]
    start: float

    @staticmethod
    def of(
        problem: Problem, source: Source, x0: PyTree, num_samples: int, multipliers: jax.Array, fresh: bool = False
    ) -> Trial:
        """Paths of so many samples, or of the first of them where they are very many; fresh ones are others."""
        samples = min(num_samples, LOOKED_AT)
        count = min(TOGETHER // samples, MOST)
        first = SEED - MOST * fresh
        drawn = source.paths([first - k for k in range(count)], samples)
        paths = [Samples.of_states(source, source.path_of(drawn, k)) for k in range(count)]
        found = Trial(problem, source, x0, np.asarray(multipliers, float), paths, np.nan)
        return found._replace(start=float(found.worths([x0])[0]))

    def worth(self, algorithm: Algorithm) -> float:
        """Of the points that an algorithm recommends, on average; infinite where one is not finite."""
        length = self.paths[0].rows.shape[1]
        estimator = algorithm.estimator.for_run(length, None, self.source.stationary)
        method = dataclasses.replace(algorithm, estimator=estimator).bind(self.problem)
        ends = [rough(self.problem, method, path, self.x0, len(self.multipliers))[0] for path in self.paths]
        worth = float(np.mean(self.worths(ends)))
        return worth if np.isfinite(worth) else np.inf

    def worths(self, points: list[PyTree]) -> np.ndarray:
        """Of each point, by the law: without chance in it f + 2 l.[g]_+ can be taken, right if 2 l >= lambda*."""
        stacked = jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *points)
        losses, constraints = expectations(self.problem, self.source, stacked, axes=1)
        return worth(losses, constraints, self.multipliers, away=1.0)

    def __str__(self) -> str:
        count, length = len(self.paths), self.paths[0].rows.shape[1]
        return f"{count} path{'s' if count > 1 else ''} of {length:,} samples"
