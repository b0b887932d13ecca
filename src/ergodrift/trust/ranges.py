"""Bounds between which constraints lie, as given and as they must fit."""

from __future__ import annotations

import numpy as np

from ergodrift.types import PyTree

Ranges = tuple[np.ndarray, np.ndarray]


def checked_bounds(bounds: PyTree) -> Ranges:
    """A pair of arrays (1,) or (m,)."""
    try:
        low, high = (np.atleast_1d(np.asarray(end, dtype=float)) for end in bounds)
    except (TypeError, ValueError):
        raise TypeError(f"bounds must be a pair (low, high), got {bounds!r}") from None
    finite = np.isfinite(low).all() and np.isfinite(high).all()
    if low.ndim == high.ndim == 1 and 1 not in (len(low), len(high)) and len(low) != len(high):
        raise ValueError(f"bounds must be (low, high) of one length, got {bounds!r}")
    if not (finite and (low < high).all()):
        raise ValueError(f"bounds must be finite with low < high, got {bounds!r}")
    return low, high


def fitting(bounds: Ranges, number: int) -> Ranges:
    """The same, once the number of constraints is known."""
    for name, end in zip(("low", "high"), bounds, strict=True):
        if end.shape not in [(1,), (number,)]:
            raise ValueError(
                f"bounds must be (low, high), each a number or {number} numbers, one for each constraint; got {name} "
                f"of shape {end.shape}"
            )
    return bounds


def pinned(ranges: Ranges | None, constraints: np.ndarray, depends: np.ndarray) -> Ranges | None:
    """The ranges, with constraints that do not depend on the sample at the one value they have."""
    if depends.all():
        return ranges
    low, high = (end.copy() for end in within(constraints[:0], ranges))
    low[~depends] = high[~depends] = constraints[0, ~depends]
    return low, high


def within(constraints: np.ndarray, ranges: Ranges | None) -> Ranges:
    """The ranges, one entry per constraint; raise where values lie outside."""
    number = constraints.shape[1]
    low, high = (np.full(number, -np.inf), np.full(number, np.inf)) if ranges is None else ranges
    low, high = np.broadcast_to(low, number).astype(float), np.broadcast_to(high, number).astype(float)
    if not len(constraints):
        return low, high
    if (constraints.min(axis=0) < low - 1e-12).any() or (constraints.max(axis=0) > high + 1e-12).any():
        raise ValueError(
            f"bounds do not hold: got low = {low}, high = {high}, but constraints range from {constraints.min(axis=0)} "
            f"to {constraints.max(axis=0)} along the path; pass bounds that every possible sample keeps, or leave them "
            "out and use method='batch'"
        )
    return low, high
