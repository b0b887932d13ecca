"""Can the constraints be met at all? The smallest worst violation over X, who conflicts, and Slater's margin.

`feasibility` solves for it where the stationary law is known; `queue_evidence` reads it off the queues of a run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

from ergodrift._core import check
from ergodrift._core.precision import double
from ergodrift.data.expectation import check_parts, wide
from ergodrift.data.source import Source
from ergodrift.geometry.region import Linearization
from ergodrift.methods.given import check_kinds
from ergodrift.problem import Problem
from ergodrift.problem.point import as_point
from ergodrift.solve.convex import EDGE, Bar, Bend, Functions, Worst, least_worst
from ergodrift.solve.derivatives import mean_constraints, mean_loss
from ergodrift.solve.program import Averaged, Constraints, ScaledProgram
from ergodrift.solve.reference import example_point
from ergodrift.types import PyTree, Scalar

ROUGH = 1e-4  # the largest residual worth returning
PRECISE = 1e-8  # of the worst violation: a gap that needs no other unit
ROUNDING = 1e-14  # of a constraint, in parts of its range
SHARE = 1e-6  # multipliers add up to 1; below this share one counts as 0


class Feasibility(NamedTuple):
    """The smallest worst violation, min over x in X of max_i ḡ_i(x), and what it says.

    The verdict and the conflict do not depend on the units of any constraint, nor on those of x: each constraint is
    judged by its own range over the domain. `worst`, the point and the multipliers are about the constraints as given.

    Attributes:
        worst: that value; negative where some point meets every constraint strictly.
        x: a point that attains it.
        constraints: ḡ(x), (n,).
        multipliers: weights >= 0 that add up to 1, with sum_i weight_i ḡ_i(y) >= worst for every y in X: the proof.
        conflict: constraints that no point of X can meet together, while every smaller choice of them can be met;
            empty where the problem is feasible.
        verdict: "slater" (met strictly), "edge" (met, but by less than 1e-9 of its range) or "infeasible".
        kkt_residual: how exact the solution is, with constraints in units of their gradients over the domain.
        least: no point of X has a smaller worst violation than this: proven by the multipliers and by convexity.
    """

    worst: float
    x: PyTree
    constraints: np.ndarray
    multipliers: np.ndarray
    conflict: tuple[int, ...]
    verdict: str
    kkt_residual: float
    least: float = -np.inf

    @property
    def margin(self) -> float:
        """Slater's epsilon, the largest with ḡ(x) <= -epsilon for some x; negative where there is none."""
        return -self.worst

    def __str__(self) -> str:
        binding = _names(np.flatnonzero(self.multipliers > SHARE))
        if self.verdict == "slater":
            return (
                f"feasible: Slater's condition holds with margin {self.margin:.6g}; no point does better, because of "
                f"{binding}"
            )
        if self.verdict == "edge":
            return (
                f"feasible only just: the best worst constraint is {self.worst:.2g}, which the solver cannot tell from "
                f"0; Slater's condition fails, or nearly so, because of {binding}"
            )
        return (
            f"infeasible: every point of the domain violates some constraint by at least {self.worst:.6g}; "
            f"{_names(self.conflict)} {'cannot be met' if len(self.conflict) == 1 else 'conflict'}; "
            f"loosen them by that much, or enlarge the domain"
        )


