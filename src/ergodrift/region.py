"""Domains as SciPy's solvers see them: bounds, balls and sums of a flat vector."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy
from jax.flatten_util import ravel_pytree

from ergodrift.geometry import Ball, Box, EntropySimplex, Geometry, L1Ball, Product, Simplex

ACTIVE = 1e-6  # how close to its bound a constraint counts as active when multipliers are computed

Rows = tuple[np.ndarray, np.ndarray]  # values of several functions and their Jacobian


class Region(NamedTuple):
    """x = lift z, with lower <= z <= upper, ||z[part]||^2 <= r^2 for balls, row.z <= r for sums, and equal z = 1."""

    lift: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    balls: list[tuple[np.ndarray, float]]
    sums: list[tuple[np.ndarray, float]]
    equal: np.ndarray

    @property
    def start(self) -> np.ndarray:
        """A point inside: the middle of the bounds, scaled to meet the sums."""
        low, high = np.maximum(self.lower, -1e300), np.minimum(self.upper, 1e300)
        middle = np.where(np.isfinite(self.lower) & np.isfinite(self.upper), low / 2 + high / 2, 0.0)
        for row in self.equal:
            middle = np.where(row > 0, 1 / row.sum(), middle)
        return middle

    def embed(self, flat: np.ndarray) -> np.ndarray:
        """A z that stands for a flat point of the domain; in an l1 ball its positive and negative parts."""
        return np.clip(self.lift.T @ flat, self.lower, self.upper)

    def excess(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """By how much z leaves the balls and sums (at most 0 inside), and the gradients of that."""
        values = [z[part] @ z[part] - r**2 for part, r in self.balls] + [row @ z - r for row, r in self.sums]
        rows = [2 * np.where(np.isin(np.arange(len(z)), part), z, 0.0) for part, _ in self.balls]
        rows += [row for row, _ in self.sums]
        return np.array(values), np.array(rows).reshape(len(values), len(z))

    def multipliers(
        self, z: np.ndarray, gradient: np.ndarray, values: np.ndarray, jac: np.ndarray
    ) -> tuple[np.ndarray, float]:
        """lambda >= 0 on the active constraints, and what is left of the stationarity condition."""
        edge, edge_rows = self.excess(z)
        unit = np.eye(len(z))
        active = values > -ACTIVE
        normals = np.concatenate(
            [
                jac[active],
                edge_rows[edge > -ACTIVE],
                unit[z > self.upper - ACTIVE],
                -unit[z < self.lower + ACTIVE],
                self.equal,
            ]
        )
        multipliers = np.zeros(len(values))
        if not len(normals):
            return multipliers, float(np.abs(gradient).max())
        low = np.zeros(len(normals))
        low[len(normals) - len(self.equal) :] = -np.inf
        with np.errstate(invalid="ignore"):  # its steps along infinite bounds; what it returns is checked below
            fit = scipy.optimize.lsq_linear(normals.T, -gradient, bounds=(low, np.inf), tol=1e-14)
        multipliers[active] = fit.x[: active.sum()]
        return multipliers, float(np.abs(normals.T @ fit.x + gradient).max())

    def widened(self) -> Region:
        """The same region with one more variable at the end, which is free and of which x is independent."""
        free = np.array([np.inf])
        return self._replace(
            lift=np.hstack([self.lift, np.zeros((len(self.lift), 1))]),
            lower=np.concatenate([self.lower, -free]),
            upper=np.concatenate([self.upper, free]),
            sums=[(np.append(row, 0.0), r) for row, r in self.sums],
            equal=np.hstack([self.equal, np.zeros((len(self.equal), 1))]),
        )


class Minimum(NamedTuple):
    """Where SLSQP stopped.

    Attributes:
        z: the point.
        values: of the constraints there.
        multipliers: of the constraints, the bounded least-squares solution of the stationarity condition.
        worst: the largest violation of a constraint or of the region.
        residual: the largest of |stationarity|, `worst` and |multipliers * values|.
        message: the solver's own words.
    """

    z: np.ndarray
    values: np.ndarray
    multipliers: np.ndarray
    worst: float
    residual: float
    message: str


def minimise(
    region: Region,
    start: np.ndarray,
    objective: Callable[[np.ndarray], tuple[float, np.ndarray]],
    constrained: Callable[[np.ndarray], Rows],
) -> Minimum:
    """Minimise a smooth function over a region subject to constrained(z) <= 0, by SLSQP."""
    inside = [
        {"type": "ineq", "fun": lambda z: -constrained(z)[0], "jac": lambda z: -constrained(z)[1]},
        {"type": "ineq", "fun": lambda z: -region.excess(z)[0], "jac": lambda z: -region.excess(z)[1]},
        {"type": "eq", "fun": lambda z: region.equal @ z - 1, "jac": lambda z: region.equal},
    ]
    present = [True, len(region.excess(start)[0]) > 0, len(region.equal) > 0]
    found = scipy.optimize.minimize(
        objective,
        start,
        jac=True,
        method="SLSQP",
        bounds=list(zip(region.lower, region.upper, strict=True)),
        constraints=[rule for rule, there in zip(inside, present, strict=True) if there],
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    z = np.clip(found.x, region.lower, region.upper)
    values, jac = constrained(z)
    outside = region.excess(z)[0].max(initial=0.0), np.abs(region.equal @ z - 1).max(initial=0.0)
    worst = float(max(values.max(), *outside))
    if not np.isfinite(z).all() or not np.isfinite(values).all():
        return Minimum(z, values, np.zeros(len(values)), np.nan, np.nan, found.message)
    multipliers, stationarity = region.multipliers(z, objective(z)[1], values, jac)
    residual = float(max(stationarity, worst, np.abs(multipliers * values).max()))
    return Minimum(z, values, multipliers, worst, residual, found.message)


@functools.singledispatch
def region(geometry: Geometry, point: Any) -> Region:
    """The domain of points shaped like `point`."""
    raise TypeError(f"the solver does not know the domain {type(geometry).__name__}")


def _plain(size: int, low: Any = -np.inf, high: Any = np.inf) -> Region:
    bounds = np.broadcast_to(low, size).astype(float), np.broadcast_to(high, size).astype(float)
    return Region(np.eye(size), *bounds, [], [], np.zeros((0, size)))


@region.register
def _(geometry: Ball, point: Any) -> Region:
    size = ravel_pytree(point)[0].size
    return _plain(size)._replace(balls=[(np.arange(size), float(geometry.radius))])


@region.register
def _(geometry: Box, point: Any) -> Region:
    lower, upper = (
        jax.tree.map(np.broadcast_to, bound, jax.tree.map(np.shape, point)) for bound in geometry.bounds(point)
    )
    return _plain(ravel_pytree(point)[0].size, *(np.asarray(ravel_pytree(bound)[0]) for bound in (lower, upper)))


@region.register
def _(geometry: Simplex, point: Any) -> Region:
    size = ravel_pytree(point)[0].size
    return _plain(size, 0.0, 1.0)._replace(equal=np.ones((1, size)))


@region.register
def _(geometry: EntropySimplex, point: Any) -> Region:
    size = ravel_pytree(point)[0].size
    return _plain(size, float(geometry.floor or 0.0), 1.0)._replace(equal=np.ones((1, size)))


@region.register
def _(geometry: L1Ball, point: Any) -> Region:
    """x = u - v with u, v >= 0 and sum (u + v) <= radius."""
    size, radius = ravel_pytree(point)[0].size, float(geometry.radius)
    lift = np.hstack([np.eye(size), -np.eye(size)])
    return _plain(2 * size, 0.0, radius)._replace(lift=lift, sums=[(np.ones(2 * size), radius)])


@region.register
def _(geometry: Product, point: Any) -> Region:
    parts = [region(part, piece) for part, piece in geometry.split(point)]
    starts = np.cumsum([0] + [part.lift.shape[1] for part in parts])
    size = starts[-1]

    def widened(row: np.ndarray, start: int) -> np.ndarray:
        return np.concatenate([np.zeros(start), row, np.zeros(size - start - len(row))])

    placed = list(zip(parts, starts, strict=False))
    return Region(
        np.asarray(scipy.linalg.block_diag(*(part.lift for part in parts))),
        np.concatenate([part.lower for part in parts]),
        np.concatenate([part.upper for part in parts]),
        [(ball + start, r) for part, start in placed for ball, r in part.balls],
        [(widened(row, start), r) for part, start in placed for row, r in part.sums],
        np.array([widened(row, start) for part, start in placed for row in part.equal]).reshape(-1, size),
    )
