"""Does a constraint really hold at a fixed point? From a held-out dependent path."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import check
from ergodrift.data.source import Source
from ergodrift.problem import Problem
from ergodrift.problem.point import as_point
from ergodrift.trust.certificate import TUNED_FOR, Certificate
from ergodrift.trust.dependence import depends
from ergodrift.trust.guards import unsteady
from ergodrift.trust.methods import CertificateMethod, HeldOut, certificate_method
from ergodrift.trust.plain import Plain
from ergodrift.trust.ranges import Ranges, checked_bounds, fitting, pinned
from ergodrift.trust.values import path_values, possible_values
from ergodrift.types import PyTree

LARGE = 2000  # states of a chain whose mixing time is not worked out unasked
FRESH = 2**32 - 1  # the seed of a held-out path unless another is given: far from the 0, 1, 2, ... of runs


def certify(
    problem: Problem | Callable[[PyTree], object],
    x: PyTree = None,
    source: Source | None = None,
    confidence: float = 0.95,
    method: str | CertificateMethod | None = None,
    *,
    num_samples: int | None = None,
    seed: int = FRESH,
    tau_mix: float | None = None,
    bounds: object = None,
    tuned_for: int = TUNED_FOR,
) -> Certificate:
    """Whether E[g_i(x, xi)] <= 0 under the stationary law, from one held-out dependent path.

    `certify(function, source)` asks the same of a plain function of samples, E[g_i(xi)] <= 0: a network trained by any
    framework, with no problem, no point and no loss.

    Args:
        problem: loss and constraints; or a function that takes samples with a leading axis, as NumPy arrays, and
            returns their constraints (<= 0), a row of m numbers or one number for each sample.
        x: a fixed point, chosen without these samples; none with a function.
        source: where the held-out samples come from.
        confidence: with which all intervals of constraints hold together (Bonferroni); likewise the loss, by itself.
        method: chosen from the data unless given (or "auto"), and the certificate says why: "hoeffding" where mixing
            time and bounds are known and it is at most 1.5 times as wide as "batch", or the path says too little for
            that one; else "batch". "batch" or "overlapping" batch means, "bootstrap" (stationary, studentised): valid
            as n grows; "hoeffding", "bernstein": for every n, given the mixing time and bounds (Paulin 2015), the
            second from a stationary start only; "anytime": may be watched while samples arrive, for every n where
            mixing time and bounds are known, else as n grows. Or a `CertificateMethod` of your own.
        num_samples: length of the path, to be given for a stream; all of a series unless given: its rows, once and in
            order, whatever the passes, order and batches that it has for a run.
        seed: of the path.
        tau_mix: the mixing time; what the source says unless given: that of a chain, 1 for independent samples.
        bounds: (low, high) between which constraints lie, numbers or one entry per constraint. Known from the data of a
            chain or of independent samples; must be given for a recorded series.
        tuned_for: of "anytime": the number of samples at which it should be tightest. To be fixed beforehand, and the
            same each time where the certificate is asked for again as samples arrive.

    >>> import ergodrift as ed
    >>> chain = ed.MarkovChain([[0.9, 0.1], [0.1, 0.9]])
    >>> source = ed.MarkovSource(chain, np.array([1.0, -1.0]))
    >>> problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x + xi, ed.Ball(2.0))
    >>> ed.certify(problem, np.array([-0.5]), source, num_samples=20_000).verdict
    ['satisfied']
    >>> ed.certify(lambda xi: xi - 0.5, source, num_samples=20_000).verdict
    ['satisfied']
    """
    asked = problem if isinstance(problem, Problem) else Plain(problem)
    if isinstance(asked, Plain) and isinstance(x, Source):
        x, source = None, x
    if isinstance(asked, Plain) and x is not None:
        if source is None:
            raise TypeError(f"source must be a Source such as SeriesSource(data), got {type(x).__name__}")
        raise TypeError("a function of samples has no point x: certify(function, source)")
    if isinstance(asked, Problem):
        check.untraced("certify", x)
        x = as_point("x", x)
    chosen = certificate_method(method)
    confidence = check.number("confidence", confidence, above=0.5, below=1)
    tau_mix = None if tau_mix is None else check.number("tau_mix", tau_mix, at_least=1)
    tuned_for = check.integer("tuned_for", tuned_for, at_least=1)
    if not isinstance(source, Source):
        raise TypeError(f"source must be a Source such as SeriesSource(data), got {type(source).__name__}")
    if source.arrives:
        if num_samples is None:
            raise ValueError("num_samples must be given: how many samples of the stream to certify on, the first ones")
        source = source.beginning(num_samples)
    source = source.in_order
    fixed_start = not source.parts[1].starts_stationary
    if fixed_start and chosen.from_stationary:
        raise ValueError(
            f"method={chosen.name!r} needs a path that starts in the stationary law, and this source starts elsewhere: "
            "use method='anytime', which holds from any start, or leave start out"
        )
    given = None if bounds is None else checked_bounds(bounds)
    losses, constraints = held_out(asked, x, source, num_samples, seed)
    ranges, constant_loss = possible(asked, x, source, constraints, given)
    known = known_tau(source.parts[1], chosen.every_n) if tau_mix is None else tau_mix
    warnings = unsteady(source, losses, constraints)
    path = HeldOut(losses, constraints, known, ranges, constant_loss, fixed_start, tuned_for)
    try:
        found = chosen.certificate(path, confidence)
    except ValueError as error:
        raise ValueError("; ".join([str(error), *warnings])) from error
    found = dataclasses.replace(found, warnings=[*found.warnings, *warnings])
    return found.without_loss() if isinstance(asked, Plain) else found


def held_out(
    problem: Problem | Plain, x: PyTree, source: Source, num_samples: int | None, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Losses (n,) and constraints (n, m) along a path."""
    if isinstance(problem, Problem):
        problem.check(jax.tree.map(jnp.asarray, x), source.example)
    count = source.length if num_samples is None else num_samples
    if count is None:
        raise ValueError("num_samples must be given: this source never ends")
    path = source.path_of(source.paths([seed], count), 0)
    if isinstance(problem, Plain):
        visits = source.visits(path)[1]
        constraints = problem.values(visits.points)[visits.rows]
        return np.zeros(len(constraints)), constraints
    losses, constraints = path_values(problem, source, x, path)
    check.finite("loss along the path", losses)
    check.finite("constraints along the path", constraints)
    return losses, constraints


