"""A level bundle method for convex programs with kinks: cuts from subgradients, and a gap they prove."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ergodrift.geometry.region import Linearization, Region
from ergodrift.solve.interior import Point, interior

LEVEL = 0.3  # between what the cuts allow (0) and the best point so far (1): where the next point is looked for
FEASIBLE = 1e-12  # the largest violation a point may have where no point is strictly feasible
ACCURATE = 1e-3  # to which part of the gap the linear and quadratic programs are solved
PATIENCE, PROGRESS = 15, 0.95  # steps, and one for each dimension, in which the gap must fall to that part
SAME = 1e-13  # a cut that adds less than this at its own point is known already
NEAR = 1e-6  # weights below this part of their function's largest do not keep a cut


class Proven(NamedTuple):
    """Where the method stopped.

    Attributes:
        z: the best point.
        best: the objective there.
        least: what the cuts prove that no feasible point goes below.
        weights: of the functions, sums over their cuts; those of the objective's pieces, each times its share, make 1.
        steps: how many times functions were evaluated.
    """

    z: np.ndarray
    best: float
    least: float
    weights: np.ndarray
    steps: int

    @property
    def gap(self) -> float:
        return self.best - self.least


class _Cuts:
    """slopes.z + offsets - share t <= 0: what is known of the functions from below."""

    def __init__(self, region: Region, share: np.ndarray) -> None:
        self.region, self.share = region, share
        self.slopes, self.offsets = np.zeros((0, len(region.lower))), np.zeros(0)
        self.owner, self.idle = np.zeros(0, dtype=int), np.zeros(0, dtype=int)

    def add(self, z: np.ndarray, rows: Linearization) -> None:
        values, jac = rows
        known = np.full(len(values), -np.inf)
        np.maximum.at(known, self.owner, self.slopes @ z + self.offsets)
        new = values > known + SAME * np.maximum(1.0, np.abs(values))
        self.slopes = np.vstack([self.slopes, jac[new]])
        self.offsets = np.append(self.offsets, values[new] - jac[new] @ z)
        self.owner = np.append(self.owner, np.flatnonzero(new))
        self.idle = np.append(self.idle, np.zeros(new.sum(), dtype=int))

    def prune(self, *weights: np.ndarray) -> None:
        """Count how long each cut has been of no use, and drop the longest idle where there are too many.

        Each array of weights is about the first cuts; those that have come in since are of use.
        """
        useful = np.zeros(len(self.owner), dtype=bool)
        for weight in weights:
            count, largest = len(weight), np.zeros(len(self.share))
            np.maximum.at(largest, self.owner[:count], weight)  # each function has units of its own
            useful[:count] |= weight > NEAR * largest[self.owner[:count]]
            useful[count:] = True
        self.idle = np.where(useful, 0, self.idle + 1)
        most = 5 * self.slopes.shape[1] + 30 * len(self.share)
        if len(self.idle) <= most:
            return
        kept = np.sort(np.argsort(self.idle, kind="stable")[:most])
        self.slopes, self.offsets = self.slopes[kept], self.offsets[kept]
        self.owner, self.idle = self.owner[kept], self.idle[kept]

    def lowest(self, start: np.ndarray, enough: float) -> tuple[np.ndarray, np.ndarray]:
        """min t: its point and the weights of the cuts that prove a bound."""
        share, size = self.share[self.owner], len(start)
        jac = np.hstack([self.slopes, -share[:, None]])
        up = np.append(np.zeros(size), 1.0)

        def value(v: np.ndarray) -> Point:
            return Point(v, float(v[-1]), up, jac @ v + self.offsets, jac)

        level = max((self.slopes @ start + self.offsets)[share > 0] / share[share > 0]) + 1.0
        flat = np.zeros((size + 1, size + 1))
        found = interior(self.region.widened(), np.append(start, level), value, lambda v, w: flat, enough=enough)
        return found.point.z[:-1], found.multipliers / max(found.multipliers @ share, np.finfo(float).tiny)

    def bound(self, weights: np.ndarray, least: Callable[[np.ndarray], float]) -> float:
        """What these weights prove about t wherever least(slope) is the smallest slope.z."""
        return float(weights @ self.offsets + least(weights @ self.slopes))

    def nearest(
        self, centre: np.ndarray, level: float, start: np.ndarray, enough: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """The point nearest to `centre` where the cuts allow t = level, and the cuts' weights."""
        offsets = self.offsets - self.share[self.owner] * level
        eye = np.eye(len(centre))

        def value(z: np.ndarray) -> Point:
            return Point(
                z, 0.5 * float((z - centre) @ (z - centre)), z - centre, self.slopes @ z + offsets, self.slopes
            )

        found = interior(self.region, start, value, lambda z, w: eye, enough=enough)
        return found.point.z, found.multipliers


