"""The optimum of the stationary problem, from a solver of another kind, with multipliers and a proven gap."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ergodrift._core.precision import double
from ergodrift.data.expectation import check_parts, wide
from ergodrift.data.source import Law, Source
from ergodrift.geometry import Box
from ergodrift.problem import Problem
from ergodrift.solve.convex import (
    EDGE,
    Bar,
    Bend,
    Functions,
    Solution,
    least_multipliers,
    least_worst,
    minimum,
    smallest_multipliers,
)
from ergodrift.solve.derivatives import all_constraints, curvature, each_constraint, mean_constraints, mean_loss
from ergodrift.solve.region import Rows, region
from ergodrift.solve.zoom import size, sizes

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
        constraints: ḡ(x#), (n,); for `every`, the largest over all samples.
        multipliers: lambda* >= 0, (n,); for `every`, (points of the constraint law, n).
        kkt_residual: the largest of |stationarity|, violation and |lambda g|, entry by entry, with loss and constraints
            in units of their gradients over the domain. At a kink it is the gap, in these units, that stands for the
            first: the multipliers are then those of the cuts that prove it.
        gap: no feasible point has a loss below value - gap. It follows from convexity alone, whatever found x.
        note: what is to be known about the multipliers; empty where there is nothing.
    """

    x: Any
    value: float
    constraints: np.ndarray
    multipliers: np.ndarray
    kkt_residual: float
    gap: float = np.nan
    note: str = ""


