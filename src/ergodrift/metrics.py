"""Metrics: pure functions of a result. Gap, infeasibility and violation are signed, without a positive part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ergodrift._core import check
from ergodrift._core.compiled import compiled
from ergodrift._core.precision import double
from ergodrift.data.expectation import BATCH, expectations, wide
from ergodrift.data.source import Source
from ergodrift.engine.run import Result
from ergodrift.problem import Problem
from ergodrift.solve.hindsight import best_on_paths
from ergodrift.solve.reference import Reference
from ergodrift.trust.intervals import batch_errors
from ergodrift.trust.values import constraint_values, loss_values
from ergodrift.types import PyTree


class Errors(NamedTuple):
    """Standard errors of the last record's metrics, where the stationary law is that of a simulated path.

    They are for dependent samples (`trust.intervals.batch_errors`), and count that f# is a minimum under the same path:
    f̂# - f# is, to first order, the mean of f(x#, xi) + lambda*.g(x#, xi) - f# (Shapiro 1991). They are no spread over
    seeds: all seeds share the one path.

    Attributes:
        gap: (seeds,).
        infeasibility: (seeds, n).
        lagrangian_gap: (seeds,).
    """

    gap: np.ndarray
    infeasibility: np.ndarray
    lagrangian_gap: np.ndarray


class Quality(NamedTuple):
    """How good the points of a run are under the stationary law, leading axes (seeds, records); prints as a table of
    the last record.

    Attributes:
        gap: f̄(x) - f#; an infeasible point can have a negative gap.
        infeasibility: ḡ(x), (seeds, records, n).
        lagrangian_gap: f̄(x) - f# + lambda*.ḡ(x) >= 0, which compares feasible and infeasible points fairly.
        error: standard errors at the last record where expectations are those of a simulated path; None where the law
            is known, and all of the above are exact.
    """

    gap: np.ndarray
    infeasibility: np.ndarray
    lagrangian_gap: np.ndarray
    error: Errors | None = None

    def __str__(self) -> str:
        seeds, count = self.gap.shape[0], self.infeasibility.shape[2]
        told = "" if self.error is None else " +- standard error of a law that is simulated"
        lines = [f"after the last sample, mean over {seeds} seed{'s' if seeds > 1 else ''}{told}"]
        columns = {
            "gap": (),
            **{f"infeasibility {i}": (i,) for i in range(count)},
            "lagrangian_gap": (),
        }
        for name, at in columns.items():
            field = name.split()[0]
            error = "" if self.error is None else f" +- {getattr(self.error, field)[(slice(None), *at)].mean():.2g}"
            lines.append(f"{name:18}{getattr(self, field)[(slice(None), -1, *at)].mean():12.5g}{error}")
        return "\n".join(lines)


class Summary(NamedTuple):
    """Mean and spread over seeds: standard deviation, standard error, and the 10 and 90 % quantiles."""

    mean: np.ndarray
    std: np.ndarray
    standard_error: np.ndarray
    low: np.ndarray
    high: np.ndarray


def evaluate(result: Result, problem: Problem, source: Source, reference: Reference, point: str = "x_mean") -> Quality:
    """Gap, infeasibility and Lagrangian gap of x̄_t (`point="x_mean"`) or of x_t (`point="x"`), at every record.

    Gap(x) = f̄(x) - f̄(x#) and Infeasibility(x) = ḡ(x) (Kim and Lee, section 2.3), with expectations under the source's
    stationary law, in float64.
    """
    check.choice("point", point, ("x_mean", "x"))
    losses, infeasibility = expectations(problem, source, getattr(result, point), axes=2)
    if reference.multipliers.shape != infeasibility.shape[2:]:
        raise ValueError(
            "reference was solved with per_sample=True; the Lagrangian gap needs one for the averaged constraints"
        )
    gap = losses - reference.value
    last = jax.tree.map(lambda leaf: np.asarray(leaf)[:, -1], getattr(result, point))
    error = _errors(problem, source, reference, last) if source.law_is_simulated else None
    return Quality(gap, infeasibility, gap + infeasibility @ reference.multipliers, error)


def _errors(problem: Problem, source: Source, reference: Reference, points: PyTree) -> Errors:
    """Of points along a leading axis."""
    laws, weight = (source.loss_law.points, source.constraint_law.points), reference.multipliers
    simulated = [part.law_is_simulated for part in source.parts]

    def error(values: np.ndarray, part: int) -> np.ndarray:
        known = np.zeros(values.shape[1])
        return batch_errors(values, overlap=False)[0] if simulated[part] else known

    best_loss = loss_values(problem, laws[0], reference.x)
    best_rows = constraint_values(problem, laws[1], reference.x) @ weight
    found = []
    for row in range(len(jax.tree.leaves(points)[0])):
        x = jax.tree.map(lambda leaf, row=row: leaf[row], points)
        more = loss_values(problem, laws[0], x) - best_loss
        rows = constraint_values(problem, laws[1], x)
        if source.paired:  # two paths, independent of each other
            of_loss = error(more[:, None], 0)
            of_rows = error(np.column_stack([best_rows, rows @ weight - best_rows, rows]), 1)
            found.append(np.concatenate([np.hypot(of_loss, of_rows[:2]), of_rows[2:]]))
        else:
            gap = more - best_rows
            found.append(error(np.column_stack([gap, gap + rows @ weight, rows]), 0))
    gaps, lagrangians, *rest = np.array(found).T
    return Errors(gaps, np.array(rest).T, lagrangians)


def optimality_gap(
    result: Result, problem: Problem, source: Source, reference: Reference, point: str = "x_mean"
) -> np.ndarray:
    """f̄(x) - f#, (seeds, records); see `evaluate`."""
    return evaluate(result, problem, source, reference, point).gap


def infeasibility(result: Result, problem: Problem, source: Source, point: str = "x_mean") -> np.ndarray:
    """ḡ(x), (seeds, records, n); see `evaluate`."""
    check.choice("point", point, ("x_mean", "x"))
    return expectations(problem, source, getattr(result, point), axes=2)[1]


def lagrangian_gap(
    result: Result, problem: Problem, source: Source, reference: Reference, point: str = "x_mean"
) -> np.ndarray:
    """f̄(x) - f# + lambda*.ḡ(x), (seeds, records); see `evaluate`."""
    return evaluate(result, problem, source, reference, point).lagrangian_gap


def violation(result: Result) -> np.ndarray:
    """Violation(t) = sum of g(x, xi) over the samples taken, (seeds, records, n) (Kim and Lee, section 2.2).

    Where samples are batches, it is the sum over their rows divided by the size of a full batch; so it is for regret.
    """
    return np.asarray(result.constraint_sum)


def benchmarks(result: Result, problem: Problem, source: Source, per_sample: bool = False) -> list[Reference]:
    """For each seed the best fixed point in hindsight: x* minimises its realised sum of losses subject to ḡ(x) <= 0.

    With `per_sample`, x° of appendix C: subject to the constraints of every sample. x* is not x#, which minimises f̄.
    """
    # The same start for all: benchmarks depend on the paths, not on who walked them.
    x0 = problem.geometry.project(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:]), result.solution))
    return best_on_paths(
        problem, source, [_path(result, source, row) for row in range(len(result.seeds))], x0, per_sample
    )


