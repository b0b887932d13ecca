"""Many samples as one GPU kernel: each seed's state stays on chip from round to round.

Left to itself, XLA launches several kernels per round and sends all state through memory between them. Here the loop's
own `take_until` of one seed, with the user's functions and the method's `step` in it, is turned into CUDA
(`ergodrift._core.cuda`): the lanes of a seed share the rows of its sample, and everything else is in registers. What
cannot be turned goes the plain way.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from ergodrift._core import cuda, tree
from ergodrift.engine.carry import Carry, RunSpec
from ergodrift.problem import LINKS, LinearModel, Problem, Rows, half_spaces
from ergodrift.problem.links import surplus
from ergodrift.types import Feedback, PyTree

FEWEST_ROWS = 32  # shorter samples are held in registers whole
MOST_NUMBERS = 2**17  # in a sample: beyond, one seed is better spread over the whole device, as XLA does
MANY_SEEDS = 64  # which fill the device whatever their samples

F = TypeVar("F", bound=Callable[..., PyTree])  # of a run, a carry, and from which sample to which


def instead_of(plain: F, one: F) -> F:
    """A function of (spec, carry, from, to) for all seeds, along the leading axis of the carry, as one kernel.

    `one` does it for one seed, and `plain` for all without a kernel, where there can be none.
    """

    def whole(spec: RunSpec, carry: Carry, *span: jax.Array) -> PyTree:
        if not suits(spec, carry):
            return plain(spec, carry, *span)

        def of_one(shared: PyTree, own: Carry) -> PyTree:
            spec, span = shared
            return one(spec._replace(problem=_quick(spec.problem)), own, *span)

        try:
            return cuda.fused(of_one, (spec._replace(grid=None), span), carry, _row_sizes(spec, carry))
        except cuda.Unsupported:
            return plain(spec, carry, *span)

    return whole  # type: ignore[return-value]


def suits(spec: RunSpec, carry: Carry) -> bool:
    """Whether a kernel pays: many seeds, or samples that a few hundred threads go over in a few microseconds."""
    seeds = jax.tree.leaves(carry.state.x)[0].shape[0]
    numbers = sum(math.prod(leaf.shape[1:]) for leaf in _data(spec))
    return seeds >= MANY_SEEDS or numbers <= MOST_NUMBERS


def _data(spec: RunSpec) -> Sequence[Any]:
    """The arrays that samples are looked up in."""
    return [leaf for leaf in jax.tree.leaves(getattr(spec.stream, "data", None)) if jnp.ndim(leaf)]


def _row_sizes(spec: RunSpec, carry: Carry) -> frozenset[int]:
    """The sizes of axes of a sample that are long, and none of the point's or of what a method keeps."""
    kept = {size for leaf in jax.tree.leaves((carry.state, carry.recent)) for size in leaf.shape[1:]}
    return frozenset(
        size for leaf in _data(spec) for size in leaf.shape[1:] if size >= FEWEST_ROWS and size not in kept
    )


def _quick(problem: Problem) -> Problem:
    """The problem as a kernel computes it best: logarithms are those of the device."""
    if type(problem) is LinearModel and problem.link is LINKS["logistic"] and problem.constraints is half_spaces:
        return _Logistic(problem)  # type: ignore[return-value]  # it has what a kernel asks for
    if not isinstance(problem, Problem):
        return problem
    own = copy.copy(problem)
    object.__setattr__(own, "fast_logarithms", False)
    return own


@tree.module()
class _Logistic:
    """A logistic model by two operations a row on the special-function units.

    With r = 1 / (1 + exp(m)), the slope of log(1 + exp(-m)) is -r, and its value is max(-m, 0) - log(max(r, 1 - r)):
    logarithms are taken of products of many factors between 1/2 and 1.
    """

    model: LinearModel

    def feedback(self, x: jax.Array, xi: Rows) -> Feedback:
        model = self.model
        xi = tree.cast(xi, tree.dtype(x))
        margins = xi.margins(x)
        wrong = 1 / (1 + jnp.exp(margins))
        logs = cuda.sum_of_logs(jnp.maximum(wrong, 1 - wrong))
        total = jnp.sum(jnp.maximum(-margins, 0)) - logs - surplus(model.link, xi, x.dtype)
        return model.assembled(x, xi, total, -xi.features.gather(wrong, x))

    def compact_feedback(self, x: jax.Array, xi: Rows) -> Feedback:
        return self.model.compact_feedback(x, xi)
