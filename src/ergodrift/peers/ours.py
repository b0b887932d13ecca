"""Our algorithms as competitors, all through `run` on the paths that everybody sees."""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Callable

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from ergodrift.advice import auto
from ergodrift.engine.margin import Margin
from ergodrift.engine.result import Result
from ergodrift.engine.run import NonFiniteError, run
from ergodrift.methods import algorithms
from ergodrift.methods.algorithms import Algorithm
from ergodrift.peers.rival import CURVES, TUNING, Found, NotForThisError, Rival, Setting, Trial
from ergodrift.types import PyTree

ROOMS = ("engine", "methods", "peers/ours")
CHOOSING = ("advice", *ROOMS)  # what `auto` depends on, and nobody else
LONG, TIMED = 10.0, 4096  # seconds from which a run is not repeated for its time, and samples that then tell it
MOST_STATES = 20_000  # that RDPP is let remember


def one_of_ours(
    make: Callable[[Trial], Algorithm], shuffled: bool = False, kept: bool = False
) -> Callable[[Trial], Found]:
    """An algorithm on all seeds; `kept`, with a margin for certificates on the later part."""

    def go(trial: Trial) -> Found:
        algorithm, paths = make(trial), trial.shuffled if shuffled else trial.paths
        margin = Margin(held_out=_held_out(trial)) if kept else None
        began = time.monotonic()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            result = _run(algorithm, trial, paths, trial.stops, margin)
        runs = 1 if result.tightening is None else result.tightening.runs
        seconds = runs * _seconds(algorithm, trial, paths, (time.monotonic() - began) / runs)
        note = " ".join([algorithm.reason, *(str(one.message) for one in said if one.category is UserWarning)])
        return Found(_flat(result.solution, 1), seconds, _flat(result.x_mean, 2)[:CURVES], note=note)

    return go


def best_of(makes: Callable[[Trial], list[tuple[Setting, Algorithm]]]) -> Callable[[Trial], Found]:
    """The setting of an algorithm that is best in hindsight: all on a few seeds, the best on all."""

    def go(trial: Trial) -> Found:
        tried, few = makes(trial), jax.tree.map(lambda leaf: leaf[:TUNING], trial.paths)
        ends: list[np.ndarray] = []
        for _, algorithm in tried:
            try:
                ends.append(_flat(_run(algorithm, trial, few, trial.stops).solution, 1))
            except NonFiniteError:
                ends.append(np.full((len(jax.tree.leaves(few)[0]), len(trial.judge.x0)), np.nan))
        scores, by = trial.judge.scores(np.stack(ends))
        setting, algorithm = tried[int(np.argmin(scores))]
        found = one_of_ours(lambda trial: algorithm)(trial)
        return found._replace(setting={**setting, "chosen by": by}, note=f"best of {len(tried)} settings")

    return go


def _held_out(trial: Trial) -> int:
    """Rows of the later part, or of a path as long as the run where that never ends or is more of the same."""
    later = trial.task.later or trial.task.source
    return later.rows_seen(later.length or trial.task.num_samples)


def _run(algorithm: Algorithm, trial: Trial, paths: PyTree, record: np.ndarray, margin: Margin | None = None) -> Result:
    task, seeds = trial.task, len(jax.tree.leaves(paths)[0])
    return run(algorithm, task.problem, task.source, x0=task.x0, seeds=seeds, record=record, paths=paths, margin=margin)


def _seconds(algorithm: Algorithm, trial: Trial, paths: PyTree, before: float) -> float:
    """Of one run on one core, once compiled: run again or, where that took long before, its first samples twice."""
    total, seconds = trial.task.num_samples, list[float]()
    samples, stops = (total, trial.stops) if before < LONG or total <= TIMED else (TIMED, np.array([TIMED]))
    first = jax.tree.map(lambda leaf: leaf[:, :samples], paths)
    for _ in range(1 if samples == total else 2):
        began = time.monotonic()
        _run(algorithm, trial, first, stops)
        seconds.append(time.monotonic() - began)
    return min(seconds) * trial.cores / trial.seeds * total / samples


def _flat(points: PyTree, axes: int) -> np.ndarray:
    flatten = lambda point: ravel_pytree(point)[0]  # noqa: E731
    for _ in range(axes):
        flatten = jax.vmap(flatten)
    return np.asarray(flatten(points))


