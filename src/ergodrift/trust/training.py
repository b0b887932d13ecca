"""A certificate is about the problem that was solved, on samples that it was not fitted on."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift.data.source import Source
from ergodrift.problem import Problem
from ergodrift.types import PyTree

LEAST = 20  # samples in common below which nothing is said: few values repeat themselves anywhere
PRECISIONS = (np.float64, np.float32, np.float16, jnp.bfloat16)  # that copies are made in


def refuse_other(solved: Problem, given: object) -> None:
    """Raise where `given` is another problem: other functions, another domain."""
    if not isinstance(given, Problem):
        raise TypeError(f"problem must be of type Problem, got {type(given).__name__}")
    same = given is solved or (
        jax.tree.structure(given) == jax.tree.structure(solved)
        and all(np.array_equal(*pair) for pair in zip(jax.tree.leaves(given), jax.tree.leaves(solved), strict=True))
    )
    if not same:
        raise ValueError(
            "problem is another one than was solved: its functions are not the same objects, or its domain differs; "
            "leave it out to certify the run's own, or ask about another by name, ed.certify(other, x, source)"
        )


def draws(source: Source) -> bool:
    """Whether samples are drawn with a seed, all or a part of them."""
    return any(part.recorded is None or part.length is None for part in source.parts)


def refuse_training(trained: Source, given: Source, seen: int | None = None, *, again: bool = False) -> None:
    """Raise where held-out samples are among those of the fit, whatever they are wrapped in.

    Args:
        trained: what the run took its samples from.
        given: what the held-out ones come from.
        seen: how many samples of a series the run took; all unless given.
        again: `given` is the run's own source, taken for want of another.
    """
    same = (again or given is trained) and not draws(given)
    if same or any(_shared(old, new, seen) for old in _parts(trained) for new in _parts(given)):
        raise ValueError(
            "these are the samples that the point was fitted on, or some of them; a certificate needs samples of their "
            "own: keep a part of the series back, such as SeriesSource(data[n:]) after a run on SeriesSource(data[:n])"
        )


def _parts(source: Source) -> list[Source]:
    """What holds recorded samples in a source: a series, or rows that are drawn from; not the states of a chain."""
    parts = source.parts if source.paired else [source]
    return [part for part in parts if part.recorded is not None]


def _shared(trained: Source, given: Source, seen: int | None) -> bool:
    """Whether two sources of recorded samples have samples in common.

    Independent draws are a law: drawn again from the same rows they are fresh. But a series is not fresh after a run
    that drew from its rows, nor are draws from the rows of a series after a run on it.
    """
    recorded = trained.length is not None, given.length is not None
    if not any(recorded):
        return False
    old, new = _columns(trained.recorded), _columns(given.recorded)
    old = old[: trained.rows_seen(seen)] if recorded[0] and seen is not None else old
    if any(np.ptp(rows, axis=0).max(initial=0.0) == 0 for rows in (old, new)):
        return False  # what never moves is the same everywhere
    if old.shape[1] == new.shape[1]:
        return _same_rows(old, new, *recorded)
    # All that one of them has, the other has too, among more: column by column.
    mine, theirs = ([rows[:, [i]] for i in range(rows.shape[1])] for rows in (old, new))
    if len(mine) < len(theirs):
        return all(any(_same_rows(a, b, *recorded) for b in theirs) for a in mine)
    return all(any(_same_rows(a, b, *recorded) for a in mine) for b in theirs)


def _columns(data: PyTree) -> np.ndarray:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(data)]
    return np.concatenate([leaf.reshape(len(leaf), -1).astype(np.float64) for leaf in leaves], axis=1)


def _same_rows(trained: np.ndarray, given: np.ndarray, recorded: bool, in_order: bool) -> bool:
    """Whether rows of a training, `recorded` or drawn from, are among the given ones, which are `in_order` or a law.

    In double precision, or in any in which one of them may be a copy of the other."""
    for precision in PRECISIONS:
        with np.errstate(over="ignore"):
            old, new = (array.astype(precision).astype(np.float64) for array in (trained, given))
        if precision is np.float64 or np.array_equal(old, trained) or np.array_equal(new, given):
            numbers = _numbered(old, new)
            if _overlap(*numbers, any_number=recorded and in_order) or (recorded and _scattered(*numbers)):
                return True
    return False


def _numbered(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows as integers, equal where rows hold the same values, in whatever order: columns may have changed places."""
    bits = np.sort(np.concatenate([a, b]) + 0.0, axis=1).view(np.uint64)  # -0.0 is 0.0
    odd = np.random.default_rng(0).integers(0, 2**63, size=(2, bits.shape[1]), dtype=np.uint64) * 2 + 1
    with np.errstate(over="ignore"):
        mixed = ((bits ^ (bits >> np.uint64(32))) * odd[0] ^ odd[1]) * odd[0]
        rows = (mixed ^ (mixed >> np.uint64(29))).sum(axis=1, dtype=np.uint64)
    rows = np.unique(rows, return_inverse=True)[1].ravel()
    return rows[: len(a)], rows[len(a) :]


def _scattered(trained: np.ndarray, given: np.ndarray) -> bool:
    """Whether more of the given rows are in the training than chance would have, in any order.

    Chance is how often a row of the training stands there twice: nearly never where values are continuous.
    """
    values, counts = np.unique(trained, return_counts=True)
    chance = counts[counts > 1].sum() / len(trained)
    return int(np.isin(given, values).sum()) >= LEAST + 2 * chance * len(given)


def _overlap(a: np.ndarray, b: np.ndarray, any_number: bool) -> bool:
    """Whether the end of one is the beginning of the other, or one lies within the other, by `LEAST` rows or more.

    An end on a beginning must hold `LEAST` different rows: a slow series of few values repeats itself at any cut. One
    within the other may hold `any_number` of them where both are recorded; the few rows of a law are in every series.
    """
    for long, short in [(a, b), (b, a)]:
        new = np.sort(np.unique(short, return_index=True)[1])  # where a row stands for the first time
        if (any_number or len(new) >= LEAST) and next(_places(long, short), None) is not None:
            return True
        if len(new) < LEAST:
            continue
        for start in _places(long, short[: new[LEAST - 1] + 1]):
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
