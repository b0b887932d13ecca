"""How much constraints must be tightened for the solution to be certified on held-out samples: run, look, tighten."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

from ergodrift.data.source import Source
from ergodrift.engine.margin import Margin, Tightening
from ergodrift.engine.outlook import Outlook, outlook
from ergodrift.engine.result import Result
from ergodrift.problem import Problem
from ergodrift.types import PyTree

MOST = 6  # runs, with that without a margin
HALVINGS = 5  # of the way from x0, where no margin is enough
BEYOND = 1.1  # of what is missing: a run answers to a margin nearly, not exactly
TOO_MUCH = 0.15  # of what is needed: more than that is given back
SLOPES = (0.5, 4.0)  # between which the answer of what is missing to the margin is believed


def settle(once: Callable[[ArrayLike], Result], problem: Problem, source: Source, asked: Margin) -> Result:
    """The first run whose solutions are expected to be certified as often as asked for; else the best that is found.

    A certificate on n' held-out samples, its upper end w above its estimate, is satisfied where

        -E[g_i(x)] >= w + sqrt(L / n' + L / n) Z

    with L the long-run variance of g_i(x) and Z standard normal. The part L / n is left out where the law is known:
    elsewhere E[g_i(x)] is a mean over the run's own n samples. w and L are measured at the run's own solution, on its
    own samples; that w will be another on the held-out ones, and how far L may be off, is reckoned with (`outlook`).
    What is missing for as many certificates as asked becomes the margin of the next run. An algorithm whose solutions
    end on the wrong side of its constraints is put right by that as well.

    Where limits are tighter than w, as |E g| <= c is with c < w, no margin is enough. But w shrinks with the way from
    x0, where that is a point without risk: of the points x0 + s (x - x0), which keep convex constraints that both ends
    keep, the one of the least loss is then taken among those that are certified.

    Args:
        once: the run with a given margin.
        problem: loss and constraints, as given.
        source: of the samples.
        asked: what is to be certified, and how often.
    """
    result = once(0.0)  # not without: all runs are then compiled as one
    if result.setting is None:
        raise ValueError(
            "margin='auto' looks at solutions, which cannot be done while run is traced by vmap or jit: call run on "
            "its own, or pass numbers as the margin"
        )
    x0, held_out = result.setting.x0, asked.held_out or source.rows_seen(result.setting.num_samples)
    number = np.shape(result.constraint_sum)[-1]
    allowed = (1 - asked.share) / number

    def seen(result: Result) -> Outlook:
        return outlook(result, problem, source, held_out, asked.confidence)

    tried = [_Try(result, np.zeros(number), seen(result))]
    while len(tried) < MOST and not _settled(tried, asked, allowed):
        margin = _next(tried, allowed)
        result = once(margin)
        tried.append(_Try(result, margin, seen(result)))
    if not any(_enough(one.seen, asked) for one in tried):
        # With half the room that x0 has, solutions can go farther from x0 than without a margin, and lose little.
        spare = np.maximum(seen(_moved(result, x0, 0.0)).room.mean(axis=0), 0)
        if spare.any():
            result = once(spare / 2)
            tried.append(_Try(result, spare / 2, seen(result)))
        tried += [near for one in tried for near in _nearer(one, x0, seen, asked)]
    best = min(tried, key=lambda one: _place(one, asked, allowed))
    room, share = best.seen.room.mean(axis=0), max(1 - float(best.seen.failing().sum()), 0.0)
    needed = room + best.seen.missing(allowed)
    runs = sum(one.way == 1 for one in tried)
    found = Tightening(runs, room, needed, share, held_out, best.seen.loss, tried[0].seen.loss, best.way)
    if not _enough(best.seen, asked):
        warnings.warn(_refusal(found, best.seen, asked), stacklevel=3)
    return dataclasses.replace(best.result, margin=best.margin, tightening=found)


class _Try(NamedTuple):
    result: Result
    margin: np.ndarray
    seen: Outlook
    way: float = 1.0  # of that from x0 to the solution of the run


def _nearer(one: _Try, x0: PyTree, seen: Callable[[Result], Outlook], asked: Margin) -> Iterator[_Try]:
    """Its solutions nearer to x0: those that are certified as often as asked for, each farther than the one before."""
    low, high, least = 0.0, 1.0, 2.0**-HALVINGS
    way = least  # first: where not even that is certified, nothing on the way is
    while high - low > least:
        result = _moved(one.result, x0, way)
        found = _Try(result, one.margin, seen(result), way)
        if _enough(found.seen, asked):
            low = way
            yield found
        elif way == least:
            return
        else:
            high = way
        way = (low + high) / 2


def _moved(result: Result, x0: PyTree, way: float) -> Result:
    """Its solutions nearer to x0: x0 + s (x - x0)."""
    solution = jax.tree.map(lambda start, end: start[None] + way * (end - start[None]), x0, result.solution)
    return dataclasses.replace(result, solution=solution)


def _enough(seen: Outlook, asked: Margin) -> bool:
    return bool(seen.failing().sum() <= 1 - asked.share)


def _place(one: _Try, asked: Margin, allowed: float) -> tuple[float, float]:
    """Among tries: enough, at the least loss; else certified most often and, where none ever is, nearest to that."""
    failing = float(one.seen.failing().sum())
    if failing <= 1 - asked.share:
        return 1 - asked.share, one.seen.loss
    missing, room = one.seen.missing(allowed), one.seen.room.mean(axis=0)
    short = missing > 0
    if not np.isfinite(missing).all():
        return min(failing, 1.0), np.inf
    needed = room[short] + missing[short]  # its unit is the constraint's: only parts of it compare
    return min(failing, 1.0), float(np.max(1 - room[short] / needed, initial=0.0))


def _judged(tried: Sequence[_Try], allowed: float) -> list[_Try]:
    """The tries that certificates have an upper end for."""
    return [one for one in tried if np.isfinite(one.seen.missing(allowed)).all()]


def _settled(tried: Sequence[_Try], asked: Margin, allowed: float) -> bool:
    """Whether another run would bring nothing: no margin can help, or there is enough and not much too much room."""
    one = tried[-1]
    missing, room = one.seen.missing(allowed), one.seen.room.mean(axis=0)
    little = (missing >= -TOO_MUCH * (room + missing)) | (one.margin == 0)
    return not _judged(tried, allowed) or (_enough(one.seen, asked) and bool(little.all()))


def _next(tried: Sequence[_Try], allowed: float) -> np.ndarray:
    """The margin that would leave nothing missing, and a little more: a run answers to it nearly, not exactly.

    With so much room that what a constraint limits is no longer seen, nothing can be certified: then half the way back.
    """
    *_, last = judged = _judged(tried, allowed)
    if last is not tried[-1]:
        return (last.margin + tried[-1].margin) / 2
    missing, room = last.seen.missing(allowed), last.seen.room.mean(axis=0)
    slope = np.ones_like(missing)
    if len(judged) > 1:
        before = judged[-2]
        moved, gained = last.margin - before.margin, before.seen.missing(allowed) - missing
        slope = np.where(moved == 0, 1, np.clip(gained / np.where(moved == 0, 1, moved), *SLOPES))
    more = np.where(missing > 0, BEYOND, 1 / BEYOND) * missing / slope
    # A constraint with room beyond its margin does not feel the margin, until that is as large as the room.
    more += np.where((missing > 0) & (room > last.margin), room - last.margin, 0)
    return np.maximum(last.margin + more, 0)


def _refusal(found: Tightening, seen: Outlook, asked: Margin) -> str:
    said = f"no margin was found with which {asked.share:.0%} of runs are certified on {found.held_out:,} samples: "
    if not np.isfinite(found.needed).all():
        return said + seen.reason
    worst = int(np.argmax(seen.failing()))
    return (
        f"{said}about {found.share:.0%} are, as constraint {worst} is {found.room[worst]:.3g} below 0 where "
        f"{found.needed[worst]:.3g} are needed, after {found.runs} runs; hold out more samples, loosen it, or ask "
        "ed.feasibility(problem, source) how far it can be kept"
    )
