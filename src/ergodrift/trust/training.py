"""Held-out samples must not be those that a point was fitted on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ergodrift.source import SeriesSource, Source


def refuse_training(trained: Source, given: Source) -> None:
    """Raise where two recorded series share a stretch of samples."""
    if given is trained or not (isinstance(given, SeriesSource) and isinstance(trained, SeriesSource)):
        shared = given is trained and given.length is not None
    else:
        shared = _overlap(_rows(trained.data), _rows(given.data))
    if shared:
        raise ValueError(
            "these are the samples that the point was fitted on; a certificate needs samples of their own: keep a part "
            "of the series back, such as SeriesSource(data[n:]) after a run on SeriesSource(data[:n])"
        )


def _rows(data: Any) -> np.ndarray:
    leaves = [np.asarray(leaf).reshape(np.shape(leaf)[0], -1).astype(np.float64) for leaf in jax.tree.leaves(data)]
    return np.concatenate(leaves, axis=1)


def _overlap(a: np.ndarray, b: np.ndarray, least: int = 20) -> bool:
    """Whether the end of one is the beginning of the other, or one lies within the other, by `least` rows or more.

    An end on a beginning must hold `least` different rows: a slow series of few values repeats itself at any cut.
    """
    if a.shape[1] != b.shape[1]:
        return False
    rows = np.unique(np.concatenate([a, b]), axis=0, return_inverse=True)[1].ravel()  # equal rows, equal numbers
    for long, short in [(rows[: len(a)], rows[len(a) :]), (rows[len(a) :], rows[: len(a)])]:
        if next(_places(long, short), None) is not None:
            return True
        new = np.sort(np.unique(short, return_index=True)[1])  # where a row stands for the first time
        if len(new) < least:
            continue
        for start in _places(long, short[: new[least - 1] + 1]):
            length = min(len(long) - start, len(short))
            if np.array_equal(long[start : start + length], short[:length]):
                return True
    return False


def _places(long: np.ndarray, short: np.ndarray) -> Iterator[int]:
    """Where a sequence of integers stands within another, by the linear search of bytes."""
    text, wanted, width = long.tobytes(), short.tobytes(), long.itemsize
    at = text.find(wanted)
    while at >= 0:
        if at % width == 0:
            yield at // width
        at = text.find(wanted, at + 1)