def feasibility(problem: Problem, source: Source, x0: PyTree = None) -> Feasibility:
    """The smallest worst violation min_{x in X} max_i E[g_i(x, xi)], by an independent convex solver.

    It is the program min s over (x, s) subject to ḡ_i(x) <= s; the multipliers of the rows are the proof that nothing
    smaller can be had. Whether the constraints can be met is decided with each one in units of its own gradient over
    the domain, min s subject to ḡ_i(x) <= s size_i, so that factors of any size on any of them change nothing. Where s
    is positive, constraints are left out one by one as long as the rest still
    conflict, which leaves an irreducible conflict (the deletion filter of Chinneck and Dravnieks 1991). Where it is
    negative, Slater's condition (Kim and Lee, assumption 3) holds with that margin.

    Args:
        problem: constraints and domain; the loss plays no part.
        source: its stationary law is the expectation.
        x0: a point of the domain to start from; needed where the shape of a point cannot be told from the domain.

    Raises:
        ValueError: the solver did not find a point with a small gap.

    >>> import jax.numpy as jnp, ergodrift as ed
    >>> limits = lambda x, xi: jnp.stack([1 - x[0], x[0] + 0.5, x[1] - 9])  # x >= 1 and x <= -0.5
    >>> problem = ed.Problem(lambda x, xi: x @ xi, limits, ed.Ball(2.0))
    >>> found = ed.feasibility(problem, ed.IIDSource(np.eye(2)))
    >>> round(found.worst, 6), found.conflict
    (0.75, (0, 1))
    """
    check_kinds(problem=problem, source=source)
    check.untraced("feasibility", x0)
    with double():
        point = wide(example_point(problem, source) if x0 is None else as_point("x0", x0))
        problem.check(point, wide(source.example))
        check_parts(problem, source, point)
        program = ScaledProgram(problem, point, wide(source.loss_law), warm=x0 is not None)
        search = _Search(program, Averaged(problem, wide(source.constraint_law)))
        everything = np.arange(len(search.sizes))
        with search.bar:
            judged = search.least_worst(everything)
            found, unit = search.in_given_units(judged)
            conflict: tuple[int, ...] = ()
            if judged.least > EDGE:
                conflict = search.irreducible(np.flatnonzero(judged.weights > SHARE * judged.weights.max()))
        verdict = "infeasible" if judged.least > EDGE else "slater" if judged.value < -EDGE else "edge"
        values = search.rows(found.z)[0][everything]
        x = jax.tree.map(np.asarray, program.point_of(found.z))
        shares = found.weights / search.sizes
        worst, least = float(values.max()), found.least * unit
        if worst - least <= ROUNDING * search.sizes.max():  # no float64 x comes nearer to the least
            worst = least
        return Feasibility(worst, x, values, shares / shares.sum(), conflict, verdict, found.residual, least)


class _Search:
    """The constraints in units of their own gradients; those of the domain, which must hold in any case, come last."""

    def __init__(self, program: ScaledProgram, constraints: Constraints) -> None:
        within = program.within(constraints)
        self.program, self.rows = program, program.rows(within.rows)
        self.units = program.sizes(self.rows)
        self.sizes = self.units[: len(constraints.rows(program.point)[0])]
        self.domain = np.arange(len(self.sizes), len(self.units))
        self.second = program.bend(within, self.units)
        self.bar = Bar("feasibility")

    def functions(self, chosen: np.ndarray) -> Functions:
        def some(z: np.ndarray) -> Linearization:
            values, jac = self.rows(z)
            return (values / self.units)[chosen], (jac / self.units[:, None])[chosen]

        return some

    def bend(self, chosen: np.ndarray) -> Bend | None:
        second = self.second
        if second is None:
            return None

        def some(z: np.ndarray, weights: np.ndarray) -> np.ndarray:
            spread = np.zeros(1 + len(self.units))
            spread[1 + chosen] = weights
            return second(z, spread)

        return some

    def least_worst(self, chosen: np.ndarray, share: np.ndarray | None = None) -> Worst:
        """min over X of the largest chosen ḡ_i / (size_i share_i)."""
        share = np.ones(len(chosen)) if share is None else share
        region, start, every = self.program.region, self.program.start, np.append(chosen, self.domain)
        shares = np.append(share, np.zeros(len(self.domain)))
        found = least_worst(region, start, self.functions(every), self.bend(every), shares, self.bar)
        if not found.residual <= ROUGH:
            raise ValueError(
                f"the solver stopped at a KKT residual of {found.residual:.3g}; pass another x0 to start from, and "
                "make sure that the constraints are convex, and finite there with their gradients"
            )
        return found._replace(weights=found.weights[: len(chosen)])

    def in_given_units(self, judged: Worst) -> tuple[Worst, float]:
        """The same for the constraints as they are, ḡ_i <= s unit with a unit that makes s of size one; and that unit.

        The answer is of the size of the smallest constraint that matters, or of a larger one where only those matter.
        """
        everything = np.arange(len(self.sizes))
        smallest = self.sizes[judged.weights > SHARE * judged.weights.max()].min()
        if np.ptp(self.sizes) == 0:
            return judged, float(smallest)
        best: tuple[Worst, float] | None = None
        for unit in np.unique(np.append(self.sizes, smallest)):
            found = self.least_worst(everything, unit / self.sizes)
            if best is None or (found.value - found.least) * unit < (best[0].value - best[0].least) * best[1]:
                best = found, float(unit)
            if found.value - found.least <= PRECISE * abs(found.value):
                return found, float(unit)
        assert best is not None
        return best

    def irreducible(self, chosen: np.ndarray) -> tuple[int, ...]:
        """Leave out one constraint after another for as long as the rest cannot be met."""
        for candidate in chosen:
            rest = chosen[chosen != candidate]
            if rest.size and self.least_worst(rest).least > EDGE:
                chosen = rest
        return tuple(int(i) for i in chosen)


