"""Convex programs over a region: Newton's method where they are smooth, cuts at kinks, a proof for both."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy

from ergodrift._core.progress import Progress
from ergodrift.geometry.region import Linearization, Region
from ergodrift.solve.bundle import bundle
from ergodrift.solve.interior import Inner, Point, interior
from ergodrift.solve.zoom import closer

SOLVED = 1e-10  # a KKT residual that only a solution has
FINE, FLAT = 1e-8, 1e-13  # a gap at which cuts may stop: in parts of the value, or of the unit
CLOSE = 1e-7  # a gap, in parts of the value, above which smaller parts of the region are looked at
EDGE = 1e-9  # a worst violation this close to 0 is neither side of it
PARTS = (1.0, 1e-2, 1e-4, 1e-6)  # of the region, around the start, that are tried until one can be solved
NEAR = 1e-7  # how close to its bound a row counts as active
RIDGE = 1e-6  # the weight of the multipliers' own squares, against that of the stationarity condition's
PENALTIES = (10.0, 100.0, 1000.0)  # of a constraint that is violated, in units of the loss
HELD = 1e-9  # a violation, and a residual, small enough to say that a penalty holds
LOOSE = 1e-6  # by how much rows are loosened to see which multipliers have the least sum
MARGIN = 1e-3  # by which a point must meet the constraints to be of use to draw others back

Functions = Callable[[np.ndarray], Linearization]  # several convex functions at z, of size one, and their Jacobian
Bend = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (z, weights) -> the second derivative of weights.functions


class Solution(NamedTuple):
    """An optimum of min h_0(z) over a region subject to h_i(z) <= 0, i >= 1.

    Attributes:
        z: the point.
        value: h_0 there.
        rows: h_i there, i >= 1.
        multipliers: of h_i, i >= 1.
        least: a proven lower bound on the optimum; -inf where there is none.
        residual: of the KKT conditions; at a kink the gap stands for that of stationarity.
        empty: a proven lower bound above 0 on the worst h_i: no point is feasible. 0 where there is none.
        edge: no point was found that meets h_i < 0 for all i. None where that was not looked for.
        penalty: of violations, at which the solution was found with multipliers of at most that sum; 0 where none was.
    """

    z: np.ndarray
    value: float
    rows: np.ndarray
    multipliers: np.ndarray
    least: float
    residual: float
    empty: float = 0.0
    edge: bool | None = None
    penalty: float = 0.0

    @property
    def gap(self) -> float:
        return self.value - self.least

    @property
    def worst(self) -> float:
        return float(self.rows.max(initial=0.0))


class Worst(NamedTuple):
    """min over the region of max_i h_i / share_i, subject to h_i <= 0 where share_i = 0.

    Attributes:
        z: a point that attains it.
        value: the largest h_i / share_i there.
        least: a proven lower bound.
        weights: >= 0, with sum_i weight_i share_i = 1 and weights.h(y) >= least for all y.
        residual: as above.
    """

    z: np.ndarray
    value: float
    least: float
    weights: np.ndarray
    residual: float


class Bar:
    """How many digits a solve has."""

    def __init__(self, label: str, digits: int = 12) -> None:
        self.progress, self.digits = Progress(label, digits, "digits"), digits

    def __call__(self, error: float) -> None:
        known = -np.log10(error) if error > 0 else self.digits
        self.progress.update(int(np.clip(known, 0, self.digits)) if np.isfinite(known) else 0)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.close()


def minimum(region: Region, start: np.ndarray, functions: Functions, bend: Bend | None, bar: Bar) -> Solution:
    """min h_0(z) over the region subject to h_i(z) <= 0, i >= 1."""

    def value(z: np.ndarray) -> Point:
        values, jac = functions(z)
        return Point(z, float(values[0]), jac[0], values[1:], jac[1:])

    first = value(start)
    if not first.finite:
        return Solution(start, first.value, first.rows, np.zeros(len(first.rows)), -np.inf, np.nan)
    found: Solution | None = None
    for part in PARTS:
        tried = _near(region, start, part, value, bend, bar) if bend is not None else None
        if tried is not None and tried.residual <= SOLVED:
            return tried
        found = found or tried
    rest = _some(functions, 1)
    ground = least_worst(region, start, rest, bend and _some_bend(bend), np.ones(len(first.rows)), bar, ground=True)
    if ground.least > EDGE:
        return Solution(ground.z, np.nan, rest(ground.z)[0], ground.weights, -np.inf, np.nan, ground.least)
    edge = ground.value > -EDGE
    held = penalised(region, start, functions, bend, bar) if edge else None
    if held is not None:
        return held
    share, most = np.append(1.0, np.zeros(len(first.rows))), 500 + 20 * len(start)
    starts = [ground.z, start, *([found.z] if found is not None else [])]
    proven = bundle(region, starts, functions, share, _done, most, bar)
    if np.isfinite(proven.best) and not edge:
        proven = closer(region, functions, ground.z, proven, _close, most, bar)
    if np.isfinite(proven.gap):
        values = functions(proven.z)[0]
        multipliers = _binding(proven.weights[1:], values[1:])
        over = max(float(values[1:].max(initial=0.0)), float(np.abs(multipliers * values[1:]).max(initial=0.0)))
        off = max(abs(proven.gap), over)
        cut = Solution(proven.z, proven.best, values[1:], multipliers, proven.least, off, edge=edge)
        if found is None or found.worst > EDGE or not found.gap <= cut.gap:
            return cut
    if found is None:
        found = _solution(region, Inner(first, np.zeros(len(first.rows)), np.inf, 0))
    return found._replace(edge=edge)


def _near(
    region: Region, start: np.ndarray, part: float, value: Callable[[np.ndarray], Point], bend: Bend, bar: Bar
) -> Solution | None:
    """The optimum over a part of the region around the start, by Newton's method, where no wall of that part binds.

    A convex program has one optimum, so that one is the optimum over the whole region. Where functions are tame near
    the start alone, such as exponentials on a large ball, the part is what can be solved.
    """

    def zoomed(w: np.ndarray) -> Point:
        point = value(start + part * (w - start))
        return Point(w, point.value / part, point.gradient, point.rows / part, point.jacobian)

    def bent(w: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return part * bend(start + part * (w - start), np.append(1.0, weights))

    inner = interior(region, start, zoomed, bent, bar)
    if part < 1 and region.walls(inner.point.z)[0].max(initial=-1.0) > -NEAR:
        return None
    return _solution(region, inner._replace(point=value(start + part * (inner.point.z - start))))


def least_worst(
    region: Region,
    start: np.ndarray,
    functions: Functions,
    bend: Bend | None,
    share: np.ndarray,
    bar: Bar,
    ground: bool = False,
) -> Worst:
    """min over the region of max_i h_i / share_i, subject to h_i <= 0 where share_i = 0.

    With `ground`, any point well below 0 will do.
    """
    count, size = len(share), len(start)
    wide, up = region.widened(), np.append(np.zeros(size), 1.0)

    def value(v: np.ndarray) -> Point:
        values, jac = functions(v[:-1])
        return Point(v, float(v[-1]), up, values - share * v[-1], np.hstack([jac, -share[:, None]]))

    def widened(v: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return np.pad(bend(v[:-1], weights), (0, 1)) if bend is not None else np.zeros((size + 1, size + 1))

    values, jac = functions(start)
    if not (np.isfinite(values).all() and np.isfinite(jac).all()):
        return Worst(start, np.nan, -np.inf, np.full(count, np.nan), np.nan)
    found: Worst | None = None
    if bend is not None:
        high = float(values[share == share.max()].max() / share.max()) + 1.0
        inner = interior(wide, np.append(start, high), value, widened, bar)
        found = _worst(region, functions, share, inner)
        if found.residual <= SOLVED or (ground and (found.value < -MARGIN or found.least > EDGE)):
            return found

    def done(best: float, least: float) -> bool:
        return (ground and (best < -MARGIN or least > EDGE)) or best - least <= FLAT * max(1.0, abs(best))

    starts = [start, *([found.z] if found is not None else [])]
    proven = bundle(region, starts, functions, share, done, 500 + 20 * size, bar)
    cut = Worst(proven.z, proven.best, proven.least, proven.weights, abs(proven.gap))
    return cut if found is None or not found.residual <= cut.residual else found


def penalised(region: Region, start: np.ndarray, functions: Functions, bend: Bend | None, bar: Bar) -> Solution | None:
    """The optimum where no point meets the constraints strictly but multipliers exist; None where there are none.

    min over z of max(h_0, h_0 + penalty h_i) has the same solution as soon as the penalty is larger than the sum of
    some multipliers (Bertsekas 1975), and no constraints that could lack an inner point. Its weights are multipliers
    whose sum is at most the penalty, where those of the problem itself may grow without end.
    """
    for penalty in PENALTIES:
        worst = _raised(region, start, functions, bend, bar, penalty)
        values = functions(worst.z)[0]
        over = float(values[1:].max(initial=0.0))
        if over <= HELD and worst.residual <= HELD:
            multipliers = _binding(penalty * worst.weights[1:], values[1:])
            off = max(worst.residual, over)
            return Solution(worst.z, float(values[0]), values[1:], multipliers, worst.least, off, 0.0, True, penalty)
    return None


def _raised(
    region: Region,
    start: np.ndarray,
    functions: Functions,
    bend: Bend | None,
    bar: Bar,
    penalty: float,
    slack: float = 0.0,
) -> Worst:
    """min over z of max(h_0, h_0 + penalty (h_i - slack))."""
    count = len(functions(start)[0]) - 1
    mix = np.hstack([np.ones((count + 1, 1)), np.vstack([np.zeros(count), penalty * np.eye(count)])])
    shift = np.append(0.0, np.full(count, penalty * slack))

    def raised(z: np.ndarray) -> Linearization:
        values, jac = functions(z)
        return mix @ values - shift, mix @ jac

    bent: Bend | None = None if bend is None else lambda z, weights: bend(z, weights @ mix)
    return least_worst(region, start, raised, bent, np.ones(count + 1), bar)


def least_multipliers(region: Region, found: Solution, functions: Functions, bar: Bar) -> np.ndarray:
    """At a kink, of the many multipliers that fit those with the least sum: what loosening all rows would save."""
    loosened = _raised(region, region.inwards(found.z), functions, None, bar, found.penalty, LOOSE)
    return _binding(found.penalty * loosened.weights[1:], found.rows)


def smallest_multipliers(region: Region, found: Solution, functions: Functions) -> np.ndarray:
    """Where many multipliers fit, as where no point is strictly feasible, the ones with the least sum of squares.

    They are returned where they leave no more of the stationarity condition than the given ones do.
    """
    values, jac = functions(found.z)
    walls, wall_rows = region.walls(found.z)
    near = values[1:] > -NEAR
    rows = np.vstack([jac[1:][near], wall_rows[walls > -NEAR], region.equal, -region.equal])
    fit, _ = scipy.optimize.nnls(
        np.hstack([rows, RIDGE * np.eye(len(rows))]).T, np.append(-jac[0], np.zeros(len(rows)))
    )
    if np.abs(fit @ rows + jac[0]).max() > max(10 * found.residual, SOLVED):
        return found.multipliers
    smallest = np.zeros(len(near))
    smallest[near] = fit[: near.sum()]
    return smallest


def _done(best: float, least: float) -> bool:
    return best - least <= max(FINE * abs(best), FLAT)


def _close(best: float, least: float) -> bool:
    return best - least <= CLOSE * abs(best)


def _some(functions: Functions, first: int) -> Functions:
    def some(z: np.ndarray) -> Linearization:
        values, jac = functions(z)
        return values[first:], jac[first:]

    return some


def _some_bend(bend: Bend) -> Bend:
    return lambda z, weights: bend(z, np.append(0.0, weights))


def _solution(region: Region, inner: Inner) -> Solution:
    point = inner.point
    multipliers = _binding(inner.multipliers, point.rows)
    # Multipliers that are too small lose nothing of the proof, so either may be the better one.
    least = max(point.least(region, multipliers), point.least(region, inner.multipliers))
    return Solution(point.z, point.value, point.rows, multipliers, least, inner.residual)


def _worst(region: Region, functions: Functions, share: np.ndarray, inner: Inner) -> Worst:
    z, weights = inner.point.z[:-1], inner.multipliers / (inner.multipliers @ share)
    values, jac = functions(z)
    slope = weights @ jac
    least = float(weights @ values + region.least(slope) - slope @ z)
    return Worst(z, float((values[share > 0] / share[share > 0]).max()), least, weights, inner.residual)


def _binding(multipliers: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Of a product multiplier * (-row) that is 0 to rounding, the smaller factor is the one that is 0."""
    return np.where(multipliers > -rows, multipliers, 0.0)
