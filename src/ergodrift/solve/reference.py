"""The optimum of the stationary problem, from a solver of another kind, with multipliers and a proven gap."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import ArrayLike

from ergodrift._core import check
from ergodrift._core.precision import double
from ergodrift.data.expectation import check_parts, wide
from ergodrift.data.source import Law, Source
from ergodrift.geometry.region import Linearization
from ergodrift.methods.given import check_kinds
from ergodrift.problem import Problem
from ergodrift.problem.point import as_point
from ergodrift.solve.convex import (
    EDGE,
    SOLVED,
    Bar,
    Bend,
    Functions,
    Solution,
    least_multipliers,
    least_worst,
    minimum,
    smallest_multipliers,
)
from ergodrift.solve.derivatives import all_constraints, all_losses, mean_loss
from ergodrift.solve.program import Averaged, Constraints, Each, ScaledProgram
from ergodrift.trust.intervals import batch_errors
from ergodrift.types import PyTree

FEASIBLE = 1e-8  # the largest violation a reference may have, in units of the constraints' gradients
ROUGH, EDGY = 1e-4, 1e-2  # the largest KKT residual worth returning, and where no point is strictly feasible
GAP, ROUNDING = 1e-6, 1e-15  # the largest gap that needs no warning, in parts of the loss, or of its range over X
STEEP = 10.0  # multipliers so many times what the loss asks for are looked into
MOST_CUTS = 50  # constraints added at a time when one must hold for every sample


class Reference(NamedTuple):
    """The optimum of min f̄(x) over X subject to ḡ(x) <= 0.

    Attributes:
        x: x#, with the structure of a point.
        value: f# = f̄(x#).
        constraints: ḡ(x#), (n,); with `per_sample`, the largest over all samples.
        multipliers: lambda* >= 0, (n,); with `per_sample`, (points of the constraint law, n).
        kkt_residual: the largest of |stationarity|, violation and |lambda g|, entry by entry, with loss and constraints
            in units of their gradients over the domain. At a kink it is the gap, in these units, that stands for the
            first: the multipliers are then those of the cuts that prove it.
        gap: no feasible point has a loss below value - gap. It follows from convexity alone, whatever found x.
        note: what is to be known about the multipliers, or about a law that is simulated; empty where there is nothing.
    """

    x: PyTree
    value: float
    constraints: np.ndarray
    multipliers: np.ndarray
    kkt_residual: float
    gap: float = np.nan
    note: str = ""


def solve_reference(
    problem: Problem,
    source: Source,
    x0: PyTree = None,
    *,
    loss_weights: ArrayLike | None = None,
    per_sample: bool = False,
) -> Reference:
    """Solve the stationary problem, min E[loss(x, xi)] over X subject to E[constraints(x, xi)] <= 0.

    An interior-point method with exact second derivatives finds point and multipliers. Where loss or constraints have
    kinks (CVaR, hinge, absolute values) and it gets stuck, a bundle method goes on. Either way the gap is proven by
    convexity: f̄(y) >= f̄(x) + lambda.ḡ(x) + (df̄(x) + lambda.dḡ(x)).(y - x) for every feasible y, at its smallest over
    X. The answer does not depend on the units of loss, constraints and x. For problems of up to a few hundred
    dimensions. On a terminal a solve of more than a moment shows its progress.

    Where no point meets the constraints strictly (Slater's condition fails), multipliers may have no limit, and
    `Reference.note` says so: the smallest are returned where there are many, and a warning is given where there are
    none. A warning also says the gap where it is more than a millionth of the loss.

    Args:
        problem: loss, constraints and domain.
        source: its stationary laws are the expectations.
        x0: a point of the domain to start from. Only needed where the shape of a point cannot be told from the domain
            or from the one vector length that the functions accept.
        loss_weights: weights of the points of the loss law in place of the stationary ones: visit counts give the
            regret benchmark x*, which minimises the realised sum of losses subject to ḡ <= 0.
        per_sample: ask that the constraints hold for every sample, not on average: with `loss_weights`, the adversarial
            benchmark x° of appendix C.

    Raises:
        ValueError: no feasible point was found, or no point with a small gap.

    >>> import ergodrift as ed
    >>> source = ed.IIDSource(np.array([[1.0, 2.0], [3.0, 0.0]]))
    >>> problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] - xi[:1] / 2, ed.Ball(9.0))
    >>> reference = ed.solve_reference(problem, source)
    >>> reference.x.round(6), reference.multipliers.round(6)
    (array([1., 1.]), array([2.]))
    """
    check_kinds(problem=problem, source=source)
    check.untraced("solve_reference", x0)
    with double():
        point = wide(example_point(problem, source) if x0 is None else as_point("x0", x0))
        problem.check(point, wide(source.example))
        loss_law, constraint_law = wide(source.loss_law), wide(source.constraint_law)
        if loss_weights is not None:
            loss_law = Law(loss_law.points, _weights(loss_weights, len(loss_law.weights)))
        check_parts(problem, source, point)
        program = ScaledProgram(problem, point, loss_law, warm=x0 is not None)
        if per_sample:
            return _solve_per_sample(program, constraint_law)
        found = _solved(program, Averaged(problem, constraint_law))
        if source.law_is_simulated:
            told = _simulated_errors(problem, source, loss_law, constraint_law, found)
            found = found._replace(note="; ".join(filter(None, [found.note, told])))
        return found


def _simulated_errors(problem: Problem, source: Source, loss_law: Law, constraint_law: Law, found: Reference) -> str:
    """How well the mean loss and the mean constraints at the optimum are known, where a simulated path stands for the
    law."""
    told, count = [], 0
    losses = np.asarray(all_losses(problem, loss_law.points, found.x))[:, None]
    rows = np.asarray(all_constraints(problem, constraint_law.points, found.x))
    for name, part, values in zip(("loss", "constraints"), source.parts, (losses, rows), strict=True):
        if part.law_is_simulated:
            count = len(values)
            errors = ", ".join(f"{error:.2g}" for error in batch_errors(values, overlap=False)[0])
            told.append(f"the {name} {'has' if name == 'loss' else 'have'} standard error {errors}")
    return f"expectations are those of {count:,} simulated samples: {'; '.join(told)}"


def _solve_per_sample(program: ScaledProgram, law: Law) -> Reference:
    """Constraints at each point of the law, added as they are found violated: few of them matter at the optimum."""
    kept = np.flatnonzero(law.weights > 0)
    points = jax.tree.map(lambda leaf: leaf[kept], law.points)
    values = np.asarray(all_constraints(program.problem, points, program.point))
    rows = np.array([np.argmax(values.max(axis=1))])
    while True:
        chosen = Each(program.problem, jax.tree.map(lambda leaf, rows=rows: leaf[rows], points))
        found = _solved(program, chosen)
        values = np.asarray(all_constraints(program.problem, points, found.x))
        units = program.sizes(program.rows(chosen.rows)).reshape(len(rows), -1).max(axis=0)
        over = (values / units).max(axis=1)
        worst = np.argsort(-over)[:MOST_CUTS]
        fresh = np.setdiff1d(worst[over[worst] > FEASIBLE], rows)
        if not fresh.size:
            break
        rows = np.concatenate([rows, fresh])
    multipliers = np.zeros((len(law.weights), values.shape[1]))
    multipliers[kept[rows]] = found.multipliers.reshape(len(rows), -1)
    return found._replace(constraints=values.max(axis=0), multipliers=multipliers)


def _solved(program: ScaledProgram, constraints: Constraints) -> Reference:
    """The reference under these constraints."""
    own = slice(len(constraints.rows(program.point)[0]))  # those of the domain come after them
    with Bar("solve_reference") as bar:
        found, sizes, functions, bend = _optimum(program, constraints, bar)
        values = (found.rows * sizes)[own]
        if found.empty:
            raise ValueError(
                "no feasible point found: at every point of the domain some constraint is above 0, at best by "
                f"{values.max():.3g}; feasibility(problem, source) says which of them conflict"
            )
        if not (found.residual <= (EDGY if found.edge else ROUGH) and found.worst <= 10 * FEASIBLE):  # a NaN is not
            raise ValueError(
                f"the solver stopped at a KKT residual of {found.residual:.3g}, the largest constraint at "
                f"{values.max():.3g}; pass another x0 to start from, and make sure that loss and "
                "constraints are convex, and finite there with their gradients"
            )
        found, note, none = _looked_into(program, found, own, functions, bend, bar)
    point = program.point_of(found.z)
    if none:
        warnings.warn(note, stacklevel=3)
    elif not found.gap * program.scale <= _tolerance(program, point):
        warnings.warn(
            f"the reference is proven to be within {found.gap * program.scale:.2g} of the optimum only, its loss "
            f"being {found.value * program.scale:.6g}; a smaller domain, or an x0 nearer to the optimum, may help",
            stacklevel=3,
        )
    return Reference(
        jax.tree.map(np.asarray, point),
        found.value * program.scale,
        values,
        (found.multipliers * program.scale / sizes)[own],
        found.residual,
        max(found.gap, 0.0) * program.scale,
        note,
    )


def _optimum(
    program: ScaledProgram, constraints: Constraints, bar: Bar
) -> tuple[Solution, np.ndarray, Functions, Bend | None]:
    """The optimum in the domain, and what was solved for it.

    Where functions of the domain have no second derivatives they would cost those of all others. So the region around
    it is tried first: an optimum there that lies in the domain is one of the domain.
    """
    further = program.region.inequalities
    if further is not None and further.curvature is None:
        tried = _minimised(program, constraints, bar)
        found = tried[0]
        if found.empty or (found.residual <= SOLVED and program.holds(program.point_of(found.z))):
            return tried
    return _minimised(program, program.within(constraints), bar)


def _minimised(
    program: ScaledProgram, constraints: Constraints, bar: Bar
) -> tuple[Solution, np.ndarray, Functions, Bend | None]:
    rows = program.rows(constraints.rows)
    sizes = program.sizes(rows)
    functions, bend = program.functions(rows, sizes), program.bend(constraints, sizes)
    return minimum(program.region, program.start, functions, bend, bar), sizes, functions, bend


def _tolerance(program: ScaledProgram, x: PyTree) -> float:
    """A gap that is small beside the loss at x, or beside its change over a distance such as that of x from 0."""
    value, gradient = mean_loss(program.problem, program.loss_law, x)
    change = float(np.linalg.norm(ravel_pytree(gradient)[0]) * np.linalg.norm(ravel_pytree(x)[0]))
    return max(GAP * abs(float(value)), GAP * change, ROUNDING * program.scale)


def _looked_into(
    program: ScaledProgram, found: Solution, own: slice, functions: Functions, bend: Bend | None, bar: Bar
) -> tuple[Solution, str, bool]:
    """Where multipliers pull far harder than the loss, the smallest that will do, why, and whether none will."""
    pull = max(float(np.abs(functions(found.z)[1][0]).max()), 1e-6)
    if not found.edge and found.multipliers.max(initial=0.0) <= STEEP * pull:
        return found, "", False

    def rest(z: np.ndarray) -> Linearization:
        values, jac = functions(z)
        return values[1:], jac[1:]

    second = None if bend is None else lambda z, weights: bend(z, np.append(0.0, weights))
    best = least_worst(program.region, program.start, rest, second, np.ones(len(found.rows)), bar)
    if best.value <= -EDGE and found.residual <= ROUGH:
        return found, "", False
    smallest = smallest_multipliers(program.region, found, functions)
    names = ", ".join(str(i) for i in np.flatnonzero(best.weights[own] > 1e-6))
    if smallest is found.multipliers and found.penalty:
        smallest = least_multipliers(program.region, found, functions, bar)
    none = smallest is found.multipliers
    note = (
        "no point of the domain meets the constraints strictly (Slater's condition fails), because of constraints "
        f"{names}; "
    ) + (
        "no multipliers exist, and those returned only show it: loosen one of these constraints a little, see "
        "feasibility(problem, source)"
        if none
        else "many multipliers fit, and those returned are the smallest"
    )
    return found._replace(multipliers=smallest), note, none


def _weights(weights: ArrayLike, count: int) -> np.ndarray:
    array = np.asarray(weights, dtype=float)
    if array.shape != (count,) or not np.isfinite(array).all() or array.min() < 0 or array.sum() <= 0:
        raise ValueError(f"loss_weights must be {count} weights >= 0, not all zero, one for each point of the loss law")
    return array / array.sum()


def example_point(problem: Problem, source: Source) -> PyTree:
    """A point of the right shape: as the domain says, or the one vector length that the functions accept."""
    geometry, xi = problem.geometry, wide(source.example)
    if (known := geometry.example()) is not None:
        return known

    def fits(size: int) -> bool:
        try:
            problem.check(np.zeros(size), xi)
        except ValueError:
            return False
        return True

    sizes = sorted({size for leaf in jax.tree.leaves(xi) for size in np.shape(leaf)})
    found = [
        size for size in sizes if fits(size) and not fits(size + 1)
    ]  # a length that may be exceeded proves nothing
    if len(found) != 1:
        raise ValueError("x0 must be given: the shape of a point cannot be told from the problem alone")
    return np.asarray(geometry.project(jnp.full(found[0], 1.0 / found[0])))
