"""How much constraints must be tightened for the solution to be certified on held-out samples: run, look, tighten."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ergodrift.data.source import Source
from ergodrift.engine.margin import Margin, Tightening
from ergodrift.engine.outlook import Outlook, outlook
from ergodrift.engine.result import Result
from ergodrift.problem import Problem

MOST = 6  # runs, with that without a margin
BEYOND = 1.1  # of what is missing: a run answers to a margin nearly, not exactly
TOO_MUCH = 0.15  # of what is needed: more than that is given back
SLOPES = (0.5, 4.0)  # between which the answer of what is missing to the margin is believed


def settle(once: Callable[[ArrayLike], Result], problem: Problem, source: Source, asked: Margin) -> Result:
    """The first run whose solutions are expected to be certified as often as asked for; the best one if none is.

    A certificate on n' held-out samples, its upper end w above its estimate, is satisfied where

        -E[g_i(x)] >= w + sqrt(L / n' + L / n) Z

    with L the long-run variance of g_i(x) and Z standard normal. The part L / n is left out where the law is known:
    elsewhere E[g_i(x)] is a mean over the run's own n samples. w and L are measured at the run's own solution, on its
    own samples; that w will be another on the held-out ones, and how far L may be off, is reckoned with (`outlook`).
    What is missing for as many certificates as asked becomes the margin of the next run. An algorithm whose solutions
    end on the wrong side of its constraints is put right by that as well.

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
    held_out = asked.held_out or source.rows_seen(result.setting.num_samples)
    number = np.shape(result.constraint_sum)[-1]
    allowed = (1 - asked.share) / number
    tried = [_Try(result, np.zeros(number), outlook(result, problem, source, held_out, asked.confidence))]
    while len(tried) < MOST and not _settled(tried[-1], asked, allowed):
        margin = _next(tried, allowed)
        result = once(margin)
        tried.append(_Try(result, margin, outlook(result, problem, source, held_out, asked.confidence)))
    best = min(tried, key=lambda one: _place(one, asked, allowed))
    room, share = best.seen.room.mean(axis=0), max(1 - float(best.seen.failing().sum()), 0.0)
    needed = room + best.seen.missing(allowed)
    found = Tightening(len(tried), room, needed, share, held_out, best.seen.loss, tried[0].seen.loss)
    if not _enough(best.seen, asked):
        warnings.warn(_refusal(found, best.seen, asked), stacklevel=3)
    return dataclasses.replace(best.result, margin=best.margin, tightening=found)


class _Try(NamedTuple):
    result: Result
    margin: np.ndarray
    seen: Outlook


def _enough(seen: Outlook, asked: Margin) -> bool:
    return bool(seen.failing().sum() <= 1 - asked.share)


def _place(one: _Try, asked: Margin, allowed: float) -> tuple[float, float]:
    """Among tries: enough, at the least loss; else certified most often and, where none ever is, nearest to that."""
    failing = float(one.seen.failing().sum())
    if failing <= 1 - asked.share:
        return 1 - asked.share, one.seen.loss
    missing, room = one.seen.missing(allowed), one.seen.room.mean(axis=0)
    short = missing > 0
    needed = room[short] + missing[short]  # its unit is the constraint's: only parts of it compare
    return min(failing, 1.0), float(np.max(1 - room[short] / needed, initial=0.0))


def _settled(one: _Try, asked: Margin, allowed: float) -> bool:
    """Whether another run would bring nothing: no margin can help, or there is enough and not much too much room."""
    missing, room = one.seen.missing(allowed), one.seen.room.mean(axis=0)
    little = (missing >= -TOO_MUCH * (room + missing)) | (one.margin == 0)
    return not np.isfinite(missing).all() or (_enough(one.seen, asked) and bool(little.all()))


def _next(tried: Sequence[_Try], allowed: float) -> np.ndarray:
    """The margin that would leave nothing missing, and a little more: a run answers to it nearly, not exactly."""
    last = tried[-1]
    missing, room = last.seen.missing(allowed), last.seen.room.mean(axis=0)
    slope = np.ones_like(missing)
    if len(tried) > 1:
        moved, gained = last.margin - tried[-2].margin, tried[-2].seen.missing(allowed) - missing
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
