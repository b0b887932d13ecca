"""Does a constraint really hold at a fixed point? From a held-out dependent path."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import check
from ergodrift.data.source import Source
from ergodrift.problem import Problem
from ergodrift.trust.certificate import FINITE, PLANNED, Certificate, choose, judge
from ergodrift.trust.guards import unsteady
from ergodrift.trust.ranges import checked_bounds, fitting
from ergodrift.trust.values import path_values, possible_values
from ergodrift.trust.watch import Watch
from ergodrift.types import PyTree

METHODS = ("batch", "overlapping", "bootstrap", "hoeffding", "bernstein", "anytime", "auto")
LARGE = 2000  # states of a chain whose mixing time is not worked out unasked
FRESH = 2**32 - 1  # the seed of a held-out path unless another is given: far from the 0, 1, 2, ... of runs


def certify(
    problem: Problem,
    x: PyTree,
    source: Source,
    confidence: float = 0.95,
    method: str | None = None,
    *,
    num_samples: int | None = None,
    seed: int = FRESH,
    tau_mix: float | None = None,
    bounds: object = None,
    planned: int = PLANNED,
) -> Certificate:
    """Whether E[g_i(x, xi)] <= 0 under the stationary law, from one held-out dependent path.

    Args:
        problem: loss and constraints.
        x: a fixed point, chosen without these samples.
        source: where the held-out samples come from.
        confidence: with which all intervals of constraints hold together (Bonferroni); likewise the loss, by itself.
        method: chosen from the data unless given (or "auto"), and the certificate says why: "hoeffding" where mixing
            time and bounds are known and it is at most 1.5 times as wide as "batch", or the path says too little for
            that one; else "batch". "batch" or "overlapping" batch means, "bootstrap" (stationary, studentised): valid
            as n grows; "hoeffding", "bernstein": for every n, given the mixing time and bounds (Paulin 2015), the
            second from a stationary start only; "anytime": may be watched while samples arrive, for every n where
            mixing time and bounds are known, else as n grows.
        num_samples: length of the path; all of a series unless given.
        seed: of the path.
        tau_mix: the mixing time; what the source says unless given: that of a chain, 1 for independent samples.
        bounds: (low, high) between which constraints lie, numbers or one entry per constraint. Known from the data of a
            chain or of independent samples; must be given for a recorded series.
        planned: of "anytime": the number of samples at which it should be tightest. To be fixed beforehand, and the
            same each time where the certificate is asked for again as samples arrive.

    >>> import ergodrift as ed
    >>> chain = ed.MarkovChain([[0.9, 0.1], [0.1, 0.9]])
    >>> source = ed.MarkovSource(chain, np.array([1.0, -1.0]))
    >>> problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x + xi, ed.Ball(2.0))
    >>> ed.certify(problem, np.array([-0.5]), source, num_samples=20_000).verdict
    ['satisfied']
    """
    method = "auto" if method is None else method
    confidence, tau_mix = _checked(confidence, method, tau_mix)
    planned = check.integer("planned", planned, at_least=1)
    if not isinstance(source, Source):
        raise TypeError(f"source must be a Source such as SeriesSource(data), got {type(source).__name__}")
    fixed_start = not source.parts[1].starts_stationary
    if fixed_start and method == "bernstein":
        raise ValueError(
            "method='bernstein' needs a path that starts in the stationary law, and this source starts elsewhere: use "
            "method='anytime', which holds from any start, or leave start out"
        )
    given = None if bounds is None else checked_bounds(bounds)
    losses, constraints, reach, still = held_out(problem, x, source, num_samples, seed)
    ranges = reach if given is None else fitting(given, constraints.shape[1])
    known = _known_tau(source.parts[1], method) if tau_mix is None else tau_mix
    warnings = unsteady(source, losses, constraints)
    if method == "anytime":
        watch = Watch(constraints.shape[1], confidence, known, ranges, planned, still=still)
        watch.add(losses, constraints)
        return dataclasses.replace(watch.certificate(), warnings=warnings)
    why = ""
    if method == "auto":
        method, why = choose(constraints, confidence, known, ranges, fixed_start)
    try:
        found = judge(
            losses, constraints, confidence, method, known, ranges, still=still, fixed_start=fixed_start, why=why
        )
    except ValueError as error:
        raise ValueError("; ".join([str(error), *warnings])) from error
    return dataclasses.replace(found, warnings=warnings)


def held_out(
    problem: Problem, x: PyTree, source: Source, num_samples: int | None, seed: int
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray] | None, bool]:
    """Losses (n,) and constraints (n, m) along a path, the range that constraints can have, where it is known, and
    whether the loss is known to be the same for every sample there can be."""
    problem.check(jax.tree.map(jnp.asarray, x), source.example)
    count = source.length if num_samples is None else num_samples
    if count is None:
        raise ValueError("num_samples must be given: this source never ends")
    path = jax.tree.map(lambda leaf: np.asarray(leaf)[0], source.paths([seed], count))
    losses, constraints = path_values(problem, source, x, path)
    check.finite("loss along the path", losses)
    check.finite("constraints along the path", constraints)
    every_loss, every = possible_values(problem, source, x)
    ranges = None if every is None else (every.min(axis=0), every.max(axis=0))
    return losses, constraints, ranges, every_loss is not None and bool(np.ptp(every_loss) == 0)


def _checked(confidence: float, method: str, tau_mix: float | None) -> tuple[float, float | None]:
    check.choice("method", method, METHODS)
    if tau_mix is not None:
        tau_mix = check.number("tau_mix", tau_mix, at_least=1)
    return check.number("confidence", confidence, above=0.5, below=1), tau_mix


def _known_tau(source: Source, method: str) -> float | None:
    """The mixing time, where it is known. That of a large chain takes long, or is refused: it is only worked out for
    those methods that cannot do without it."""
    law = source.stationary
    if law is not None and len(law) > LARGE and not source.independent and method not in FINITE:
        return None
    tau = source.mixing_time()
    return None if tau is None else float(tau)