def benchmark_losses(
    result: Result, problem: Problem, source: Source, comparators: Sequence[Reference] | None = None
) -> np.ndarray:
    """sum of f(x*, xi_s) over the samples taken, (seeds, records): what regret is measured against.

    It depends on the paths alone, so runs on the same paths share it. Comparators as in `regret`.
    """
    comparators = benchmarks(result, problem, source) if comparators is None else comparators
    if len(comparators) != len(result.seeds):
        raise ValueError(f"comparators: {len(comparators)} given for {len(result.seeds)} seeds")
    paths = [_path(result, source, row) for row in range(len(comparators))]
    seen = [source.visits(path)[0] for path in paths]
    with double():
        if source.parts[0].table is None:
            each = [
                _losses(problem, wide(visits.points), _stacked([c.x]))[0]
                for visits, c in zip(seen, comparators, strict=True)
            ]
        else:  # one table serves all
            each = _losses(problem, wide(source.loss_law.points), _stacked([c.x for c in comparators]))
        losses = [np.asarray(one) for one in each]
    counts = [source.rows_taken(np.asarray(result.samples), path) for path in paths]
    sums = [_sums(one[visits.rows], rows) for one, visits, rows in zip(losses, seen, counts, strict=True)]
    return np.stack(sums) / source.rows_per_sample


def regret(
    result: Result, problem: Problem, source: Source, comparators: Sequence[Reference] | None = None
) -> np.ndarray:
    """Regret(t) = sum of f(x_s, xi_s) - sum of f(x*, xi_s) over the samples taken, (seeds, records).

    x* is each seed's own `benchmarks` over the whole run, unless other comparators are given, one per seed; the last
    record is the regret of the run (Kim and Lee, section 2.2; with several samples per round, as in section 4.2).
    """
    return np.asarray(result.loss_sum, dtype=float) - benchmark_losses(result, problem, source, comparators)


def summarise(values: ArrayLike) -> Summary:
    """Mean and spread over seeds, the leading axis."""
    values = np.asarray(values)
    count = values.shape[0]
    std = values.std(axis=0, ddof=1) if count > 1 else np.zeros(values.shape[1:])
    low, high = np.quantile(values, [0.1, 0.9], axis=0)
    return Summary(values.mean(axis=0), std, std / np.sqrt(count), low, high)


def _sums(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The sums of the first `counts` values, counts ascending; an order faster than `np.cumsum` of all of them."""
    sums, some = np.zeros(len(counts)), counts > 0
    if some.any():
        sums[some] = np.cumsum(np.add.reduceat(values, np.concatenate([[0], counts[some][:-1]])))
    return sums


def _path(result: Result, source: Source, row: int) -> PyTree:
    """The path of one seed, as replayed or drawn again from its seed."""
    count = int(result.samples[-1])
    if result.paths is None:
        return source.path_of(source.paths([int(result.seeds[row])], count), 0)
    path = source.path_of(result.paths, row)
    held = len(jax.tree.leaves(path)[0])
    if held < count:
        raise ValueError(
            f"regret needs the path, and only {held} of {count} samples are in result.paths "
            "(a walk on which hops were held keeps none)"
        )
    return jax.tree.map(lambda leaf: leaf[:count], path)


def _stacked(points: Sequence[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *points)


@compiled()
def _losses(problem: Problem, points: PyTree, x: PyTree) -> jax.Array:
    """The loss of each x at each point of a law."""
    return jax.lax.map(lambda y: jax.lax.map(lambda xi: problem.loss(y, xi), points, batch_size=BATCH), x)
