"""Ever smaller parts of a region around the best point so far: what is small there is of size one in its part."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ergodrift.geometry.region import Linearization, Region
from ergodrift.solve.bundle import Proven, bundle

ROUNDS, IDLE = 20, 4  # parts that are tried, and how many of them may go by without progress
SHRINK, GROW, FAR = 0.01, 10.0, 0.5  # a part shrinks to this, or to what the point needs, and grows if it moves far
HALVINGS = 6  # of the way to where a constraint binds, in digits
CURVED = 10.0  # slopes that differ by this factor make it worth while to look where a constraint binds
ROUNDING = 1e-14  # of a value: a slope over the whole region that is none
FARTHEST = 1e-8  # of the way to a probe, where the search for that begins


def size(slopes: np.ndarray, values: np.ndarray | None = None) -> float:
    """A number to divide by, from slopes at the start and at the probes, or from values where there are no slopes.

    Not the largest slope: an exponential on a large ball has one near the largest number there is.
    """
    for numbers in (slopes, values):
        usable = [] if numbers is None else [number for number in numbers if 0 < number < np.inf]
        if usable:
            at_start = numbers[0] if numbers is not None and 0 < numbers[0] < np.inf else 0.0
            return float(max(at_start, min(usable)))
    return 1.0


def sizes(rows: Callable[[np.ndarray], Linearization], probes: list[np.ndarray]) -> np.ndarray:
    """What to divide each constraint by: the size of its gradient, or its value if it has none.

    The gradient of a curved constraint is of one size at the start and of another far away. What counts is the one
    where the constraint binds, which lies on the way from a start that meets it to a probe that does not.
    """
    seen = [rows(z) for z in probes]
    slopes = np.array([np.abs(jac).max(axis=1) for _, jac in seen]).T
    values = np.array([value for value, _ in seen]).T
    known = np.where(np.isfinite(values), np.abs(values), 0.0)
    slopes = np.where(slopes <= ROUNDING * known, 0.0, slopes)  # no slope at all, but for rounding
    found = np.array([size(slope, np.abs(value)) for slope, value in zip(slopes, values, strict=True)])
    for i, (slope, value) in enumerate(zip(slopes, values, strict=True)):
        beyond = [j for j in range(1, len(probes)) if value[j] > 0 and np.isfinite(slope[j])]
        if value[0] < 0 and beyond and not slope[beyond[0]] <= CURVED * slope[0]:
            found[i] = _where_it_binds(rows, i, probes[0], probes[beyond[0]])
    return found


def _where_it_binds(rows: Callable[[np.ndarray], Linearization], i: int, start: np.ndarray, end: np.ndarray) -> float:
    """The size of the gradient of constraint i, near the point between start and end where it is 0."""
    low, high = FARTHEST, 1.0
    for _ in range(HALVINGS):
        middle = np.sqrt(low * high)
        low, high = (low, middle) if rows(start + middle * (end - start))[0][i] > 0 else (middle, high)
    return float(np.abs(rows(start + high * (end - start))[1][i]).max())


def closer(
    region: Region,
    functions: Callable[[np.ndarray], Linearization],
    ground: np.ndarray,
    start: Proven,
    done: Callable[[float, float], bool],
    most: int,
    watch: Callable[[float], object] | None = None,
) -> Proven:
    """min h_0(z) over the region subject to h_i(z) <= 0, i >= 1, from a point that is not close enough to the optimum.

    On a domain far larger than the distances that matter, tolerances in units of the domain mean little. So each entry
    of z is confined to a part of its range around the best point, and functions are measured anew there; a part
    shrinks where the point stays in its middle, and grows where the point leaves it. Cuts hold everywhere, so the
    bound that they prove is about the whole region, whatever part they come from.

    Args:
        region: the domain of z.
        functions: h and its Jacobian at z, of size one.
        ground: a point at which constraints hold strictly, if there is one.
        start: what is known.
        done: (best, least) -> whether that is close enough.
        most: evaluations after which to leave a part.
        watch: called with the gap at every step.
    """
    best, idle, part = start, 0, np.full(len(ground), SHRINK)
    for _ in range(ROUNDS):
        if done(best.best, best.least) or idle == IDLE:
            break
        found = _within(region, functions, ground, best.z, part, done, most, watch)
        moved = np.abs(found.z - best.z) / part
        for block in region.blocks:
            far = moved[block].max()
            factor = GROW if far > FAR else np.clip(GROW * far, SHRINK, 1.0)
            part[block] = np.minimum(part[block] * factor, 1.0)
        ahead = found.best < best.best
        idle = 0 if found.best - max(found.least, best.least) < 0.5 * best.gap else idle + 1
        weights = found.weights if found.least > best.least else best.weights
        z, value = (found.z, found.best) if ahead else (best.z, best.best)
        best = Proven(z, value, max(found.least, best.least), weights, best.steps + found.steps)
    return best


def _within(
    region: Region,
    functions: Callable[[np.ndarray], Linearization],
    ground: np.ndarray,
    centre: np.ndarray,
    part: np.ndarray,
    done: Callable[[float, float], bool],
    most: int,
    watch: Callable[[float], object] | None,
) -> Proven:
    """The same over z = centre + part (w - centre), w in the region: a part of it, since it is convex."""
    base = float(functions(centre)[0][0])

    def near(w: np.ndarray) -> Linearization:
        values, jac = functions(centre + part * (w - centre))
        return values - np.append(base, np.zeros(len(values) - 1)), jac * part

    def constraints(w: np.ndarray) -> Linearization:
        values, jac = near(w)
        return values[1:], jac[1:]

    probes = [centre, ground]
    unit = size(np.array([np.abs(near(w)[1][0]).max() for w in probes]))
    units = np.append(unit, sizes(constraints, probes))

    def local(w: np.ndarray) -> Linearization:
        values, jac = near(w)
        return values / units, jac / units[:, None]

    def whole(slope: np.ndarray) -> float:
        steep = slope / part
        return float(slope @ centre + region.least(steep) - steep @ centre)

    share = np.append(1.0, np.zeros(len(units) - 1))
    found = bundle(
        region,
        [centre, ground],
        local,
        share,
        lambda best, least: done(base + unit * best, base + unit * least),
        most,
        watch and (lambda gap: watch(gap * unit)),
        whole,
    )
    z = centre + part * (found.z - centre)
    return Proven(z, base + unit * found.best, base + unit * found.least, found.weights * unit / units, found.steps)