_chosen: weakref.WeakKeyDictionary[Trial, Algorithm] = weakref.WeakKeyDictionary()  # three rows have the same choice


def _auto(trial: Trial) -> Algorithm:
    if trial not in _chosen:
        task = trial.task
        _chosen[trial] = auto(task.problem, task.source, x0=task.x0, num_samples=task.num_samples)
    return _chosen[trial]


def _told(trial: Trial) -> Algorithm:
    try:
        return algorithms.edpp(trial.tau)
    except ValueError as error:  # of `diagnose`: too few samples to tell it a mixing time
        raise NotForThisError(str(error)) from error


def _remembering(trial: Trial) -> Algorithm:
    states = trial.task.source.stationary
    if states is None:
        raise NotForThisError("no states come back")
    if len(states) > MOST_STATES:
        raise NotForThisError(f"{len(states):,} states are too many to remember")
    return algorithms.rdpp()


def _primal_dual(trial: Trial) -> Algorithm:
    task = trial.task
    found = algorithms.pd(task.num_samples, *bounds(trial))
    try:
        found.bind(task.problem).init(task.x0, len(trial.judge.optimum.multipliers))
    except ValueError as error:  # its theorem is about longer runs
        raise NotForThisError(str(error)) from error
    return found


def bounds(trial: Trial) -> tuple[float, float]:
    """The largest gradient and the largest constraint that the first samples show at x0 and at the optimum."""
    judge = trial.judge
    both = [trial.first(judge.flat(x)) for x in (trial.task.x0, judge.optimum.x)]
    gradients = [np.linalg.norm(part, axis=-1).max() for found in both for part in (found.grad, found.jac)]
    return float(max(gradients)), float(max(abs(found.constraints).max() for found in both))


def _named(name: str, *given: object) -> Callable[[Trial], Algorithm]:
    return lambda trial: getattr(algorithms, name)(*given)


def _rival(name: str, settings: int, about: str, make: Callable[[Trial], Algorithm]) -> Rival:
    return Rival(name, "ours", False, settings, about, one_of_ours(make), rooms=ROOMS)


OURS = (
    Rival("auto", "ours", False, 0, "`ed.auto(problem, source, x0, num_samples)`: what one gets who chooses nothing.",
          one_of_ours(_auto), rooms=CHOOSING, certified=True),
    Rival("auto, margin", "ours", False, 0, "`auto` with `margin=ed.Margin(held_out=...)`: constraints tightened so "
          "that 95 % of its points are certified on as many later samples as there are.",
          one_of_ours(_auto, kept=True), rooms=CHOOSING, certified=True),
    _rival("SDPP", 0, "Scale-free drift-plus-penalty, by itself.", _named("sdpp")),
    _rival("EDPP-t, told tau", 1, "Algorithm 1 of Kim and Lee, told the mixing time: the chain's own, or the one that "
           "`ed.diagnose` finds in the samples.", _told),
    _rival("EDPP-auto", 0, "The same, with the mixing time estimated as it runs.", _named("edpp", "auto")),
    _rival("DPP-t", 0, "Drift-plus-penalty for independent samples (Yu, Neely and Wei 2017).", _named("dpp")),
    _rival("ADPP", 0, "Adaptive drift-plus-penalty, appendix C of Kim and Lee.", _named("adpp")),
    _rival("MDPP", 0, "Algorithm 2 of Kim and Lee, for unknown mixing, at its defaults.", _named("mdpp")),
    _rival("WDPP", 0, "Windowed drift-plus-penalty.", _named("wdpp")),
    _rival("RDPP", 0, "Remembering drift-plus-penalty, where states come back.", _remembering),
    _rival("PD", 3, "Mahdavi, Jin and Yang (2012), told the horizon and the largest gradient and constraint at x0 and "
           "at the optimum.", _primal_dual),
    _rival("PD2", 1, "Jenatton, Huang and Archambeau (2016), told the largest gradient.",
           lambda trial: algorithms.pd2(bounds(trial)[0])),
    Rival("shuffled: auto", "control", False, 0, "`auto`, chosen as above, on the same samples in random order: what "
          "dependence costs it.", one_of_ours(_auto, shuffled=True), rooms=CHOOSING),
)  # fmt: skip
