"""The stationary problem as solvers see it: functions of size one, of a vector of size one, with their derivatives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ergodrift.data.source import Law
from ergodrift.geometry.region import Inequalities, Linearization
from ergodrift.problem import Problem
from ergodrift.solve.convex import Bend, Functions
from ergodrift.solve.derivatives import curvature, each_constraint, mean_constraints, mean_loss
from ergodrift.solve.zoom import size, sizes
from ergodrift.types import Array, PyTree


class Constraints(Protocol):
    """Constraints of x with their derivatives, in the structure of a point."""

    def rows(self, x: PyTree) -> tuple[Array, PyTree]:
        """Values and Jacobian."""
        ...

    def curvature(self, x: PyTree, multipliers: np.ndarray) -> Array:
        """The second derivative of multipliers.g, (d, d)."""
        ...


class Averaged:
    """ḡ, by its law."""

    def __init__(self, problem: Problem, law: Law) -> None:
        self.problem, self.law = problem, jax.tree.map(jnp.asarray, law)

    def rows(self, x: PyTree) -> tuple[Array, PyTree]:
        return mean_constraints(self.problem, self.law, x)

    def curvature(self, x: PyTree, multipliers: np.ndarray) -> Array:
        weights = self.law.weights[:, None] * jnp.asarray(multipliers)[None, :]
        return curvature(self.problem, "constraints", self.law.points, weights, x)


class Each:
    """g at every one of some points, one after the other."""

    def __init__(self, problem: Problem, points: PyTree) -> None:
        self.problem, self.points = problem, points

    def rows(self, x: PyTree) -> tuple[Array, PyTree]:
        return each_constraint(self.problem, self.points, x)

    def curvature(self, x: PyTree, multipliers: np.ndarray) -> Array:
        count = jax.tree.leaves(self.points)[0].shape[0]
        return curvature(self.problem, "constraints", self.points, jnp.asarray(multipliers.reshape(count, -1)), x)


class Within:
    """Constraints, and after them those that a domain has beside its region."""

    def __init__(self, constraints: Constraints, domain: Inequalities, unravel: Callable[[jax.Array], PyTree]) -> None:
        self.constraints, self.domain, self.unravel = constraints, domain, unravel

    def rows(self, x: PyTree) -> tuple[Array, PyTree]:
        values, jac = self.constraints.rows(x)
        more, slopes = self.domain.rows(np.asarray(ravel_pytree(x)[0]))
        both = jax.tree.map(lambda a, b: np.concatenate([a, b]), jac, jax.vmap(self.unravel)(jnp.asarray(slopes)))
        return np.concatenate([values, more]), both

    def curvature(self, x: PyTree, multipliers: np.ndarray) -> Array:
        if self.domain.curvature is None:
            raise NotImplementedError("the domain is known by its projection alone")
        flat = np.asarray(ravel_pytree(x)[0])
        count = len(multipliers) - len(self.domain.rows(flat)[0])
        inner = self.constraints.curvature(x, multipliers[:count])
        return np.asarray(inner) + self.domain.curvature(flat, multipliers[count:])


class ScaledProgram:
    """The problem as the solvers see it: a flat vector z of size one, from which the point is linear.

    Loss and constraints are divided by the size of their gradients with respect to z, so that tolerances mean the same
    for a loss in millionths and in millions, on a domain of any size; the KKT residual is in those units.
    """

    def __init__(self, problem: Problem, point: PyTree, loss_law: Law, warm: bool) -> None:
        self.problem, self.loss_law = problem, jax.tree.map(jnp.asarray, loss_law)
        flat, self.unravel = ravel_pytree(point)
        self.region = problem.geometry.region(point)
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
    def point(self) -> PyTree:
        """Where the solver starts, in the structure of a point."""
        return self.point_of(self.start)

    def point_of(self, z: np.ndarray) -> PyTree:
        """The point, in its own structure, that z stands for."""
        return self.unravel(jnp.asarray(self.region.offset + self.region.lift @ z))

    def loss(self, x: PyTree) -> tuple[float, np.ndarray]:
        """The expected loss and its gradient with respect to z."""
        value, gradient = mean_loss(self.problem, self.loss_law, x)
        with np.errstate(all="ignore"):  # what is not finite is not used
            return float(value), np.asarray(ravel_pytree(gradient)[0]) @ self.region.lift

    def rows(self, constraints: Callable[[PyTree], tuple[Array, PyTree]]) -> Callable[[np.ndarray], Linearization]:
        """constraints(x) -> (values, Jacobian), both in the structure of a point, as a function of z."""

        def flat(z: np.ndarray) -> Linearization:
            values, jac = constraints(self.point_of(z))
            rows = [np.asarray(leaf).reshape(len(values), -1) for leaf in jax.tree.leaves(jac)]
            with np.errstate(all="ignore"):
                return np.asarray(values), np.concatenate(rows, axis=1) @ self.region.lift

        return flat

    def sizes(self, rows: Callable[[np.ndarray], Linearization]) -> np.ndarray:
        """What each constraint is divided by: the size of its gradient, or its value if it has none."""
        return sizes(rows, self.probes)

    def functions(self, rows: Callable[[np.ndarray], Linearization], sizes: np.ndarray) -> Functions:
        """Loss and constraints of z in units of their gradients; the last point is remembered."""
        last: tuple[bytes, Linearization] | None = None

        def both(z: np.ndarray) -> Linearization:
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

    def loss_curvature(self, x: PyTree) -> np.ndarray:
        law = self.loss_law
        return np.asarray(curvature(self.problem, "loss", law.points, law.weights[:, None], x))

    def within(self, constraints: Constraints) -> Constraints:
        """The constraints together with those of the domain, if it has any beside its region; these come last."""
        further = self.region.inequalities
        return constraints if further is None else Within(constraints, further, self.unravel)

    def holds(self, x: PyTree) -> bool:
        """Whether a point of the region lies in the domain."""
        further = self.region.inequalities
        return further is None or bool((further.rows(np.asarray(ravel_pytree(x)[0]))[0] <= 0).all())
