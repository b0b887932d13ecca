"""Domains as a solver sees them: a flat vector z of size one, with bounds, unit balls, sums and convex functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
import scipy
from jax.flatten_util import ravel_pytree

from ergodrift.types import PyTree, Scalar

INSIDE = 0.99  # how far from the centre towards the boundary a given start may lie

Linearization = tuple[np.ndarray, np.ndarray]  # values of several functions and their Jacobian


class Inequalities(NamedTuple):
    """Convex functions h of the flat point x, with X the part of a region where h(x) <= 0.

    Attributes:
        rows: x -> h(x) and its Jacobian.
        curvature: (x, weights) -> the second derivative of weights.h; None where there is none.
    """

    rows: Callable[[np.ndarray], Linearization]
    curvature: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None

    @classmethod
    def of(cls, function: Callable[[PyTree], jax.Array], point: PyTree) -> Inequalities:
        """From a function of points shaped like `point` that JAX can differentiate twice."""
        unravel = ravel_pytree(point)[1]

        def flat(x: jax.Array) -> jax.Array:
            return function(unravel(x)).ravel()

        both = jax.jit(lambda x: (flat(x), jax.jacrev(flat)(x)))
        bend = jax.jit(lambda x, weights: jax.hessian(lambda y: weights @ flat(y))(x))
        return cls(
            lambda x: tuple(np.asarray(part) for part in both(x)),  # type: ignore[return-value]
            lambda x, weights: np.asarray(bend(x, weights)),
        )


class Region(NamedTuple):
    """x = offset + lift z, with lower <= z <= upper, ||z[part]|| <= 1 for balls, row.z <= 1 for sums, equal z = 1.

    Whatever units x has, z is of size one: a solver that works on z gives the same answer in all of them. `box`, `ball`
    and `simplex` are the ways to make one; a domain that is none of these is a part of one, where further convex
    functions are at most 0.
    """

    offset: np.ndarray
    lift: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    balls: list[np.ndarray]
    sums: list[np.ndarray]
    equal: np.ndarray
    inequalities: Inequalities | None = None

    @classmethod
    def box(cls, x: PyTree, lower: PyTree, upper: PyTree, where: Callable[[PyTree], jax.Array] | None = None) -> Region:
        """{lower <= x <= upper} for points shaped like `x`, bounds numbers or shaped like it.

        Args:
            x: a point, for its shape.
            lower: finite lower bounds.
            upper: finite upper bounds.
            where: y -> convex functions, (k,), twice differentiable by JAX; of the box, the part where none exceeds 0.
        """
        low, high = (_flat(bound, x) for bound in (lower, upper))
        if not np.isfinite([low, high]).all():
            raise ValueError(f"a region must be bounded, got lower={lower} and upper={upper}")
        half = high / 2 - low / 2
        return cls._plain(x, -1.0, 1.0, where)._replace(offset=low + half, lift=np.diag(half))

    @classmethod
    def ball(cls, x: PyTree, radius: Scalar, where: Callable[[PyTree], jax.Array] | None = None) -> Region:
        """{||x||_2 <= radius}; `where` as for a box."""
        plain = cls._plain(x, where=where)
        return plain._replace(lift=float(radius) * plain.lift, balls=[np.arange(len(plain.offset))])

    @classmethod
    def simplex(cls, x: PyTree, floor: Scalar = 0.0, where: Callable[[PyTree], jax.Array] | None = None) -> Region:
        """{x >= floor, sum x = 1}; `where` as for a box."""
        plain = cls._plain(x, low=float(floor), where=where)
        return plain._replace(equal=np.ones((1, len(plain.offset))))

    @classmethod
    def l1_ball(cls, x: PyTree, radius: Scalar) -> Region:
        """{||x||_1 <= radius}: x = radius (u - v) with u, v >= 0 and sum (u + v) <= 1."""
        size = ravel_pytree(x)[0].size
        lift = float(radius) * np.hstack([np.eye(size), -np.eye(size)])
        bounds = np.zeros(2 * size), np.full(2 * size, np.inf)
        return cls(np.zeros(size), lift, *bounds, [], [np.ones(2 * size)], np.zeros((0, 2 * size)))

    @classmethod
    def product(cls, parts: Sequence[Region]) -> Region:
        """Points whose pieces lie in one region each."""
        starts = np.cumsum([0] + [part.lift.shape[1] for part in parts])
        size = starts[-1]

        def widened(row: np.ndarray, start: int) -> np.ndarray:
            return np.concatenate([np.zeros(start), row, np.zeros(size - start - len(row))])

        placed = list(zip(parts, starts, strict=False))
        return cls(
            np.concatenate([part.offset for part in parts]),
            np.asarray(scipy.linalg.block_diag(*(part.lift for part in parts))),
            np.concatenate([part.lower for part in parts]),
            np.concatenate([part.upper for part in parts]),
            [ball + start for part, start in placed for ball in part.balls],
            [widened(row, start) for part, start in placed for row in part.sums],
            np.array([widened(row, start) for part, start in placed for row in part.equal]).reshape(-1, size),
            _side_by_side(parts),
        )

    @classmethod
    def _plain(
        cls,
        x: PyTree,
        low: float = -np.inf,
        high: float = np.inf,
        where: Callable[[PyTree], jax.Array] | None = None,
    ) -> Region:
        size = ravel_pytree(x)[0].size
        bounds = np.full(size, low), np.full(size, high)
        further = None if where is None else Inequalities.of(where, x)
        return cls(np.zeros(size), np.eye(size), *bounds, [], [], np.zeros((0, size)), further)

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

    def walls(self, z: np.ndarray) -> Linearization:
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


def _flat(bound: PyTree, x: PyTree) -> np.ndarray:
    if jax.tree.structure(bound) != jax.tree.structure(x):
        bound = jax.tree.map(lambda _: bound, x)
    whole = jax.tree.map(lambda leaf, like: np.broadcast_to(leaf, np.shape(like)), bound, x)
    return np.asarray(ravel_pytree(whole)[0], dtype=float)


def _side_by_side(parts: Sequence[Region]) -> Inequalities | None:
    """The inequalities of all parts, of the point as a whole."""
    ends = np.cumsum([len(part.offset) for part in parts])[:-1]
    if all(part.inequalities is None for part in parts):
        return None

    def each(x: np.ndarray) -> list[Linearization]:
        pieces = zip(parts, np.split(x, ends), strict=True)
        none = np.zeros(0)
        return [
            (none, np.zeros((0, len(piece)))) if part.inequalities is None else part.inequalities.rows(piece)
            for part, piece in pieces
        ]

    def rows(x: np.ndarray) -> Linearization:
        values, jacobians = zip(*each(x), strict=True)
        return np.concatenate(values), np.asarray(scipy.linalg.block_diag(*jacobians))

    def curvature(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
        shares = np.split(weights, np.cumsum([len(values) for values, _ in each(x)])[:-1])
        blocks = [
            np.zeros(2 * (len(piece),))
            if part.inequalities is None or part.inequalities.curvature is None
            else part.inequalities.curvature(piece, share)
            for part, piece, share in zip(parts, np.split(x, ends), shares, strict=True)
        ]
        return np.asarray(scipy.linalg.block_diag(*blocks))

    smooth = all(part.inequalities is None or part.inequalities.curvature is not None for part in parts)
    return Inequalities(rows, curvature if smooth else None)
