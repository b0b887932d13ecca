"""A task of the benchmark: a problem, its samples in twenty orders, a later part, and an optimum from elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import numpy as np

from ergodrift._core import check
from ergodrift.data.source import Source, Visits
from ergodrift.data.tables import TableSource
from ergodrift.problem import Problem
from ergodrift.trust.diagnose import Diagnosis, diagnose
from ergodrift.trust.values import path_values
from ergodrift.types import PyTree

STARTS = 20  # places of a record, evenly spread, from which it is read
GOLDEN = 0.6180339887498949  # further starts fall between those, none twice

Order = Literal["time", "any", "drawn"]


class Optimum(NamedTuple):
    """The best point of a task, as a solver that is not ours found it.

    Attributes:
        x: x#, with the structure of a point.
        loss: f̄(x#).
        multipliers: lambda* >= 0, one for each constraint.
        solver: what found it, in words.
    """

    x: PyTree
    loss: float
    multipliers: np.ndarray
    solver: str


class Table(NamedTuple):
    """The rows of a classifier, for tools that take tables and not samples.

    Attributes:
        X: (n, d) features, an intercept in the first column.
        y: (n,) labels, -1 or 1.
        sensitive: (n,) the group of each row.
        metric: what the constraint is nearest to in the words of those tools, "demographic_parity" or
            "false_positive_rate".
        limit: of the constraint, in units of the score.
        later: the same of the later part, or None.
    """

    X: np.ndarray
    y: np.ndarray
    sensitive: np.ndarray
    metric: str
    limit: float
    later: Table | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A problem with its data: what every algorithm and every tool is given.

    Attributes:
        name: by which it is called.
        title: a line for a table.
        about: what is minimised, under what, in which units.
        data: package, licence and citation, or "simulated".
        problem: loss, constraints and domain.
        source: the samples of the training part.
        x0: where all start.
        num_samples: of one run, one pass over the training part where that is a record.
        later: held out, later in time; None where fresh paths of the same source will do.
        solve: the optimum under the empirical law of the record, or the stationary law of the chain, by a solver that
            is not ours and from formulas that are not those of `problem`.
        order: what tells runs apart. "time": run k starts at row k n / 20 and wraps around, so that dependence and
            empirical law stay and run 0 has the true order; "any": permutations, of a record that has no order;
            "drawn": paths of the source with seed k.
        table: for tools that want a table.
    """

    name: str
    title: str
    about: str
    data: str
    problem: Problem
    source: Source
    x0: PyTree
    num_samples: int
    later: Source | None
    solve: Callable[[], Optimum]
    order: Order
    table: Table | None = None

    def __post_init__(self) -> None:
        check.choice("order", self.order, ("time", "any", "drawn"))
        check.integer("num_samples", self.num_samples, at_least=1, at_most=self.source.length or 2**31 - 1)

    def optimum(self) -> Optimum:
        """The optimum; found once."""
        if "_optimum" not in self.__dict__:
            object.__setattr__(self, "_optimum", self.solve())
        return self.__dict__["_optimum"]

    def paths(self, seeds: int) -> np.ndarray | None:
        """(seeds, num_samples) row numbers for `run(..., paths=...)`; None where samples are simulated."""
        seeds = check.integer("seeds", seeds, at_least=1)
        if not isinstance(self.source, TableSource):
            return None
        return np.stack([self.path(seed) for seed in range(seeds)])

    def path(self, seed: int) -> PyTree:
        """The path of one run: row numbers, or what the source draws where samples are simulated."""
        if self.order == "drawn":
            drawn = self.source.paths([seed], self.num_samples)
            return jax.tree.map(np.asarray, self.source.path_of(drawn, 0))
        rows = self.source.length or self.num_samples
        if self.order == "any":
            return np.random.default_rng(seed).permutation(rows)[: self.num_samples].astype(np.int32)
        start = round((seed % STARTS + seed // STARTS * GOLDEN) / STARTS * rows)
        return ((start + np.arange(self.num_samples)) % rows).astype(np.int32)

    def visits(self, seed: int) -> Visits:
        """The samples of one run as `points` and `rows`: sample t is row rows[t] of points. States are held once."""
        return self.source.visits(self.path(seed))[0]

    def samples(self, seed: int) -> PyTree:
        """The samples of one run in their order, along a leading axis: what every tool sees.

        A state of a chain is there as often as it is visited, which is gigabytes where states are large: `visits` holds
        each once.
        """
        seen = self.visits(seed)
        return jax.tree.map(lambda leaf: np.asarray(leaf)[seen.rows], seen.points)

    def diagnosis(self) -> Diagnosis:
        """How dependent the samples of run 0 are, through loss and constraints at the optimum.

        Of a record too short to tell the slowest of these (one follows the seasons, say), through the loss alone, or
        else through the constraints alone.
        """
        x = self.optimum().x
        if self.order == "drawn":
            return diagnose(self.source, self.problem, x, num_samples=self.num_samples)
        losses, values = path_values(self.problem, self.source, x, self.path(0))
        loss, constraints = {"loss": losses}, {f"constraint {i}": c for i, c in enumerate(values.T)}
        for series in (loss | constraints, loss):
            try:
                return diagnose(series)
            except ValueError:
                continue
        return diagnose(constraints)

    def __repr__(self) -> str:
        return f"Task({self.name}: {self.num_samples:,} samples; {self.title})"
