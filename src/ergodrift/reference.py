"""The optimum of the stationary problem, from an independent solver (SciPy), with multipliers and a KKT residual."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ergodrift.compiled import compiled
from ergodrift.expectation import BATCH, average, check_parts, wide
from ergodrift.geometry import Box
from ergodrift.precision import double
from ergodrift.problem import Problem, value_and_jacobian
from ergodrift.region import Rows, minimise, region
from ergodrift.source import Law, Source

FEASIBLE = 1e-8  # the largest violation a reference may have
MOST_CUTS = 50  # constraints added at a time when one must hold for every sample


class Reference(NamedTuple):
    """The optimum of min f̄(x) over X subject to ḡ(x) <= 0.

    Attributes:
        x: x#, with the structure of a point.
        value: f# = f̄(x#).
        constraints: ḡ(x#), (n,); for `every`, the largest over all samples.
        multipliers: lambda* >= 0, (n,); for `every`, (points of the constraint law, n).
        kkt_residual: the largest of |stationarity|, violation and |lambda g|, entry by entry, with loss and constraints
            in units of their gradients.
    """

    x: Any
    value: float
    constraints: np.ndarray
    multipliers: np.ndarray
    kkt_residual: float


def solve_reference(
    problem: Problem, source: Source, x0: Any = None, *, loss_weights: Any = None, every: bool = False
) -> Reference:
    """Solve the stationary problem, min E[loss(x, xi)] over X subject to E[constraints(x, xi)] <= 0.

    SLSQP finds the point; the multipliers are then the bounded least-squares solution of the stationarity condition, so
    that the KKT residual checks the one with the other. For problems of up to a few hundred dimensions.

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
        ValueError: no feasible point was found, or the solver did not reach a KKT point.

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
        return program.solve(lambda x: mean_constraints(problem, constraint_law, x))


def _solve_for_every(program: Program, law: Law) -> Reference:
    """Constraints at each point of the law, added as they are found violated: few of them matter at the optimum."""
    kept = np.flatnonzero(law.weights > 0)
    points = jax.tree.map(lambda leaf: leaf[kept], law.points)
    values = np.asarray(_all_constraints(program.problem, points, program.point))
    rows = np.array([np.argmax(values.max(axis=1))])
    while True:
        chosen = jax.tree.map(lambda leaf, rows=rows: leaf[rows], points)
        found = program.solve(lambda x, chosen=chosen: _each_constraint(program.problem, chosen, x))
        values = np.asarray(_all_constraints(program.problem, points, found.x))
        worst = np.argsort(-values.max(axis=1))[:MOST_CUTS]
        fresh = np.setdiff1d(worst[values[worst].max(axis=1) > FEASIBLE], rows)
        if not fresh.size:
            break
        rows = np.concatenate([rows, fresh])
    multipliers = np.zeros((len(law.weights), values.shape[1]))
    multipliers[kept[rows]] = found.multipliers.reshape(len(rows), -1)
    return found._replace(constraints=values.max(axis=0), multipliers=multipliers)


class Program:
    """The problem as SciPy sees it: a flat vector z, from which the point is linear, and smooth functions of it.

    Loss and constraints are divided by the size of their gradients over the domain, so that tolerances mean the same
    for a loss in millionths and in millions; the KKT residual is in those units.
    """

    def __init__(self, problem: Problem, point: Any, loss_law: Law, warm: bool) -> None:
        self.problem, self.loss_law = problem, loss_law
        flat, self.unravel = ravel_pytree(point)
        self.region = region(problem.geometry, point)
        self.start = self.region.embed(np.asarray(flat)) if warm else self.region.start
        rng = np.random.default_rng(0)
        reach = float(problem.geometry.reach(point))
        probes = [self.unravel(jnp.asarray(reach * rng.normal(size=flat.size))) for _ in range(3)]
        inside = [np.asarray(ravel_pytree(problem.geometry.project(probe))[0]) for probe in probes]
        self.probes = [self.start, *(self.region.embed(probe) for probe in inside)]

    @functools.cached_property
    def scale(self) -> float:
        """What the loss is divided by: its largest gradient over the probes."""
        return _size(max(np.abs(self.loss(self.point_of(z))[1]).max() for z in self.probes))

    @property
    def point(self) -> Any:
        """Where the solver starts, in the structure of a point."""
        return self.point_of(self.start)

    def point_of(self, z: np.ndarray) -> Any:
        """The point, in its own structure, that z stands for."""
        return self.unravel(jnp.asarray(self.region.lift @ z))

    def loss(self, x: Any) -> tuple[float, np.ndarray]:
        """The expected loss and its gradient with respect to z."""
        value, gradient = mean_loss(self.problem, self.loss_law, x)
        return float(value), np.asarray(ravel_pytree(gradient)[0]) @ self.region.lift

    def rows(self, constraints: Callable[[Any], tuple[Any, Any]]) -> Callable[[np.ndarray], Rows]:
        """constraints(x) -> (values, Jacobian), both in the structure of a point, as a function of z."""

        def flat(z: np.ndarray) -> Rows:
            values, jac = constraints(self.point_of(z))
            rows = [np.asarray(leaf).reshape(len(values), -1) for leaf in jax.tree.leaves(jac)]
            return np.asarray(values), np.concatenate(rows, axis=1) @ self.region.lift

        return flat

    def sizes(self, rows: Callable[[np.ndarray], Rows]) -> np.ndarray:
        """What each constraint is divided by: its largest gradient over the probes."""
        steepest = np.max([np.abs(rows(z)[1]).max(axis=1) for z in self.probes], axis=0)
        return np.array([_size(norm) for norm in steepest])

    def solve(self, constraints: Callable[[Any], tuple[Any, Any]]) -> Reference:
        """The reference under constraints(x) -> (values, Jacobian), both in the structure of a point."""
        rows = self.rows(constraints)
        sizes = self.sizes(rows)

        def objective(z: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self.loss(self.point_of(z))
            return value / self.scale, gradient / self.scale

        def constrained(z: np.ndarray) -> Rows:
            values, jac = rows(z)
            return values / sizes, jac / sizes[:, None]

        found = minimise(self.region, self.start, objective, constrained)
        if not found.worst <= 10 * FEASIBLE:  # a NaN is not
            above = (found.values * sizes).max()
            raise ValueError(
                f"no feasible point found: where the solver stopped, a constraint is {above:.3g} above 0 "
                f"({found.message}); the constraints may conflict over this domain: feasibility(problem, source) says "
                "which"
            )
        if not found.residual <= 1e-4:
            raise ValueError(
                f"the solver stopped at a KKT residual of {found.residual:.3g} ({found.message}); pass another x0 to "
                "start from, or smooth the loss where it has a kink"
            )
        point = self.point_of(found.z)
        multipliers = found.multipliers * self.scale / sizes
        x = jax.tree.map(np.asarray, point)
        return Reference(x, self.loss(point)[0], found.values * sizes, multipliers, found.residual)


def _size(norm: Any) -> float:
    """A norm to divide by: 1 where it is zero or not a number."""
    return float(norm) if norm > 0 and np.isfinite(norm) else 1.0


@compiled()
def mean_loss(problem: Problem, law: Law, x: Any) -> tuple[Any, Any]:
    """f̄(x) and its gradient."""
    return jax.value_and_grad(lambda y: average(problem.loss, law, y))(x)


@compiled()
def mean_constraints(problem: Problem, law: Law, x: Any) -> tuple[Any, Any]:
    """ḡ(x) and its Jacobian."""
    return value_and_jacobian(lambda y: average(problem.constraints, law, y), x)


@compiled()
def _all_constraints(problem: Problem, points: Any, x: Any) -> Any:
    return jax.lax.map(lambda xi: problem.constraints(x, xi), points, batch_size=BATCH)


@compiled()
def _each_constraint(problem: Problem, points: Any, x: Any) -> tuple[Any, Any]:
    return value_and_jacobian(lambda y: _all_constraints(problem, points, y).ravel(), x)


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
