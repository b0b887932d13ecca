"""Domains as a solver sees them: a flat vector z of size one, with bounds, unit balls and sums."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy
from jax.flatten_util import ravel_pytree

from ergodrift.geometry import Ball, Box, EntropySimplex, Geometry, L1Ball, Product, Simplex

INSIDE = 0.99  # how far from the centre towards the boundary a given start may lie

Rows = tuple[np.ndarray, np.ndarray]  # values of several functions and their Jacobian


class Region(NamedTuple):
    """x = offset + lift z, with lower <= z <= upper, ||z[part]|| <= 1 for balls, row.z <= 1 for sums, equal z = 1.

    Whatever units x has, z is of size one: a solver that works on z gives the same answer in all of them.
    """

    offset: np.ndarray
    lift: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    balls: list[np.ndarray]
    sums: list[np.ndarray]
    equal: np.ndarray

    @property
    def centre(self) -> np.ndarray:
        """A point well inside."""
        finite = np.isfinite(self.lower) & np.isfinite(self.upper)
        middle = np.where(finite, (np.where(finite, self.lower, 0) + np.where(finite, self.upper, 0)) / 2, 0.0)
        for share, rows in [(1.0, self.equal), (0.5, self.sums)]:
            for row in rows:
                middle = np.where(row > 0, share / row.sum(), middle)
        return middle

    def embed(self, flat: np.ndarray) -> np.ndarray:
        """A z that stands for a flat point of the domain; in an l1 ball its positive and negative parts."""
        lengths = np.sum(self.lift**2, axis=0)
        aligned = self.lift.T @ (flat - self.offset) / np.where(lengths > 0, lengths, 1.0)
        return np.clip(aligned, self.lower, self.upper)

    def inwards(self, z: np.ndarray) -> np.ndarray:
        """z, a little nearer to the centre, so that it is not on the boundary."""
        return self.centre + INSIDE * (z - self.centre)

    def walls(self, z: np.ndarray) -> Rows:
        """By how much z leaves the bounds, balls and sums (negative inside), and the gradients of that."""
        unit = np.eye(len(z))
        low, high = np.isfinite(self.lower), np.isfinite(self.upper)
        rounds = [np.isin(np.arange(len(z)), part) for part in self.balls]
        values = [self.lower[low] - z[low], z[high] - self.upper[high]]
        values += [np.array([z[part] @ z[part] - 1]) for part in rounds] + [
            np.array([row @ z - 1]) for row in self.sums
        ]
        rows = [-unit[low], unit[high], *(2 * np.where(part, z, 0.0)[None] for part in rounds)]
        return np.concatenate(values), np.concatenate([*rows, *(row[None] for row in self.sums)])

    def curvature(self, multipliers: np.ndarray) -> np.ndarray:
        """The diagonal of the second derivatives of the walls, weighed: that of the balls."""
        diagonal = np.zeros(len(self.lower))
        first = int(np.isfinite(self.lower).sum() + np.isfinite(self.upper).sum())
        for part, weight in zip(self.balls, multipliers[first:], strict=False):
            diagonal[part] += 2 * weight
        return diagonal

    def least(self, slope: np.ndarray) -> float:
        """The smallest slope.z over the region, in closed form; -inf where a free entry has a slope."""
        total, rest = 0.0, np.ones(len(slope), dtype=bool)
        for part in self.balls:
            total -= float(np.linalg.norm(slope[part]))
            rest[part] = False
        for row in self.sums:
            part = row > 0
            total += min(0.0, float((slope[part] / row[part]).min()))
            rest &= ~part
        for row in self.equal:
            part = row > 0
            floor = self.lower[part]
            total += float(slope[part] @ floor + (1 - floor.sum()) * slope[part].min())
            rest &= ~part
        rest &= slope != 0
        return total + float(np.minimum(slope[rest] * self.lower[rest], slope[rest] * self.upper[rest]).sum())

    @property
    def blocks(self) -> list[np.ndarray]:
        """Which entries belong together: the region is the product of its shadows on them."""
        shared = [*self.balls, *(np.flatnonzero(row) for row in [*self.sums, *self.equal])]
        alone = np.setdiff1d(np.arange(len(self.lower)), np.concatenate([np.zeros(0, dtype=int), *shared]))
        return [*shared, *alone[:, None]]

    def outside(self, z: np.ndarray) -> float:
        """The largest violation of the region itself."""
        return float(max(self.walls(z)[0].max(initial=0.0), np.abs(self.equal @ z - 1).max(initial=0.0)))

    def widened(self) -> Region:
        """The same region with one more variable at the end, which is free and of which x is independent."""
        free = np.array([np.inf])
        return self._replace(
            lift=np.hstack([self.lift, np.zeros((len(self.lift), 1))]),
            lower=np.concatenate([self.lower, -free]),
            upper=np.concatenate([self.upper, free]),
            sums=[np.append(row, 0.0) for row in self.sums],
            equal=np.hstack([self.equal, np.zeros((len(self.equal), 1))]),
        )


@functools.singledispatch
def region(geometry: Geometry, point: Any) -> Region:
    """The domain of points shaped like `point`."""
    raise TypeError(f"the solver does not know the domain {type(geometry).__name__}")


def _plain(size: int, low: float = -np.inf, high: float = np.inf) -> Region:
    bounds = np.full(size, low), np.full(size, high)
    return Region(np.zeros(size), np.eye(size), *bounds, [], [], np.zeros((0, size)))


@region.register
def _(geometry: Ball, point: Any) -> Region:
    size = ravel_pytree(point)[0].size
    return _plain(size)._replace(lift=float(geometry.radius) * np.eye(size), balls=[np.arange(size)])


@region.register
def _(geometry: Box, point: Any) -> Region:
    """x = middle + half width * z."""
    lower, upper = (
        jax.tree.map(np.broadcast_to, bound, jax.tree.map(np.shape, point)) for bound in geometry.bounds(point)
    )
    low, high = (np.asarray(ravel_pytree(bound)[0], dtype=float) for bound in (lower, upper))
    half = high / 2 - low / 2
    return _plain(len(half), -1.0, 1.0)._replace(offset=low + half, lift=np.diag(half))


@region.register
def _(geometry: Simplex, point: Any) -> Region:
    size = ravel_pytree(point)[0].size
    return _plain(size, 0.0)._replace(equal=np.ones((1, size)))


@region.register
def _(geometry: EntropySimplex, point: Any) -> Region:
    size = ravel_pytree(point)[0].size
    return _plain(size, float(geometry.floor or 0.0))._replace(equal=np.ones((1, size)))


@region.register
def _(geometry: L1Ball, point: Any) -> Region:
    """x = radius (u - v) with u, v >= 0 and sum (u + v) <= 1."""
    size = ravel_pytree(point)[0].size
    lift = float(geometry.radius) * np.hstack([np.eye(size), -np.eye(size)])
    return _plain(2 * size, 0.0)._replace(offset=np.zeros(size), lift=lift, sums=[np.ones(2 * size)])


@region.register
def _(geometry: Product, point: Any) -> Region:
    parts = [region(part, piece) for part, piece in geometry.split(point)]
    starts = np.cumsum([0] + [part.lift.shape[1] for part in parts])
    size = starts[-1]

    def widened(row: np.ndarray, start: int) -> np.ndarray:
        return np.concatenate([np.zeros(start), row, np.zeros(size - start - len(row))])

    placed = list(zip(parts, starts, strict=False))
    return Region(
        np.concatenate([part.offset for part in parts]),
        np.asarray(scipy.linalg.block_diag(*(part.lift for part in parts))),
        np.concatenate([part.lower for part in parts]),
        np.concatenate([part.upper for part in parts]),
        [ball + start for part, start in placed for ball in part.balls],
        [widened(row, start) for part, start in placed for row in part.sums],
        np.array([widened(row, start) for part, start in placed for row in part.equal]).reshape(-1, size),
    )
