"""What stands against believing a certificate: held-out samples that do not come from one stationary law."""

from __future__ import annotations

import numpy as np

from ergodrift.data.source import Source
from ergodrift.trust.stationarity import CRITICAL, change_scores, cycle, without_change

FEWEST = 50  # samples below which nothing is said
USUAL, EXCURSIONS = 0.8, 10  # a series that is nearly always at one value shows a change by so many excursions only


def unsteady(source: Source, losses: np.ndarray, constraints: np.ndarray) -> list[str]:
    """A plain sentence for every constraint, and for the loss, that changes its level or spread or has a cycle.

    Of recorded samples only, as `diagnose` judges them: what is drawn from a law has that law.

    Args:
        source: where the held-out path came from.
        losses: (n,) along it.
        constraints: (n, k) along it.
    """
    recorded = [part.length is not None for part in source.parts]
    columns = [(f"constraint {number}", column) for number, column in enumerate(constraints.T) if recorded[1]]
    columns += [("the loss", losses)] * recorded[0]
    found = []
    for name, column in columns:
        if len(column) >= FEWEST and np.ptp(column) > 0 and not _rarely_moves(column):
            found += [f"{name} {said}" for said in changes(column, "held-out samples")]
    return found


def changes(y: np.ndarray, record: str, length: float = 1.0) -> list[str]:
    """What speaks against one law along a series (n,): trends and steps of its level, of its spread, cycles.

    Args:
        y: the series; not constant.
        record: what it is called.
        length: samples that each entry stands for.
    """
    found, scores, moved = [], change_scores(y[:, None])[:, 0], np.ptp(y)
    if scores.max() > CRITICAL:
        y, kind = without_change(y, scores)
        found.append(f"{kind}; intervals take the {record} to follow one law, so look there first")
    if np.ptp(y) <= 1e-9 * moved:
        return found  # nothing else moves
    spread = np.square(y - y.mean())
    if np.ptp(spread) > 1e-12 * spread.max() and change_scores(spread[:, None]).max() > CRITICAL:
        found.append(f"changes its spread along the {record}: look there")
    if period := cycle(y):
        found.append(
            f"has a cycle of about {period * length:.4g} samples, which does not die out as mixing does: take "
            "whole cycles"
        )
    return found


def _rarely_moves(y: np.ndarray) -> bool:
    """Whether a series is nearly always at one value, and leaves it too rarely for a change to be told from chance."""
    values, counts = np.unique(y, return_counts=True)
    away = y != values[np.argmax(counts)]
    starts = np.count_nonzero(away[1:] & ~away[:-1]) + int(away[0])
    return bool(counts.max() >= USUAL * len(y) and starts < EXCURSIONS)
