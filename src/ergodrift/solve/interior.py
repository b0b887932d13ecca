"""A primal-dual interior-point method for smooth convex programs over a region, with exact second derivatives."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy

from ergodrift.geometry.region import Region

MOST_STEPS = 200
TO_THE_WALL = 0.995  # the part of the way to the boundary that a step may go
PATIENCE = 10  # steps without progress after which the method is stuck
FINE, SATED = 1e-12, 2  # below that residual, the steps without progress after which rounding is what is left
NOTHING = 1e-40  # a residual that is 0
SPREAD = 1e-3  # of the mean that no slack * multiplier may fall below, lest it pins the point to a wall too early
START = 100.0  # the sum of slack * multiplier at the start, in units of the gradient: far from the walls
SHORTENINGS = 40
PROGRESS = 0.8  # the residual must fall to this part of the best so far to count as progress


class Point(NamedTuple):
    """An objective and constraints g <= 0 at z, with their derivatives."""

    z: np.ndarray
    value: float
    gradient: np.ndarray
    rows: np.ndarray
    jacobian: np.ndarray

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.value)) and all(np.isfinite(part).all() for part in self[2:])

    def least(self, region: Region, multipliers: np.ndarray) -> float:
        """A lower bound on the objective over all of the region where g <= 0, by convexity, for any multipliers >= 0.

        f(w) >= f(w) + lambda.g(w) >= f(z) + lambda.g(z) + (df(z) + lambda.dg(z)).(w - z), at its smallest over w.
        """
        slope = self.gradient + multipliers @ self.jacobian
        return float(self.value + multipliers @ self.rows + region.least(slope) - slope @ self.z)


class Inner(NamedTuple):
    """Where the method stopped.

    Attributes:
        point: the objective and the constraints there.
        multipliers: of the constraints.
        residual: the largest of |stationarity|, |g + slack| and |slack * multiplier|, entry by entry.
        steps: how many were taken.
    """

    point: Point
    multipliers: np.ndarray
    residual: float
    steps: int


def interior(
    region: Region,
    start: np.ndarray,
    value: Callable[[np.ndarray], Point],
    curvature: Callable[[np.ndarray, np.ndarray], np.ndarray],
    watch: Callable[[float], object] | None = None,
    enough: float = NOTHING,
) -> Inner:
    """Minimise over the region subject to g(z) <= 0; z stays strictly inside the region, g need not hold on the way.

    Newton's method on the perturbed KKT conditions with slacks, the step shortened until their norm falls (Boyd and
    Vandenberghe 2004, section 11.7; Nocedal and Wright 2006, section 19.2). It goes on until the residual no longer
    falls: what the scale of a residual means differs from problem to problem, where rounding begins does not.

    Args:
        region: the domain of z.
        start: a point strictly inside it.
        value: objective, constraints and their derivatives at z.
        curvature: (z, multipliers) -> the second derivative of objective + multipliers.g.
        watch: called with the residual at every step.
        enough: a residual to stop at.
    """
    state = _State.at(region, value(start))
    best, stuck, steps = state, 0, 0
    while steps < MOST_STEPS and stuck < (SATED if best.residual < FINE else PATIENCE) and best.residual > enough:
        steps += 1
        with np.errstate(all="ignore"):  # a step that overflows is not taken
            new = _step(region, state, value, curvature)
        if new is None:
            break
        state = new
        stuck = 0 if state.residual <= PROGRESS * best.residual else stuck + 1
        if state.residual < best.residual:
            best = state
        if watch is not None:
            watch(best.residual)
    return Inner(best.point, best.multipliers[: len(best.point.rows)], best.residual, steps)


class _State(NamedTuple):
    """An iterate: the point, slacks and multipliers of constraints and walls together, and those of the sums."""

    point: Point
    rows: np.ndarray
    jacobian: np.ndarray
    slack: np.ndarray
    multipliers: np.ndarray
    equal: np.ndarray
    stationarity: np.ndarray
    length: float  # of the step that led here, 1 for a whole one

    @classmethod
    def at(cls, region: Region, point: Point) -> _State:
        walls, wall_rows = region.walls(point.z)
        rows, jacobian = np.append(point.rows, walls), np.vstack([point.jacobian, wall_rows])
        slack = np.append(np.maximum(-point.rows, 0.1 * np.maximum(1.0, np.abs(point.rows))), -walls)
        pull = max(START * float(np.linalg.norm(point.gradient)) / len(slack), np.finfo(float).tiny)
        return cls.of(region, point, rows, jacobian, slack, pull / slack, np.zeros(len(region.equal)), 1.0)

    @classmethod
    def of(
        cls, region: Region, point: Point, rows: np.ndarray, jacobian: np.ndarray, slack: np.ndarray,
        weights: np.ndarray, equal: np.ndarray, length: float,
    ) -> _State:  # fmt: skip
        stationarity = point.gradient + weights @ jacobian + equal @ region.equal
        return cls(point, rows, jacobian, slack, weights, equal, stationarity, length)

    @property
    def gap(self) -> float:
        """The mean of slack * multiplier."""
        return float(self.slack @ self.multipliers) / len(self.slack)

    @property
    def off(self) -> float:
        """The largest error in stationarity and feasibility."""
        return max(float(np.abs(part).max(initial=0.0)) for part in (self.stationarity, self.rows + self.slack))

    @property
    def residual(self) -> float:
        return max(self.off, float((self.slack * self.multipliers).max()))

    @property
    def spread(self) -> float:
        """How far the smallest slack * multiplier lies below their mean: 1 on the central path."""
        return float((self.slack * self.multipliers).min()) / self.gap if self.gap > 0 else 0.0

    def norm(self, target: float) -> float:
        """Of the conditions with slack * multiplier = target."""
        parts = self.stationarity, self.rows + self.slack, self.slack * self.multipliers - target
        return float(np.linalg.norm(np.concatenate(parts)))


def _step(
    region: Region,
    state: _State,
    value: Callable[[np.ndarray], Point],
    curvature: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> _State | None:
    """The next iterate; None where no step makes the conditions hold better."""
    point, count = state.point, len(state.point.rows)
    hessian = curvature(point.z, state.multipliers[:count]) + np.diag(region.curvature(state.multipliers[count:]))
    if not np.isfinite(hessian).all():
        return None
    direction = _direction(region, state, hessian)
    _, slack, weights, _ = direction(0.0)
    ahead = min(_room(state.slack, slack), _room(state.multipliers, weights))
    # A curved wall shortens the step by more than can be seen ahead; the last one tells.
    ahead = min(ahead, max(state.length, 0.1))
    after = float((state.slack + ahead * slack) @ (state.multipliers + ahead * weights)) / len(slack)
    # Mehrotra's rule: aim low where the way to the boundary is long, at the centre where it is short.
    # But never below what is still to be corrected, or the point is pinned to a wall before it is where it should be.
    target = min(max(after / state.gap, 0.0), 1.0) ** 3 * state.gap if state.gap > 0 else 0.0
    target = max(target, (1 - ahead) * 0.1 * state.off)
    move, slack, weights, equal = direction(target)
    length = min(1.0, TO_THE_WALL * min(_room(state.slack, slack, 1e9), _room(state.multipliers, weights, 1e9)))
    before, spread = state.norm(target), min(state.spread, SPREAD)
    for _ in range(SHORTENINGS):
        z = point.z + length * move
        walls, wall_rows = region.walls(z)
        new = value(z) if (walls < 0).all() else None
        if new is not None and new.finite:
            rows, jacobian = np.append(new.rows, walls), np.vstack([new.jacobian, wall_rows])
            slacks = np.append((state.slack + length * slack)[:count], -walls)
            duals, sums = state.multipliers + length * weights, state.equal + length * (equal - state.equal)
            found = _State.of(region, new, rows, jacobian, slacks, duals, sums, length)
            if found.norm(target) <= (1 - 0.01 * length) * before and found.spread >= spread:
                return found
        length /= 2
    return None


def _direction(region: Region, state: _State, hessian: np.ndarray) -> Callable[[float], tuple[np.ndarray, ...]]:
    """Newton's step towards slack * multiplier = target: changes of z, slacks and multipliers, and the sums' weights.

    Rows far from their bound are eliminated; near it their weights multiplier / slack are huge, and eliminating them
    would lose the digits of the others, so they stay in the system.
    """
    ratio, short = state.multipliers / state.slack, state.rows + state.slack
    size = len(hessian)
    near = np.zeros(len(ratio), dtype=bool)
    near[np.argpartition(-ratio, min(size, len(ratio)) - 1)[:size]] = True  # no more are active at once, as a rule
    near &= ratio > 100 * max(np.abs(np.diag(hessian)).max(), np.finfo(float).tiny)
    far = ~near
    edge = np.vstack([region.equal, state.jacobian[near]])
    block = hessian + (state.jacobian[far].T * ratio[far]) @ state.jacobian[far]
    corner = np.diag(np.append(np.zeros(len(region.equal)), -1 / ratio[near]))
    system = np.block([[block, edge.T], [edge, corner]])
    ridge = 1e-15 * np.abs(np.diag(block)).max()  # for flat directions of a singular Hessian
    system[:size, :size] += ridge * np.eye(size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a matrix near singular: the step is judged by what it achieves
        factor = scipy.linalg.lu_factor(system, check_finite=False)

    def direction(target: float) -> tuple[np.ndarray, ...]:
        pull = target / state.slack + ratio * short
        top = -state.point.gradient - pull[far] @ state.jacobian[far]
        bottom = np.append(1 - region.equal @ state.point.z, -short[near] - target / state.multipliers[near])
        move, equal, new = np.split(
            scipy.linalg.lu_solve(factor, np.append(top, bottom), check_finite=False), [size, size + len(region.equal)]
        )
        slope = state.jacobian @ move
        weights = pull + ratio * slope
        weights[near] = new
        return move, -short - slope, weights - state.multipliers, equal

    return direction


def _room(values: np.ndarray, change: np.ndarray, most: float = 1.0) -> float:
    """How far along `change` all values stay positive."""
    falling = change < 0
    return min(most, float((-values[falling] / change[falling]).min(initial=np.inf)))
