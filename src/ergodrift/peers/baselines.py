"""Descent-ascent and Adam with dual ascent, tuned in hindsight or as libraries' pages set them up."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import numpy as np

from ergodrift.peers import rules
from ergodrift.peers.descent import POINTS, follow
from ergodrift.peers.rival import CURVES, TUNING, Found, Rival, Trial
from ergodrift.peers.rules import Rule, Steps
from ergodrift.types import Array, PyTree

DECADES = (0.01, 0.1, 1.0, 10.0)  # of the scale that theory has for a step: the grid in each direction
HALVES = tuple(10 ** (k / 2) for k in range(-4, 4))  # where there is one direction only
FINALISTS = 3  # settings that run on all seeds, after all have run on a few
DEFAULTS = Steps(primal=1e-3, dual=1e-2)  # of the examples in Cooper's documentation


class Scale(NamedTuple):
    """Steps in the units of a task, from its optimum: what only hindsight knows.

    Attributes:
        primal: |x* - x0| / sqrt(E |grad L|^2), of descent; to be divided by sqrt t.
        dual: |l*| / sqrt(E |g|^2), of ascent; likewise, with the mean over x0 and x*.
        adam: the largest |x*_i - x0_i|, since Adam's steps have the unit of x; likewise.
    """

    primal: float
    dual: float
    adam: float


def scale(trial: Trial) -> Scale:
    """The units of a task's steps, from its first samples at x0 and, for constraints that are 0 there, at x*."""
    judge = trial.judge
    found = trial.first(judge.x0)
    both = [found.constraints, trial.first(judge.flat(judge.optimum.x)).constraints]
    multipliers = np.asarray(judge.optimum.multipliers, float)
    away = judge.flat(judge.optimum.x) - judge.flat(trial.task.x0)
    direction = found.grad + np.einsum("i,tij->tj", multipliers, found.jac)
    pressure = np.linalg.norm(multipliers) or _size(found.grad) / _size(found.jac)
    reach = np.sqrt(np.mean([_size(part) ** 2 for part in both]))
    return Scale(float(np.linalg.norm(away) / _size(direction)), float(pressure / reach), float(abs(away).max()))


def _size(values: Array) -> float:
    """sqrt(E |v|^2), with samples along the leading axis."""
    return float(np.sqrt(np.square(values).sum() / len(values)))


Grid: TypeAlias = Callable[[Scale, int], list[Steps]]  # the settings to try, for so many samples


def tuned(rule: Rule, grid: Grid, shuffled: bool = False) -> Callable[[Trial], Found]:
    """The best setting and the best of three points in hindsight: all settings on a few seeds, the best few on all."""

    def run(trial: Trial) -> Found:
        paths = trial.shuffled if shuffled else trial.paths
        settings = grid(scale(trial), trial.task.num_samples)
        few = jax.tree.map(lambda leaf: leaf[:TUNING], paths)
        tried, by = trial.judge.scores(_follow(rule, trial, few, settings, trial.stops[-1:])[:, :, -1])  # (settings, 3)
        runs: list[tuple[float, Found]] = []
        for k in np.argsort(tried.min(axis=1))[:FINALISTS].tolist():
            began = time.monotonic()
            found = _follow(rule, trial, paths, [settings[k]], trial.stops)[0]
            seconds = (time.monotonic() - began) * trial.cores / trial.seeds
            (scores,), _ = trial.judge.scores(found[None, :, -1], by)
            point = int(np.argmin(scores))
            setting = {**settings[k]._asdict(), "point": POINTS[point], "chosen by": by}
            runs.append((scores[point], Found(found[:, -1, point], seconds, found[:CURVES, :, point], setting)))
        best = min(runs, key=lambda run: run[0])[1]
        quickest = min(found.seconds for _, found in runs)  # the first compiles
        return best._replace(seconds=quickest, note=f"best of {len(settings)} settings and {len(POINTS)} points")

    return run


def untuned(rule: Rule, steps: Steps = DEFAULTS) -> Callable[[Trial], Found]:
    """One setting, and the last point: what a library leaves its user with."""

    def run(trial: Trial) -> Found:
        _follow(rule, trial, trial.paths, [steps], trial.stops)  # compiles
        began = time.monotonic()
        found = _follow(rule, trial, trial.paths, [steps], trial.stops)[0]
        seconds = (time.monotonic() - began) * trial.cores / trial.seeds
        return Found(found[:, -1, 0], seconds, found[:CURVES, :, 0], steps._asdict())

    return run


def decades(scale: Scale, num_samples: int) -> list[Steps]:
    """Of descent-ascent: steps that decay as 1 / sqrt t, constant ones that end where those do, and the default."""
    root = num_samples**-0.5
    both = [Steps(p * scale.primal, d * scale.dual, 0.5) for p, d in itertools.product(DECADES, DECADES)]
    return [*both, *(Steps(steps.primal * root, steps.dual * root) for steps in both), DEFAULTS]


def adam_decades(scale: Scale, num_samples: int) -> list[Steps]:
    """Of Adam with dual ascent: constant steps, as libraries take them, and the default."""
    root = num_samples**-0.5
    both = itertools.product(DECADES, DECADES)
    return [*(Steps(p * scale.adam * root, d * scale.dual * root) for p, d in both), DEFAULTS]


def adam_line(scale: Scale, num_samples: int) -> list[Steps]:
    """Of methods that have no dual step."""
    return [*(Steps(p * scale.adam * num_samples**-0.5, 0.0) for p in HALVES), DEFAULTS]


def _follow(rule: Rule, trial: Trial, paths: PyTree, settings: list[Steps], stops: np.ndarray) -> np.ndarray:
    task = trial.task
    return follow(rule, task.problem, task.source, task.x0, paths, settings, stops)


BASELINES = (
    Rival(
        "descent-ascent, tuned", "baseline", True, 4,
        "Simultaneous gradient descent on x and ascent on the multipliers: two steps, decaying or not, and which "
        "point to take, chosen in hindsight.",
        tuned(rules.DESCENT_ASCENT, decades),
    ),
    Rival(
        "Adam + dual ascent, tuned", "baseline", True, 3,
        "Adam on x, ascent on the multipliers: two steps and which point to take, chosen in hindsight.",
        tuned(rules.ADAM_ASCENT, adam_decades),
    ),
    Rival(
        "descent-ascent, default", "baseline", False, 2,
        "PyTorch's SGD at its default step, 1e-3, and multipliers by SGD at 1e-2; the last point.",
        untuned(rules.DESCENT_ASCENT),
    ),
    Rival(
        "shuffled: descent-ascent, tuned", "control", True, 4,
        "The tuned baseline on the same samples in random order: what dependence costs it.",
        tuned(rules.DESCENT_ASCENT, decades, shuffled=True),
    ),
)  # fmt: skip