class QueueEvidence(NamedTuple):
    """What the queues of a run say about feasibility.

    A queue that grows like t^p with p < 1 keeps up; one that grows in proportion to t does not, and then Q_t / t tends
    to the violations that are left over: v = [ḡ(x̂)]_+ at the point x̂ with the least sum of squares.

    Attributes:
        verdict: "infeasible" (the queues grow in proportion to t), "no sign" (clearly slower; a conflict may still be
            too small for a run of this length to show) or "undecided".
        growth: p, the exponent of ||Q_t|| between the middle of the run and its end, mean over seeds.
        growth_error: its standard error over seeds; infinite with one seed.
        slope: Q_t / t between the middle and the end, one entry a constraint, mean over seeds: v where "infeasible".
        slope_error: its standard error over seeds.
        worst: (low, high), estimates of the smallest worst violation: ||v||^2 / sum(v) from the weights v / sum(v), and
            max(v), which x̂ attains. Both are 0 unless the verdict is "infeasible".
        conflict: constraints whose queues grow: slope more than three standard errors, and 5 % of the largest, above 0.
        x: the mean over seeds of x̄, which settles near x̂.
    """

    verdict: str
    growth: float
    growth_error: float
    slope: np.ndarray
    slope_error: np.ndarray
    worst: tuple[float, float]
    conflict: tuple[int, ...]
    x: PyTree

    def __str__(self) -> str:
        seen = f"the queues grow like t^{self.growth:.2f}" + (
            f" (standard error {self.growth_error:.2f})" if np.isfinite(self.growth_error) else " (one seed: no spread)"
        )
        if self.verdict == "infeasible":
            return (
                f"{seen}, in proportion to t: {_names(self.conflict)} cannot all be met; the smallest worst violation "
                f"is about {self.worst[0]:.3g} to {self.worst[1]:.3g} (slopes {_vector(self.slope)} ± "
                f"{_vector(self.slope_error)})"
            )
        if self.verdict == "no sign":
            return (
                f"{seen}, slower than t: no sign of a conflict"
                if self.growth > 0
                else "the queues do not grow: no sign of a conflict"
            )
        return (
            f"{seen}: not enough to say whether the constraints can be met; run longer or with more seeds, or solve "
            "with feasibility(problem, source)"
        )


LINEAR, TOLERANCE = 0.875, 0.05  # halfway between the most a feasible problem shows, (1 + beta)/2 <= 3/4, and 1
STEADY = 0.03  # by how much the queues' speed may differ between the third and the last quarter of a run
PRESSURE = 10.0  # how much harder the constraints must pull than the loss


