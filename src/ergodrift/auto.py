"""Which algorithm to use, from what the source reveals."""

from __future__ import annotations

import dataclasses
from typing import Any

from ergodrift import check
from ergodrift.algorithms import Algorithm, adpp, dpp, edpp, rdpp, wdpp
from ergodrift.problem import Problem
from ergodrift.source import IIDSource, MarkovSource, Source, Zip

MOST_STATES = 100_000  # above, remembering every state costs more memory than one would spend unasked
VISITS = 10  # samples a state, on average, from which remembering pays


def auto(problem: Problem, source: Source, num_samples: int | None = None) -> Algorithm:
    """The algorithm for this source; its `reason` says why in one sentence.

    Args:
        problem: loss, constraints and domain.
        source: where samples come from. States that come back are remembered; else the mixing decides.
        num_samples: how many samples there will be, where that is known.

    >>> import numpy as np, ergodrift as ed
    >>> problem = ed.Problem(lambda x, xi: ((x - xi) ** 2).sum(), lambda x, xi: x - 0.5, ed.Ball(1.0))
    >>> auto(problem, ed.IIDSource(np.ones((3, 1)))).reason
    'RDPP, because the 3 states come back and are told apart, so that each can be remembered.'
    """
    for name, value, kind in [("problem", problem, Problem), ("source", source, Source)]:
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be of type {kind.__name__}, got {type(value).__name__}: {value!r}")
    if num_samples is not None:
        num_samples = check.integer("num_samples", num_samples, at_least=1)
    if isinstance(source, Zip):
        return _for_pair(source)
    law = source.state_law
    if law is None:
        return _because(wdpp(), "a series shows each sample once and does not say how fast it mixes")
    count = f"{len(law):,}"
    if len(law) <= MOST_STATES and (num_samples is None or num_samples >= VISITS * len(law)):
        return _because(rdpp(), f"the {count} states come back and are told apart, so that each can be remembered")
    short = f"{count} states are too many to remember" + ("" if num_samples is None else f" in {num_samples:,} samples")
    if isinstance(source, IIDSource):
        return _because(dpp(), f"{short} and the samples are independent")
    return _because(wdpp(), short)


def _for_pair(source: Zip) -> Algorithm:
    """Losses from one source and constraints from another: a state of the one says nothing of the other."""
    constraints: Any = source.constraints
    if isinstance(constraints, MarkovSource):
        tau = constraints.chain.mixing_time()
        return _because(edpp(tau), f"losses and constraints come apart and the chain of the constraints mixes in {tau}")
    if isinstance(constraints, IIDSource):
        return _because(dpp(), "losses and constraints come apart and the constraints are independent")
    return _because(adpp(), "losses and constraints come apart and nothing is known of the series of constraints")


def _because(algorithm: Algorithm, reason: str) -> Algorithm:
    return dataclasses.replace(algorithm, reason=f"{algorithm.name}, because {reason}.")