def solve_reference(
    problem: Problem, source: Source, x0: Any = None, *, loss_weights: Any = None, every: bool = False
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
        every: ask that the constraints hold for every sample, not on average: with `loss_weights`, the adversarial
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
    with double():
        point = wide(example_point(problem, source) if x0 is None else x0)
        problem.check(point, wide(source.example))
        loss_law, constraint_law = wide(source.loss_law), wide(source.constraint_law)
        if loss_weights is not None:
            loss_law = Law(loss_law.points, _weights(loss_weights, len(loss_law.weights)))
        check_parts(problem, source, point)
        program = Program(problem, point, loss_law, warm=x0 is not None)
        if every:
            return _solve_for_every(program, constraint_law)
        return program.solve(Averaged(problem, constraint_law))


def _solve_for_every(program: Program, law: Law) -> Reference:
    """Constraints at each point of the law, added as they are found violated: few of them matter at the optimum."""
    kept = np.flatnonzero(law.weights > 0)
    points = jax.tree.map(lambda leaf: leaf[kept], law.points)
    values = np.asarray(all_constraints(program.problem, points, program.point))
    rows = np.array([np.argmax(values.max(axis=1))])
    while True:
        chosen = Each(program.problem, jax.tree.map(lambda leaf, rows=rows: leaf[rows], points))
        found = program.solve(chosen)
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


class Program:
    """The problem as the solvers see it: a flat vector z of size one, from which the point is linear.

    Loss and constraints are divided by the size of their gradients with respect to z, so that tolerances mean the same
    for a loss in millionths and in millions, on a domain of any size; the KKT residual is in those units.
    """

    def __init__(self, problem: Problem, point: Any, loss_law: Law, warm: bool) -> None:
        self.problem, self.loss_law = problem, jax.tree.map(jnp.asarray, loss_law)
        flat, self.unravel = ravel_pytree(point)
        self.region = region(problem.geometry, point)
        self.start = self.region.inwards(self.region.embed(np.asarray(flat))) if warm else self.region.centre
        rng = np.random.default_rng(0)
        reach = float(problem.geometry.reach(point))
        probes = [self.unravel(jnp.asarray(reach * rng.normal(size=flat.size))) for _ in range(3)]
        inside = [np.asarray(ravel_pytree(problem.geometry.project(probe))[0]) for probe in probes]
        self.probes = [self.start, *(self.region.inwards(self.region.embed(probe)) for probe in inside)]

    @functools.cached_property
    def scale(self) -> float:
        """What the loss is divided by: the size of its gradient."""
        return size(np.array([np.abs(self.loss(self.point_of(z))[1]).max() for z in self.probes]))

    @property
    def point(self) -> Any:
        """Where the solver starts, in the structure of a point."""
        return self.point_of(self.start)

    def point_of(self, z: np.ndarray) -> Any:
        """The point, in its own structure, that z stands for."""
        return self.unravel(jnp.asarray(self.region.offset + self.region.lift @ z))

    def loss(self, x: Any) -> tuple[float, np.ndarray]:
        """The expected loss and its gradient with respect to z."""
        value, gradient = mean_loss(self.problem, self.loss_law, x)
        with np.errstate(all="ignore"):  # what is not finite is not used
            return float(value), np.asarray(ravel_pytree(gradient)[0]) @ self.region.lift

    def rows(self, constraints: Callable[[Any], tuple[Any, Any]]) -> Callable[[np.ndarray], Rows]:
        """constraints(x) -> (values, Jacobian), both in the structure of a point, as a function of z."""

        def flat(z: np.ndarray) -> Rows:
            values, jac = constraints(self.point_of(z))
            rows = [np.asarray(leaf).reshape(len(values), -1) for leaf in jax.tree.leaves(jac)]
            with np.errstate(all="ignore"):
                return np.asarray(values), np.concatenate(rows, axis=1) @ self.region.lift

        return flat

    def sizes(self, rows: Callable[[np.ndarray], Rows]) -> np.ndarray:
        """What each constraint is divided by: the size of its gradient, or its value if it has none."""
        return sizes(rows, self.probes)

    def functions(self, rows: Callable[[np.ndarray], Rows], sizes: np.ndarray) -> Functions:
        """Loss and constraints of z in units of their gradients; the last point is remembered."""
        last: tuple[bytes, Rows] | None = None

        def both(z: np.ndarray) -> Rows:
            nonlocal last
            if last is None or last[0] != z.tobytes():
                loss, gradient = self.loss(self.point_of(z))
                values, jac = rows(z)
                slopes = np.vstack([gradient / self.scale, jac / sizes[:, None]])
                last = z.tobytes(), (np.append(loss / self.scale, values / sizes), slopes)
            return last[1]

        return both

    def bend(self, constraints: Constraints, sizes: np.ndarray) -> Bend | None:
        """The second derivative of weighed loss and constraints; None where functions do not have one."""

        def bend(z: np.ndarray, weights: np.ndarray) -> np.ndarray:
            x, total = self.point_of(z), np.zeros(2 * (self.region.lift.shape[0],))
            if weights[0]:
                total = weights[0] / self.scale * self.loss_curvature(x)
            total = total + np.asarray(constraints.curvature(x, weights[1:] / sizes))
            with np.errstate(all="ignore"):
                return self.region.lift.T @ total @ self.region.lift

        try:
            bend(self.start, np.append(1.0, np.ones(len(sizes))))
        except Exception:  # whatever a function's own rule of differentiation raises
            return None
        return bend

    def loss_curvature(self, x: Any) -> np.ndarray:
        law = self.loss_law
        return np.asarray(curvature(self.problem, "loss", law.points, law.weights[:, None], x))

    def solve(self, constraints: Constraints) -> Reference:
        """The reference under these constraints."""
        rows = self.rows(constraints.rows)
        sizes = self.sizes(rows)
        functions, bend = self.functions(rows, sizes), self.bend(constraints, sizes)
        with Bar("solve_reference") as bar:
            found = minimum(self.region, self.start, functions, bend, bar)
            if found.empty:
                raise ValueError(
                    "no feasible point found: at every point of the domain some constraint is above 0, at best by "
                    f"{(found.rows * sizes).max():.3g}; feasibility(problem, source) says which of them conflict"
                )
            if not (found.residual <= (EDGY if found.edge else ROUGH) and found.worst <= 10 * FEASIBLE):  # a NaN is not
                raise ValueError(
                    f"the solver stopped at a KKT residual of {found.residual:.3g}, the largest constraint at "
                    f"{(found.rows * sizes).max():.3g}; pass another x0 to start from, and make sure that loss and "
                    "constraints are convex, and finite there with their gradients"
                )
            found, note, none = self._looked_into(found, functions, bend, bar)
        point = self.point_of(found.z)
        if none:
            warnings.warn(note, stacklevel=3)
        elif not found.gap * self.scale <= self._tolerance(point):
            warnings.warn(
                f"the reference is proven to be within {found.gap * self.scale:.2g} of the optimum only, its loss "
                f"being {found.value * self.scale:.6g}; a smaller domain, or an x0 nearer to the optimum, may help",
                stacklevel=3,
            )
        return Reference(
            jax.tree.map(np.asarray, point),
            found.value * self.scale,
            found.rows * sizes,
            found.multipliers * self.scale / sizes,
            found.residual,
            max(found.gap, 0.0) * self.scale,
            note,
        )

    def _tolerance(self, x: Any) -> float:
        """A gap that is small beside the loss at x, or beside its change over a distance such as that of x from 0."""
        value, gradient = mean_loss(self.problem, self.loss_law, x)
        change = float(np.linalg.norm(ravel_pytree(gradient)[0]) * np.linalg.norm(ravel_pytree(x)[0]))
        return max(GAP * abs(float(value)), GAP * change, ROUNDING * self.scale)

    def _looked_into(
        self, found: Solution, functions: Functions, bend: Bend | None, bar: Bar
    ) -> tuple[Solution, str, bool]:
        """Where multipliers pull far harder than the loss, the smallest that will do, why, and whether none will."""
        pull = max(float(np.abs(functions(found.z)[1][0]).max()), 1e-6)
        if not found.edge and found.multipliers.max(initial=0.0) <= STEEP * pull:
            return found, "", False

        def rest(z: np.ndarray) -> Rows:
            values, jac = functions(z)
            return values[1:], jac[1:]

        second = None if bend is None else lambda z, weights: bend(z, np.append(0.0, weights))
        best = least_worst(self.region, self.start, rest, second, np.ones(len(found.rows)), bar)
        if best.value <= -EDGE and found.residual <= ROUGH:
            return found, "", False
        smallest = smallest_multipliers(self.region, found, functions)
        names = ", ".join(str(i) for i in np.flatnonzero(best.weights > 1e-6))
        if smallest is found.multipliers and found.penalty:
            smallest = least_multipliers(self.region, found, functions, bar)
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


class Constraints(Protocol):
    """Constraints of x with their derivatives, in the structure of a point."""

    def rows(self, x: Any) -> tuple[Any, Any]:
        """Values and Jacobian."""
        ...

    def curvature(self, x: Any, multipliers: np.ndarray) -> Any:
        """The second derivative of multipliers.g, (d, d)."""
        ...


class Averaged:
    """ḡ, by its law."""

    def __init__(self, problem: Problem, law: Law) -> None:
        self.problem, self.law = problem, jax.tree.map(jnp.asarray, law)

    def rows(self, x: Any) -> tuple[Any, Any]:
        return mean_constraints(self.problem, self.law, x)

    def curvature(self, x: Any, multipliers: np.ndarray) -> Any:
        weights = self.law.weights[:, None] * jnp.asarray(multipliers)[None, :]
        return curvature(self.problem, "constraints", self.law.points, weights, x)


class Each:
    """g at every one of some points, one after the other."""

    def __init__(self, problem: Problem, points: Any) -> None:
        self.problem, self.points = problem, points

    def rows(self, x: Any) -> tuple[Any, Any]:
        return each_constraint(self.problem, self.points, x)

    def curvature(self, x: Any, multipliers: np.ndarray) -> Any:
        count = jax.tree.leaves(self.points)[0].shape[0]
        return curvature(self.problem, "constraints", self.points, jnp.asarray(multipliers.reshape(count, -1)), x)


def _weights(weights: Any, count: int) -> np.ndarray:
    array = np.asarray(weights, dtype=float)
    if array.shape != (count,) or not np.isfinite(array).all() or array.min() < 0 or array.sum() <= 0:
        raise ValueError(f"loss_weights must be {count} weights >= 0, not all zero, one for each point of the loss law")
    return array / array.sum()


def example_point(problem: Problem, source: Source) -> Any:
    """A point of the right shape: from a box with arrays for bounds, or the one vector length the functions accept."""
    geometry, xi = problem.geometry, wide(source.example)
    if isinstance(geometry, Box) and np.ndim(jax.tree.leaves(geometry.lower)[0]):
        return jax.tree.map(
            lambda low, high: (np.asarray(low) + np.asarray(high)) / 2.0, geometry.lower, geometry.upper
        )

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