def queue_evidence(rounds: ArrayLike, queue: ArrayLike, x: PyTree, pressure: float = np.inf) -> QueueEvidence:
    """Judge feasibility by how queues grow: ||Q_t|| = O(t^((1+beta)/2)) where a feasible point exists (theorem 1).

    The exponent is p = log(||Q_T|| / ||Q_s||) / log(T / s), with s the record nearest T/2 of each seed. "no sign" asks
    for p below 7/8, "infeasible" for p = 1 up to 0.05, each by two standard errors over seeds. A young run, in which
    x_t is still on its way to the feasible points, can look linear too. So "infeasible" also asks that the queues keep
    their speed over the second half, and that the constraints already pull harder than the loss tenfold and more.

    Args:
        rounds: (seeds, records).
        queue: Q, (seeds, records, n).
        x: (seeds, ...) the point each seed recommends.
        pressure: sum_i Q_Ti ||dḡ_i|| / (V_T ||df̄||) at x; `Result.feasibility` works it out.
    """
    rounds, queue = np.asarray(rounds, dtype=float), np.asarray(queue, dtype=float)
    seeds = np.arange(len(rounds))
    slots = [np.abs(rounds - part * rounds[:, -1:]).argmin(axis=1) for part in (0.5, 0.75, 1.0)]
    half, late, end = (rounds[seeds, slot] for slot in slots)
    if not ((half > 0) & (half < late) & (late < end)).all():
        raise ValueError(
            "the records are too few to see how the queues grow; keep at least four over the run (record=4)"
        )
    first, third, last = (queue[seeds, slot] for slot in slots)
    sizes = [np.linalg.norm(part, axis=1) for part in (first, third, last)]
    least = max(queue.max() * 1e-12, np.finfo(float).tiny)  # an empty queue grows like t^0
    growth = np.log(np.maximum(sizes[2], least) / np.maximum(sizes[0], least)) / np.log(end / half)
    slopes = (last - first) / (end - half)[:, None]
    p, error = _mean(growth)
    slope, slope_error = _mean(slopes)
    doubt = 2 * error if len(seeds) > 1 else 0.0
    before, now = (sizes[1] - sizes[0]) / (late - half), (sizes[2] - sizes[1]) / (end - late)
    change, change_error = _mean(now - before)
    steady = abs(change) <= STEADY * before.mean() + (2 * change_error if len(seeds) > 1 else 0.0)
    v = np.maximum(slope, 0)
    growing = (v > (3 * slope_error if len(seeds) > 1 else 0.0)) & (v > 0.05 * v.max())
    linear = abs(p - 1) + doubt <= TOLERANCE and steady and growing.any() and pressure >= PRESSURE
    verdict = "infeasible" if linear else "no sign" if p + doubt < LINEAR else "undecided"
    worst = (float(v @ v / v.sum()), float(v.max())) if linear else (0.0, 0.0)
    conflict = tuple(int(i) for i in np.flatnonzero(growing)) if linear else ()
    mean = jax.tree.map(lambda leaf: np.asarray(leaf, dtype=float).mean(axis=0), x)
    return QueueEvidence(verdict, float(p), float(error), slope, slope_error, worst, conflict, mean)


def pressure(problem: Problem, source: Source, x: PyTree, queue: ArrayLike, penalty: Scalar) -> float:
    """sum_i Q_i ||dḡ_i(x)|| / (V ||df̄(x)||): how much harder the constraints pull than the loss, in dual norms."""
    with double():
        norm = problem.geometry.dual_norm
        rows = jax.vmap(norm)(mean_constraints(problem, wide(source.constraint_law), wide(x))[1])
        loss = float(norm(mean_loss(problem, wide(source.loss_law), wide(x))[1]))
    return float(np.asarray(queue) @ np.asarray(rows)) / max(float(penalty) * loss, np.finfo(float).tiny)


def _mean(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds and its standard error, infinite with one seed."""
    mean = values.mean(axis=0)
    return mean, values.std(axis=0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.full(mean.shape, np.inf)


def _names(indices: Iterable[int]) -> str:
    """Constraints by number, from 0 as in code."""
    numbers = [str(int(i)) for i in indices]
    if len(numbers) == 1:
        return f"constraint {numbers[0]}"
    return f"constraints {', '.join(numbers[:-1])} and {numbers[-1]}" if numbers else "no constraint"


def _vector(values: np.ndarray) -> str:
    return "(" + ", ".join(f"{value:.3g}" for value in values) + ")"
