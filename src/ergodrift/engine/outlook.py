"""What the solutions of a run may expect of certificates on other samples, told from the run's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np

from ergodrift.data.expectation import expectations
from ergodrift.data.source import Source
from ergodrift.engine.result import Result
from ergodrift.problem import Problem
from ergodrift.types import PyTree

LOOKED = 8  # solutions, and pieces of a path as long as the held-out one, on which certificates are tried
DRAWS = 2**12  # of what a certificate may ask for, where it is reckoned
PATHS, AT_MOST = (40, 100), 2**19  # fresh paths, where certificates are simulated, and samples on them
TRIAL = 2**31  # the seed of the first: far from those of runs, of laws and of certificates


class Outlook(NamedTuple):
    """What can be told beforehand of the certificates that the solutions of a run will get.

    Attributes:
        room: (seeds, n) -E[g_i] at each solution, by the law where that is known, else on the run's own samples.
        needed: (draws, n) the room with which a solution is only just certified, as held-out paths and the errors of
            what was measured may have it; infinite where there will be no upper end.
        loss: the mean loss of the solutions, as the room.
        reason: why there is no upper end, where there is none.
    """

    room: np.ndarray
    needed: np.ndarray
    loss: float
    reason: str = ""

    def failing(self) -> np.ndarray:
        """(n,) the share of runs in which a constraint will not be certified."""
        columns = zip(np.sort(self.needed, axis=0).T, self.room.T, strict=True)
        return np.array([1 - np.searchsorted(needed, room, "right").mean() / len(needed) for needed, room in columns])

    def missing(self, failing: float) -> np.ndarray:
        """(n,) by how much the room of every seed must grow for this share of failures; negative where it may shrink.

        With several seeds the share is that over all of them: one with less room may fail more often than others.
        """
        draws, seeds = len(self.needed), len(self.room)
        # The next one after k draws is above the j-th smallest with probability 1 - j / (k + 1).
        place = min(int((1 - failing) * (draws + 1) * seeds), draws * seeds - 1)
        columns = zip(self.needed.T, self.room.T, strict=True)
        return np.array([np.sort((needed[:, None] - room[None]).ravel())[place] for needed, room in columns])


def outlook(result: Result, problem: Problem, source: Source, held_out: int, confidence: float) -> Outlook:
    """What certificates on so many other samples will say of the solutions of a run.

    Where the law is known, they are simulated on fresh paths. Else the run's own samples stand for others like them.
    """
    from ergodrift.trust.values import path_values

    points = [jax.tree.map(lambda leaf, row=row: leaf[row], result.solution) for row in range(len(result.seeds))]
    known = [part.length is None and not part.law_is_simulated for part in source.parts]
    if all(known):
        losses, means = expectations(problem, source, result.solution, axes=1)
        needed, reason = _simulated(problem, source, points[:LOOKED], -means, held_out, confidence)
        return Outlook(-means, needed, float(losses.mean()), reason)
    along = [path_values(problem, source.in_order, x, _path(result, source, row)) for row, x in enumerate(points)]
    loss = float(np.mean([losses.mean() for losses, _ in along]))
    room, own = -np.array([constraints.mean(axis=0) for _, constraints in along]), held_out / len(along[0][0])
    if known[1]:
        room, own = -expectations(problem, source, result.solution, axes=1)[1], 0.0
    try:
        looks = list(_looks(result, problem, source, points, along, held_out, confidence))
    except ValueError as error:  # of a path too short for any certificate
        return Outlook(room, np.full((1, room.shape[1]), np.inf), loss, str(error))
    return Outlook(room, _needed(looks, own), loss, next((look.reason for look in looks if look.reason), ""))


def _simulated(
    problem: Problem, source: Source, points: list[PyTree], room: np.ndarray, held_out: int, confidence: float
) -> tuple[np.ndarray, str]:
    """The room that certificates on fresh paths ask for, (paths, n), and why there is none, where there is none.

    The paths are the same from run to run, so that a larger margin differs from a smaller one by itself alone.
    """
    from ergodrift.trust.certify import certify

    needed, reason = [], ""
    for number in range(int(np.clip(AT_MOST // held_out, *PATHS))):
        row = number % len(points)
        try:
            found = certify(problem, points[row], source, confidence, num_samples=held_out, seed=TRIAL + number)
            reason = reason or next((said for said in found.reason if said), "")
            needed.append(found.upper + room[row])
        except ValueError as error:  # of a path too short for any certificate
            needed.append(np.full(room.shape[1], np.inf))
            reason = reason or str(error)
    return np.array(needed), reason


class _Look(NamedTuple):
    """A certificate tried on samples of the run, scaled to the number of the held-out ones."""

    reach: np.ndarray  # (n,) upper end - estimate
    error: np.ndarray  # (n,) the standard error of the estimate
    freedom: np.ndarray  # (n,) degrees of freedom with which that was measured
    sure: bool  # whether the reach is the same on every path
    reason: str  # why a constraint has no upper end, where one has none


def _needed(looks: list[_Look], own: float) -> np.ndarray:
    """Draws of the room that a certificate asks for, w + sigma Z: (draws, n).

    Reach w and standard error sigma vary from path to path as the root of chi^2 / freedom. Those that were measured do
    so, too, and they are what is known: it is their ratio that counts, as for Student's t. `own` is the variance of the
    room as it was measured, in parts of sigma^2.
    """
    rng, shape = np.random.default_rng(0), (DRAWS, len(looks[0].reach))
    reach, error = np.mean([look.reach for look in looks], axis=0), np.mean([look.error for look in looks], axis=0)
    each, of_all = looks[0].freedom, np.sum([look.freedom for look in looks], axis=0)
    there, here = (np.sqrt(rng.chisquare(freedom, shape) / freedom) for freedom in (each, of_all))
    return reach * (1 if looks[0].sure else there / here) + error * np.sqrt(1 + own) * rng.normal(size=shape) / here


def _looks(
    result: Result,
    problem: Problem,
    source: Source,
    points: list[PyTree],
    along: list[tuple[np.ndarray, np.ndarray]],
    held_out: int,
    confidence: float,
) -> Iterator[_Look]:
    """Looks at pieces as long as the held-out path, or at whole paths where that is longer."""
    from ergodrift.trust.certify import known_tau, possible
    from ergodrift.trust.intervals import batch_errors
    from ergodrift.trust.methods import Auto, HeldOut
    from ergodrift.trust.training import draws

    part, length = source.parts[1], min(held_out, len(along[0][0]))
    tau, scale = known_tau(part, False), np.sqrt(length / held_out)
    rows = LOOKED if draws(source) or result.paths is not None else 1  # seeds of a series all see the same samples
    for x, (losses, constraints) in list(zip(points, along, strict=False))[:rows]:
        ranges, constant = possible(problem, x, source, constraints, None)
        for number in range(min(len(losses) // length, LOOKED)):
            piece = slice(number * length, (number + 1) * length)
            path = HeldOut(losses[piece], constraints[piece], tau, ranges, constant, not part.starts_stationary)
            found = Auto().certificate(path, confidence)
            reach = np.maximum(found.upper - found.estimate, 0)
            error, freedom = np.zeros_like(reach), np.ones_like(reach)
            moving = (reach > 0) & np.isfinite(reach)
            if moving.any():
                error[moving], batches = batch_errors(path.constraints[:, moving], overlap=False)
                freedom[moving] = batches - 1
            reason = next((said for said in found.reason if said), "")
            yield _Look(scale * reach, scale * error, freedom, found.guarantee == "every n", reason)


def _path(result: Result, source: Source, row: int) -> PyTree:
    """The samples that one seed of the run has seen, as replayed, drawn again, or recorded: once and in order."""
    if result.paths is not None:
        return source.path_of(result.paths, row)
    count = int(result.setting.num_samples if result.setting is not None else np.asarray(result.samples)[-1])
    once, count = source.in_order, source.rows_seen(count)
    return once.path_of(once.paths([int(np.asarray(result.seeds)[row])], count), 0)