def possible(
    problem: Problem | Plain, x: PyTree, source: Source, constraints: np.ndarray, given: Ranges | None
) -> tuple[Ranges | None, bool]:
    """The ranges that constraints can have: given, or those of all samples there can be where these are known. And
    whether the loss is the same for all of them. What is computed without the sample is the same for all."""
    if isinstance(problem, Plain):
        known = source.parts[1].stationary is not None
        losses, every = None, problem.values(source.constraint_law.points) if known else None
    else:
        losses, every = possible_values(problem, source, x)
    ranges = given if every is None or given is not None else (every.min(axis=0), every.max(axis=0))
    ranges = None if ranges is None else fitting(ranges, constraints.shape[1])
    if isinstance(problem, Plain):
        return ranges, True
    constant = losses is not None and bool(np.ptp(losses) == 0)
    constant = constant or not depends(problem.loss, x, source.example).any()
    return pinned(ranges, constraints, depends(problem.constraints, x, source.example)), constant


def known_tau(source: Source, needed: bool) -> float | None:
    """The mixing time, where it is known. That of a large chain takes long, or is refused: it is only worked out for
    those methods that cannot do without it."""
    law = source.stationary
    if law is not None and len(law) > LARGE and not source.independent and not needed:
        return None
    tau = source.mixing_time()
    return None if tau is None else float(tau)