def bundle(
    region: Region,
    starts: list[np.ndarray],
    rows: Callable[[np.ndarray], Linearization],
    share: np.ndarray,
    done: Callable[[float, float], bool],
    most: int,
    watch: Callable[[float], object] | None = None,
    least: Callable[[np.ndarray], float] | None = None,
) -> Proven:
    """min t over the region subject to h_i(z) <= share_i t, for convex functions h of which subgradients are known.

    Functions with a positive share make up the objective max_i h_i / share_i, those with none are constraints. Each
    evaluation gives cuts h_i(w) >= h_i(z) + dh_i(z).(w - z). The smallest t they allow is a proven lower bound; the
    next point is the nearest one where they allow a level in between (Lemaréchal, Nemirovskii and Nesterov 1995).

    Args:
        region: the domain of z.
        starts: points inside; one at which all constraints hold strictly lets infeasible points be drawn back.
        rows: h and its Jacobian at z.
        share: share_i >= 0.
        done: (best, least) -> whether that is close enough.
        most: evaluations after which to stop in any case.
        watch: called with the gap at every step.
        least: slope -> the smallest slope.z over all points that the bound is to hold for, where these are more than
            the region: cuts hold everywhere.
    """
    share, aim = np.asarray(share, dtype=float), np.asarray(share) > 0
    cuts = _Cuts(region, share)
    best, z_best, bound, proven, steps = np.inf, starts[0], -np.inf, -np.inf, 0
    safe: tuple[float, float, np.ndarray] | None = None

    def allowed() -> float:
        """No violation where points can be drawn back from it; rounding where they cannot."""
        return FEASIBLE if safe is None else 0.0

    def look(z: np.ndarray) -> tuple[float, float] | None:
        nonlocal steps, best, z_best, safe
        steps += 1
        values, jac = _finite(region, rows, z)
        if values is None or jac is None:
            return None
        cuts.add(z, (values, jac))
        height, over = float((values[aim] / share[aim]).max()), float(values[~aim].max(initial=-np.inf))
        if over < -FEASIBLE and (safe is None or over < safe[1]):
            safe = height, over, z
        if over <= allowed() and height < best:
            best, z_best = height, z
        return height, over

    def drawn_back(z: np.ndarray, seen: tuple[float, float] | None) -> None:
        """From a point that violates constraints towards one that does not: by convexity they hold on the way."""
        if seen is None or safe is None or seen[1] <= allowed():
            return
        part = seen[1] / (seen[1] - safe[1])
        if (1 - part) * seen[0] + part * safe[0] < best:
            look((1 - part) * z + part * safe[2])

    for z in starts:
        look(z)
    owners, closest, stuck = np.zeros(len(share)), np.inf, 0
    while steps < most and stuck < PATIENCE + len(z_best):
        inner = region.inwards(z_best)
        z_low, weights = cuts.lowest(inner, ACCURATE * min(best - bound, 1.0))
        bound = max(bound, cuts.bound(weights, region.least))
        proof = bound if least is None else cuts.bound(weights, least)
        if proof > proven:
            proven, owners = proof, np.bincount(cuts.owner, weights, len(share))
        if watch is not None:
            watch(best - proven)
        if done(best, proven):
            break
        stuck = 0 if best - bound < PROGRESS * closest else stuck + 1
        closest = min(closest, best - bound)
        drawn_back(z_low, look(z_low))
        if np.isfinite(best):
            level = bound + LEVEL * (best - bound)
            z, pulls = cuts.nearest(z_best, level, inner, ACCURATE * (best - bound))
            drawn_back(z, look(z))
            cuts.prune(weights, pulls)
    return Proven(z_best, best, proven, owners, steps)


def _finite(
    region: Region, rows: Callable[[np.ndarray], Linearization], z: np.ndarray
) -> Linearization | tuple[None, None]:
    """h and its Jacobian at z, or a hair's breadth from it where it has none there, as |x| written as a root at 0."""
    rng = np.random.default_rng(0)
    for size in (0.0, 1e-13, 1e-11, 1e-9):
        near = region.inwards(z) if size else z
        near = z + size * (near - z + 1e-3 * rng.normal(size=len(z))) if size else z
        values, jac = rows(near)
        if np.isfinite(values).all() and np.isfinite(jac).all():
            return values + jac @ (z - near), jac
    return None, None
