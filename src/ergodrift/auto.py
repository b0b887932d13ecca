"""Which algorithm to use, from what the source reveals."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from ergodrift._core import check
from ergodrift.data.source import Source
from ergodrift.methods.algorithms import Algorithm, adpp, dpp, edpp, rdpp, wdpp
from ergodrift.methods.method import checked_point
from ergodrift.problem import Problem
from ergodrift.trust.autocorrelation import LEAST
from ergodrift.trust.relaxation import relaxation
from ergodrift.trust.values import path_values
from ergodrift.types import PyTree

MOST_STATES = 100_000  # above, remembering every state costs more memory than one would spend unasked
MOST_BYTES = 2**30  # the same, where the size of a point is known
SAMPLES, ASKED = 20_000, 2**32 - 3  # of a source that never ends, and the seed of their path
VISITS = 10  # samples per state, on average, from which remembering pays
DENSE_STATES = 2000  # chains up to this size have their mixing time computed in a moment
COLUMNS, NEEDED = 8, 20  # numbers of a sample looked at, and mixing times that a series must hold to tell them
INDEPENDENT, SLOW, LONG = 1.5, 10, 100  # mixing times, and samples in them, between which algorithms change places


def auto(
    problem: Problem, source: Source, num_samples: int | None = None, *, x0: PyTree = None, seeds: int = 1
) -> Algorithm:
    """The algorithm for this source; its `reason` says why in one sentence.

    States that come back and fit into memory are remembered (RDPP). Else the mixing time decides, which a chain tells
    and a series is asked for: samples that are next to independent take DPP-t; dependent ones EDPP-t with the mixing
    time, unless there are enough of them for WDPP to be as good without.

    Args:
        problem: loss, constraints and domain.
        source: where samples come from.
        num_samples: how many samples there will be, where that is known.
        x0: a point of the domain. With it, the memory that states would take is known, and a series is asked through
            its losses and constraints at x0 and not through its plain numbers.
        seeds: how many will run side by side, each with a memory of its own.

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
    seeds = check.integer("seeds", seeds, at_least=1)
    x0 = None if x0 is None else checked_point(problem.geometry, x0)
    if source.paired:
        return _for_pair(source.parts[1])
    if source.stationary is None:
        return _for_stream(problem, source, num_samples, x0)
    count = len(source.stationary)
    size = _bytes(problem, source, x0, seeds)
    if size > MOST_BYTES if size else count > MOST_STATES:
        short = f"{count:,} states are too many to remember" + (f" ({size / 2**30:.1f} GiB)" if size else "")
    elif num_samples is not None and num_samples < VISITS * count:
        short = f"{count:,} states are too many to remember in {num_samples:,} samples"
    else:
        return _because(rdpp(), f"the {count:,} states come back and are told apart, so that each can be remembered")
    if source.independent:
        return _because(dpp(), f"{short} and the samples are independent")
    tau = source.mixing_time() if count <= DENSE_STATES else None
    if tau is None:
        return _because(wdpp(), short)
    return _by_mixing(float(tau), num_samples, f"{short} and the chain mixes in")


def _bytes(problem: Problem, source: Source, x0: PyTree, seeds: int) -> int | None:
    """What the memory of all states takes for all seeds; None where the size of a point is not known."""
    if x0 is None or source.stationary is None:
        return None
    leaves, form = jax.tree.leaves(x0), problem.compact(source.example)
    planes = (1 + problem.check(x0, source.example)) * (1 + sum(leaf.size for leaf in leaves))
    return seeds * len(source.stationary) * (planes if form is None else form.size) * leaves[0].dtype.itemsize


def _for_stream(problem: Problem, source: Source, num_samples: int | None, x0: PyTree) -> Algorithm:
    """Samples that come once each. Where their mixing time is not known, they are asked how they depend on each other:
    all of a series, some of a source that never ends."""
    if source.independent:
        return _because(dpp(), "the samples are independent")
    if (known := source.mixing_time()) is not None:
        return _by_mixing(float(known), num_samples, "the source mixes in")
    total = min((n for n in (num_samples, source.length) if n is not None), default=None)
    count = min(total or SAMPLES, source.length or SAMPLES)
    if count < LEAST:
        return _because(wdpp(), f"{count} samples of a series are too few to tell how they depend on each other")
    path = source.path_of(source.paths([ASKED], count), 0)
    if x0 is None:
        points, rows = source.visits(path)[0]
        columns = np.concatenate(
            [np.asarray(leaf)[rows].reshape(count, -1) for leaf in jax.tree.leaves(points)], axis=1
        )
        columns = columns[:, np.linspace(0, columns.shape[1] - 1, min(COLUMNS, columns.shape[1])).astype(int)]
    else:
        losses, constraints = path_values(problem, source, x0, path)
        columns = np.column_stack([losses, constraints])
    moving = columns[:, np.ptp(columns, axis=0) > 0].astype(float)
    tau = max((relaxation(column).tau for column in moving.T), default=1.0)
    if count < NEEDED * tau:
        return _because(wdpp(), f"the series stays correlated for about {tau:,.0f} of its {count:,} samples")
    return _by_mixing(tau, total, "the series behaves like a mixing time of")


def _by_mixing(tau: float, num_samples: int | None, words: str) -> Algorithm:
    """By the mixing time, and how many of it there will be; docs/memory.md has the tables this rests on."""
    words = f"{words} {tau:,.3g}"
    if tau < INDEPENDENT:
        return _because(dpp(), f"{words}, next to independent samples")
    if tau >= SLOW and num_samples is not None and num_samples >= LONG * tau:
        return _because(wdpp(), f"{words}, and {num_samples:,} samples are enough to do without it")
    return _because(edpp(tau), words)


def _for_pair(constraints: Source) -> Algorithm:
    """Losses from one source and constraints from another: a state of the one says nothing of the other."""
    if constraints.independent:
        return _because(dpp(), "losses and constraints come apart and the constraints are independent")
    if (tau := constraints.mixing_time()) is not None:
        return _because(edpp(tau), f"losses and constraints come apart and the chain of the constraints mixes in {tau}")
    return _because(adpp(), "losses and constraints come apart and nothing is known of the series of constraints")


def _because(algorithm: Algorithm, reason: str) -> Algorithm:
    return dataclasses.replace(algorithm, reason=f"{algorithm.name}, because {reason}.")
