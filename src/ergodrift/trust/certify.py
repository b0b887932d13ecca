"""Does a constraint really hold at a fixed point? From a held-out dependent path, or while samples arrive."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift import check
from ergodrift.problem import Problem
from ergodrift.source import IIDSource, MarkovSource, SeriesSource, Source, Zip
from ergodrift.trust.along import path_values
from ergodrift.trust.certificate import PLANNED, Certificate, judge, verdicts
from ergodrift.trust.guards import unsteady

METHODS = ("batch", "overlapping", "bootstrap", "hoeffding", "bernstein", "anytime")
FRESH = 2**32 - 1  # the seed of a held-out path unless another is given: far from the 0, 1, 2, ... of runs


def certify(
    problem: Problem,
    x: Any,
    source: Source,
    confidence: float = 0.95,
    method: str = "batch",
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
        method: "batch" or "overlapping" batch means, "bootstrap" (stationary, studentised): valid as n grows;
            "hoeffding", "bernstein": for every n, given the mixing time and bounds (Paulin 2015), the second from a
            stationary start only; "anytime": may be watched while samples arrive, for every n where mixing time and
            bounds are known, else as n grows.
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
    confidence, tau_mix = _checked(confidence, method, tau_mix)
    planned = check.integer("planned", planned, at_least=1)
    started = _started(source)
    if started and method == "bernstein":
        raise ValueError(
            "method='bernstein' needs a path that starts in the stationary law, this source has start="
            f"{started.first}: use method='anytime', which holds from any start, or leave start out"
        )
    losses, constraints, reach, still = held_out(problem, x, source, num_samples, seed)
    ranges = _ranges(reach, bounds, constraints.shape[1])
    known = _known_tau(source, tau_mix)
    given = started is not None
    warnings = unsteady(source, losses, constraints)
    try:
        found = judge(losses, constraints, confidence, method, known, ranges, planned, still=still, fixed_start=given)
    except ValueError as error:
        raise ValueError("; ".join([str(error), *warnings])) from error
    return dataclasses.replace(found, warnings=warnings)


class Monitor:
    """An anytime-valid certificate that is brought up to date while samples arrive.

    While there are too few samples to say anything, it is undecided and has no ends.

    Args:
        problem: loss and constraints.
        x: a fixed point.
        confidence: with which all its intervals, at all times together, hold.
        tau_mix, bounds: as in `certify`; with both, the guarantee is for every n.
        planned: the number of samples at which the interval should be tightest.

    >>> import ergodrift as ed
    >>> problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x + xi, ed.Ball(2.0))
    >>> monitor = ed.Monitor(problem, np.array([-0.5]), tau_mix=1, bounds=(-1.5, 0.5))
    >>> rng = np.random.default_rng(0)
    >>> monitor.update(rng.choice([-1.0, 1.0], size=(100, 1))).verdict
    ['undecided']
    >>> monitor.update(rng.choice([-1.0, 1.0], size=(900, 1))).verdict
    ['satisfied']
    """

    def __init__(
        self,
        problem: Problem,
        x: Any,
        confidence: float = 0.95,
        *,
        tau_mix: float | None = None,
        bounds: Any = None,
        planned: int = PLANNED,
    ) -> None:
        self.problem, self.x = problem, x
        self.confidence, self.tau_mix = _checked(confidence, "anytime", tau_mix)
        self.bounds = bounds
        self.planned = check.integer("planned", planned, at_least=1)
        self._values: list[tuple[np.ndarray, np.ndarray]] = []
        self._best: tuple[np.ndarray, np.ndarray] | None = None

    def update(self, samples: Any) -> Certificate:
        """Take in more samples (a leading axis of time) and say where things stand."""
        losses, constraints, _, _ = held_out(self.problem, self.x, SeriesSource(samples), None, FRESH)
        self._values.append((losses, constraints))
        losses, constraints = (np.concatenate(parts) for parts in zip(*self._values, strict=True))
        self._values = [(losses, constraints)]
        ranges = _ranges(None, self.bounds, constraints.shape[1])
        known = (self.tau_mix, ranges, self.planned)
        found = judge(losses, constraints, self.confidence, "anytime", *known, patient=True)
        if self._best is not None:  # an end once given is never taken back
            low, high = np.maximum(found.lower, self._best[0]), np.minimum(found.upper, self._best[1])
            verdict = verdicts(low, high)
            more = [
                0 if said != "undecided" else wanted for said, wanted in zip(verdict, found.more_samples, strict=True)
            ]
            found = dataclasses.replace(found, lower=low, upper=high, verdict=verdict, more_samples=more)
        self._best = found.lower, found.upper
        return found


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


def _checked(confidence: float, method: str, tau_mix: float | None) -> tuple[float, float | None]:
    check.choice("method", method, METHODS)
    if tau_mix is not None:
        tau_mix = check.number("tau_mix", tau_mix, at_least=1)
    return check.number("confidence", confidence, above=0.5, below=1), tau_mix


def _behind(source: Source) -> Source:
    """Where the constraints come from."""
    return source.constraints if isinstance(source, Zip) else source


def _known_tau(source: Source, tau_mix: float | None) -> float | None:
    part = _behind(source)
    if tau_mix is None and isinstance(part, MarkovSource):
        return float(part.chain.mixing_time())
    if tau_mix is None and isinstance(part, IIDSource):
        return 1.0
    return tau_mix


def _started(source: Source) -> MarkovSource | None:
    """The chain behind the constraints, where it starts from a given state."""
    part = _behind(source)
    return part if isinstance(part, MarkovSource) and part.first is not None else None


def _ranges(
    found: tuple[np.ndarray, np.ndarray] | None, bounds: Any, number: int
) -> tuple[np.ndarray, np.ndarray] | None:
    if bounds is None:
        return found
    try:
        low, high = (np.atleast_1d(np.asarray(end, dtype=float)) for end in bounds)
    except (TypeError, ValueError):
        raise TypeError(f"bounds must be a pair (low, high), got {bounds!r}") from None
    for name, end in [("low", low), ("high", high)]:
        if end.shape not in [(1,), (number,)]:
            raise ValueError(
                f"bounds must be (low, high), each a number or {number} numbers, one for each constraint; got {name} "
                f"of shape {end.shape}"
            )
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise ValueError(f"bounds must be finite with low < high, got {bounds!r}")
    return low, high
