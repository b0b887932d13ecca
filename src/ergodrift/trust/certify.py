"""Does a constraint really hold at a fixed point? From a held-out dependent path."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import check
from ergodrift.data.source import IIDSource, MarkovSource, SeriesSource, Source, Zip
from ergodrift.problem import Problem
from ergodrift.trust.along import path_values
from ergodrift.trust.certificate import PLANNED, Certificate
from ergodrift.trust.guards import unsteady
from ergodrift.trust.methods import CertificateMethod, HeldOut, certificate_method
from ergodrift.trust.ranges import checked_bounds, fitting

LARGE = 2000  # states of a chain whose mixing time is not worked out unasked
FRESH = 2**32 - 1  # the seed of a held-out path unless another is given: far from the 0, 1, 2, ... of runs


def certify(
    problem: Problem,
    x: Any,
    source: Source,
    confidence: float = 0.95,
    method: str | CertificateMethod | None = None,
    *,
    num_samples: int | None = None,
    seed: int = FRESH,
    tau_mix: float | None = None,
    bounds: Any = None,
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
            mixing time and bounds are known, else as n grows. Or a `CertificateMethod` of your own.
        num_samples: length of the path; all of a series unless given.
        seed: of the path.
        tau_mix: the mixing time; that of the chain of a `MarkovSource` unless given, 1 for independent samples.
        bounds: (low, high) between which constraints lie, numbers or one entry a constraint. Known from the data of a
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
    chosen = certificate_method(method)
    confidence = check.number("confidence", confidence, above=0.5, below=1)
    tau_mix = None if tau_mix is None else check.number("tau_mix", tau_mix, at_least=1)
    planned = check.integer("planned", planned, at_least=1)
    started = _started(source)
    if started and chosen.from_stationary:
        raise ValueError(
            f"method={chosen.name!r} needs a path that starts in the stationary law, this source has start="
            f"{started.first}: use method='anytime', which holds from any start, or leave start out"
        )
    given = None if bounds is None else checked_bounds(bounds)
    losses, constraints, reach, still = held_out(problem, x, source, num_samples, seed)
    ranges = reach if given is None else fitting(given, constraints.shape[1])
    known = _known_tau(source, tau_mix, chosen.every_n)
    warnings = unsteady(source, losses, constraints)
    path = HeldOut(losses, constraints, known, ranges, still, started is not None, planned)
    try:
        found = chosen.certificate(path, confidence)
    except ValueError as error:
        raise ValueError("; ".join([str(error), *warnings])) from error
    return dataclasses.replace(found, warnings=[*found.warnings, *warnings])


def held_out(
    problem: Problem, x: Any, source: Source, num_samples: int | None, seed: int
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray] | None, bool]:
    """Losses (n,) and constraints (n, m) along a path, the range that constraints can have, where it is known, and
    whether the loss is known to be the same for every sample there can be."""
    if not isinstance(source, Source):
        raise TypeError(f"source must be a Source such as SeriesSource(data), got {type(source).__name__}")
    problem.check(jax.tree.map(jnp.asarray, x), source.example)
    count = source.length if num_samples is None else num_samples
    if count is None:
        raise ValueError("num_samples must be given: this source never ends")
    path = jax.tree.map(lambda leaf: np.asarray(leaf)[0], source.paths([seed], count))
    losses, constraints = path_values(problem, source, x, path)
    check.finite("loss along the path", losses)
    check.finite("constraints along the path", constraints)
    if isinstance(source, SeriesSource) or source.length is not None:
        return losses, constraints, None, False
    every = tuple(np.arange(len(law.weights)) for law in (source.loss_law, source.constraint_law))
    each, possible = path_values(problem, source, x, every if isinstance(path, tuple) else every[1])
    return losses, constraints, (possible.min(axis=0), possible.max(axis=0)), bool(np.ptp(each) == 0)


def _behind(source: Source) -> Source:
    """Where the constraints come from."""
    return source.constraints if isinstance(source, Zip) else source


def _known_tau(source: Source, tau_mix: float | None, needed: bool) -> float | None:
    """The mixing time, where it is known. That of a large chain takes long, or is refused: it is only worked out for
    those methods that cannot do without it."""
    part = _behind(source)
    if tau_mix is None and isinstance(part, MarkovSource):
        if not needed and part.chain.num_states > LARGE:
            return None
        return float(part.chain.mixing_time())
    if tau_mix is None and isinstance(part, IIDSource):
        return 1.0
    return tau_mix


def _started(source: Source) -> MarkovSource | None:
    """The chain behind the constraints, where it starts from a given state."""
    part = _behind(source)
    return part if isinstance(part, MarkovSource) and part.first is not None else None
