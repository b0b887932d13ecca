"""Which algorithm to use, from what the source reveals."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Sequence

import jax
import numpy as np

from ergodrift._core import check, tree
from ergodrift.advice.pilot import (
    FIRSTS,
    LOOKED_AT,
    TAUGHT,
    Pilot,
    Samples,
    loses_to_start,
    pilot,
    rough,
    rough_from,
    starting,
)
from ergodrift.advice.settings import MOST, Setting, best_setting
from ergodrift.advice.trial import Trial
from ergodrift.data.source import Source
from ergodrift.methods.algorithms import Algorithm, sdpp, srdpp
from ergodrift.methods.given import check_kinds
from ergodrift.methods.method import checked_point
from ergodrift.methods.scalefree import CoordinateDrift, ScaledDrift
from ergodrift.problem import Problem
from ergodrift.types import Array, PyTree

MOST_STATES = 100_000  # above, remembering every state costs more memory than one would spend unasked
MOST_BYTES = 2**30  # the same, where the size of a point is known
SAMPLES, ASKED = 20_000, 2**32 - 3  # of a source that never ends, and the seed of their path
SIDE_BY_SIDE = 64  # rows of a batch that cost no more than one: larger batches are tried on fewer of them
VISITS, SELDOM = 20, 2  # samples per state, on average, from which remembering pays, and from which it is tried
FEWEST = 50  # samples that a look must have
REMEMBERING = (
    1.0,
    0.4,
    0.16,
    0.06,
    0.025,
)  # parts of the distance that memory is tried with: what is old asks for less
DUAL = (0.3, 1.0)  # strides of its multipliers: the usual one, and what is tried then
TURNS, TOGETHER = 8, 2**17  # places of a record from which each of these goes through it, and samples of all turns
FEWER = 40  # settings that are tried with a step for each coordinate: where these matter, they do in most settings
CLEARLY, RESOLVED = 0.5, 1e-4  # the part of an excess that counts as far less, and of x0's that is told from none
SHORTER = (1.0, 0.1, 0.01, 1e-3, 1e-4)  # parts of a distance that are tried until x0 is not better


def auto(
    problem: Problem, source: Source, x0: PyTree = None, num_samples: int | None = None, *, seeds: int = 1
) -> Algorithm:
    """The algorithm for this problem and source; its `reason` says why in one sentence, with numbers.

    No unit, bound, mixing time or step is asked for. With x0, a rough solution from samples in random order tells how
    far the solution is, and the samples at it how much they depend on each other. States that come back and fit into
    memory are remembered (SRDPP) where that does better than SDPP on paths of the source; all else is SDPP's. Either is
    compared with x0, so that no method is recommended that loses to x0 on what was seen.

    Args:
        problem: loss, constraints and domain.
        source: where samples come from.
        x0: the point of the domain at which the run will start.
        num_samples: how many samples there will be; all of a series, with all its passes, and 20,000 of a source that
            never ends unless given.
        seeds: how many will run side by side, each with a memory of its own.

    >>> import numpy as np, ergodrift as ed
    >>> problem = ed.Problem(lambda x, xi: ((x - xi) ** 2).sum(), lambda x, xi: x - 0.5, ed.Ball(1.0))
    >>> auto(problem, ed.IIDSource(np.ones((3, 1)))).reason
    'SRDPP, because the 3 states come back and are told apart, so that each can be remembered.'
    """
    check_kinds(problem=problem, source=source)
    check.untraced("auto", x0)
    if isinstance(x0, int) and not isinstance(x0, bool):
        raise TypeError(f"x0 must be a point of the domain, got {x0!r}; write num_samples={x0} for a number of samples")
    if num_samples is not None:
        num_samples = check.integer("num_samples", num_samples, at_least=1)
    seeds, source = check.integer("seeds", seeds, at_least=1), source.beginning(LOOKED_AT)
    x0 = None if x0 is None else checked_point(problem.geometry, x0)
    if source.paired:
        return _for_stream(problem, source, x0, num_samples, "losses and constraints come apart")
    if source.stationary is None:
        return _for_stream(problem, source, x0, num_samples, _words(source))
    count, size = len(source.stationary), _bytes(problem, source, x0, seeds)
    if size > MOST_BYTES if size else count > MOST_STATES:
        short = f"{count:,} states are too many to remember" + (f" ({size / 2**30:.1f} GiB)" if size else "")
    elif (taken := num_samples or SAMPLES) < (VISITS if x0 is None else SELDOM) * count:
        short = f"{count:,} states come back {taken / count:.2g} times in {taken:,} samples, too rarely to remember,"
    elif x0 is None:
        return _because(srdpp(), _memorable(count))
    else:
        return _for_states(problem, source, x0, taken)
    return _for_stream(problem, source, x0, num_samples, short)


def _bytes(problem: Problem, source: Source, x0: PyTree, seeds: int) -> int | None:
    """What the memory of all states takes for all seeds; None where the size of a point is not known."""
    if x0 is None or source.stationary is None:
        return None
    leaves, form = jax.tree.leaves(x0), problem.compact(source.example)
    planes = (1 + problem.check(x0, source.example)) * (1 + sum(leaf.size for leaf in leaves))
    return seeds * len(source.stationary) * (planes if form is None else form.size) * leaves[0].dtype.itemsize


def _for_states(problem: Problem, source: Source, x0: PyTree, num_samples: int) -> Algorithm:
    """SRDPP or SDPP, whichever makes more of paths of the source, by the law that is known."""
    count, number = len(np.asarray(source.stationary)), problem.check(x0, source.example)
    found = pilot(problem, _drawn(source), x0, number, independent=True)
    given = problem, source, x0, num_samples, found.multipliers
    search, trial = Trial.of(*given), Trial.of(*given, fresh=True)  # what won a search is judged on other paths

    worths: dict[tuple[float, float], float] = {}

    def remembering(part: float, dual_stride: float) -> Algorithm:
        first, plain = tree.scale(found.scales.distance, part), srdpp()
        schedule = dataclasses.replace(plain.schedule, first=first, dual_stride=dual_stride)  # type: ignore[type-var]
        return dataclasses.replace(plain, schedule=schedule)

    def best(parts: Sequence[float], dual_strides: Sequence[float]) -> tuple[float, float]:
        """Of all that were tried so far and these."""
        worths.update({pair: trial.worth(remembering(*pair)) for pair in itertools.product(parts, dual_strides)})
        return min(worths, key=lambda pair: worths[pair])

    stream = _for_stream(problem, source, x0, num_samples, f"{count:,} states are better not remembered", search)
    rival, chosen = trial.worth(stream), best(REMEMBERING, DUAL[:1])
    chosen = best(chosen[:1], DUAL[1:])
    if min(rival, worths[chosen]) > trial.start:
        chosen = best(SHORTER[2:], DUAL[:1])
    if rival < worths[chosen]:
        return dataclasses.replace(stream, reason=f"{stream.reason[:-1]}; on {trial} SRDPP did worse.")
    return _because(remembering(*chosen), f"{_memorable(count)}, and on {trial} SDPP did worse")


def _drawn(source: Source) -> Samples:
    """States drawn from the law that is known: a stretch of a slow chain may show few of them."""
    path = source.path_of(source.paths([ASKED], 1), 0)
    return Samples.of_states(source, path).grouped(TAUGHT, np.asarray(source.stationary))


def _memorable(count: int) -> str:
    return f"the {count:,} states come back and are told apart, so that each can be remembered"


def _for_stream(
    problem: Problem, source: Source, x0: PyTree, num_samples: int | None, words: str, trial: Trial | None = None
) -> Algorithm:
    """SDPP, set as a look at the samples and runs over them show: all of a series, some of a source that never ends.

    Args:
        problem, source, x0, num_samples: as for `auto`.
        words: how the samples come.
        trial: paths to try settings on, where the law is known; else the samples are gone through themselves.
    """
    if x0 is None:
        return _because(sdpp(), f"{words}; with x0=... it would also be told how the samples depend on each other")
    num_constraints = problem.check(x0, source.example)
    samples, tried = _looked_at(source, num_samples)
    asked = source.asked(problem)

    def wins(algorithm: Algorithm, multipliers: Array) -> bool:
        """Whether what it makes of these samples is no worse than x0."""
        end, _ = rough(asked, algorithm.bind(problem), tried, x0, num_constraints)
        return not loses_to_start(problem, samples, end, x0, multipliers)

    if (total := samples.rows.shape[1]) < FEWEST:
        none, ways = np.zeros(num_constraints), [starting(problem, x0, part) for part in FIRSTS]
        short = next((way for way in ways if wins(way, none)), ways[-1])
        return _because(short, f"{words}, and {total} of them are too few to learn anything from beforehand")
    taught = None if source.stationary is None or source.paired else _drawn(source)
    turned = tried.turned(min(TURNS, max(TOGETHER // tried.rows.shape[1], 1)))

    def look(rule: type[ScaledDrift]) -> Pilot:
        found = pilot(problem, samples, x0, num_constraints, source.independent, taught, rule)
        return found.of_batches(source.rows_per_sample)

    def worth(algorithm: Algorithm, found: Pilot) -> float:
        """Of what runs end with: by the law, or by all samples."""
        if trial is not None:
            return trial.worth(algorithm)
        ends = rough_from(asked, algorithm.bind(problem), turned, x0, found.multipliers)
        return float(np.mean([samples.worth(problem, end, found.multipliers) for end in ends]))

    def searched(found: Pilot, most: int) -> Setting:
        factors = sum(np.size(leaf) for leaf in jax.tree.leaves(found.even)) > 1
        return best_setting(lambda setting: worth(setting.of(found), found), found.ratio > 1, factors, most)

    found = look(ScaledDrift)
    setting = searched(found, MOST)
    if (
        trial is None
        and problem.geometry.by_coordinates() is not problem.geometry
        and sum(map(np.size, jax.tree.leaves(x0))) > 1
    ):
        with contextlib.suppress(ValueError):  # what is not finite on that way is none
            apart = look(CoordinateDrift)
            other = searched(apart, FEWER)
            rival, best = worth(setting.of(found), apart), worth(other.of(apart), apart)
            if _far_less(best, rival, *(samples.worth(problem, x, apart.multipliers) for x in (found.x, apart.x, x0))):
                found, setting = apart, other
    words = f"{words} and {_dependence(source, found)}"
    for part in SHORTER:
        chosen = setting.of(found, part)
        if wins(chosen, found.multipliers):
            tail = "" if part == 1 else f"; steps are {1 / part:g} times shorter, since longer ones lost to x0"
            return _because(chosen, words + tail)
    return _because(
        setting.of(found, SHORTER[-1]), f"{words}; on these samples no length of step came to a better point than x0"
    )


def _far_less(worth: float, rival: float, rough: float, other: float, start: float) -> bool:
    """Whether a worth is so much nearer to that of the better rough solution that neither chance nor a search made it.

    Nearly as good is not enough: what was measured of the usual steps (docs/laboratory/peers.md) is to hold for most.
    """
    least = min(rough, other)
    return max(worth - least, RESOLVED * (start - least)) < CLEARLY * (rival - least)


def _looked_at(source: Source, num_samples: int | None) -> tuple[Samples, Samples]:
    """Rows that are looked at, those of one pass at most, and samples that algorithms are tried on.

    A record that is read again says nothing new, so that more passes do not make the look any longer. But a short
    record needs its passes to bring a method anywhere: methods are tried on several.
    """
    batch, once = source.rows_per_sample, source.per_pass
    most = max(LOOKED_AT * min(batch, SIDE_BY_SIDE) // batch, 1)
    asked = min(num_samples or source.length or SAMPLES, source.length or 2**31 - 1)
    total = min(asked, most if once is None else max(once, most))
    path = source.path_of(source.paths([ASKED], total), 0)
    first = jax.tree.map(lambda leaf: leaf[: once or total], path)
    rows = int(source.rows_taken(np.array([min(total, once or total)]))[0])
    samples = Samples.of(source, first, -(-rows // LOOKED_AT))
    if batch == 1 and total <= (once or total):
        return samples, samples
    make = Samples.batches if batch > 1 else Samples.of
    return samples, make(source, path, -(-total // most))


def _words(source: Source) -> str:
    """How the samples come."""
    passes = (source.length or 1) // (source.per_pass or 1)
    often = "once each" if passes == 1 else f"{passes:,} times each"
    grouped = f" in batches of {source.rows_per_sample}" if source.rows_per_sample > 1 else ""
    return f"the samples come {often}{grouped}"


def _dependence(source: Source, found: Pilot) -> str:
    """In words, with numbers."""
    rough_solution = f"a rough solution from {found.taken:,} of them in random order is where steps take their length"
    if found.rule is CoordinateDrift:
        rough_solution += ", each coordinate its own"
    if source.independent:
        return f"are independent; {rough_solution}"
    if found.ratio > 1:
        return f"their long-run variance is up to {found.ratio:,.3g} times their variance; {rough_solution}"
    return f"they show no dependence that counts; {rough_solution}"


def _because(algorithm: Algorithm, reason: str) -> Algorithm:
    return dataclasses.replace(algorithm, reason=f"{algorithm.name}, because {reason}.")
