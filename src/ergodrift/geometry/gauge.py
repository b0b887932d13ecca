"""A domain that is known by its projection alone, as solvers see it: its affine hull, and its gauge in there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ergodrift.geometry.region import Inequalities, Linearization, Region

FLAT = 1e-7  # of the widest extent, below which a domain is taken to be flat in a direction
NEAR = 1e-9  # of the radius: a point so near to the domain gives its distance, and no longer a direction
MOST = 50  # cuts along one ray


def by_projection(project: Callable[[np.ndarray], np.ndarray], size: int, reach: float) -> Region:
    """A ball around X in the smallest affine space that holds it, and X therein as {gauge <= 1}.

    Points far off, projected, are spread over the whole boundary: they span the affine hull, and their mean c lies well
    inside. The gauge of v = x - c is the smallest s with c + v / s in X; it is convex, and 0 at c.

    Args:
        project: x -> the point of X nearest to it.
        size: the dimension of x.
        reach: at least the largest Euclidean norm in X.
    """

    if not np.isfinite(reach):
        raise ValueError("the domain is not bounded: its projection goes as far as one looks; X must be compact")

    def nearest(x: np.ndarray) -> np.ndarray:
        return np.asarray(project(x), dtype=float)

    rng = np.random.default_rng(0)
    seen = np.array([nearest(10 * reach * rng.normal(size=size)) for _ in range(16 + 4 * size)])
    centre = seen.mean(axis=0)
    _, extents, axes = np.linalg.svd(seen - centre)
    hull = axes[: np.count_nonzero(extents > FLAT * max(extents[0], np.finfo(float).tiny))].T
    radius, count = reach + float(np.linalg.norm(centre)), hull.shape[1]

    def cut(outside: np.ndarray, foot: np.ndarray) -> np.ndarray:
        """No y in X has slope.(y - centre) > 1: the half-space that parts a point from the one of X nearest to it."""
        normal = outside - foot
        return normal / max(float(normal @ (foot - centre)), np.finfo(float).tiny)

    def rows(x: np.ndarray) -> Linearization:
        """gauge - 1, by the tightest of the half-spaces around X that the projection shows along the ray to x."""
        away = x - centre
        length = float(np.linalg.norm(away))
        if length <= np.finfo(float).eps * radius:
            return np.array([-1.0]), np.zeros((1, size))
        slope, far = np.zeros(size), 2 * radius / length
        for _ in range(MOST):
            outside = centre + far * away
            foot = nearest(outside)
            gap = float(np.linalg.norm(outside - foot))
            if gap <= NEAR * radius:
                break
            # The normal there once more from far off, where rounding has no say in its direction.
            further = foot + radius / gap * (outside - foot)
            found = [cut(outside, foot), cut(further, nearest(further))]
            slope = max([slope, *found], key=lambda one: one @ away)
            far = 1 / float(slope @ away)
        return np.array([slope @ away - 1]), slope[None]

    free = np.full(count, np.inf)
    return Region(centre, radius * hull, -free, free, [np.arange(count)], [], np.zeros((0, count)), Inequalities(rows))
