"""Tightened constraints, g + m <= 0 in the place of g <= 0: what is asked for, how a run takes it, what came of it."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ergodrift._core import check, tree
from ergodrift.data.stream import Stream, TableStream
from ergodrift.problem import LinearModel, Problem, Rows, half_spaces
from ergodrift.types import Array, Feedback, PyTree


@dataclasses.dataclass(frozen=True)
class Margin:
    """Tighten the constraints until the solution is certified on held-out samples; `"auto"` is `Margin()`.

    Args:
        held_out: how many samples the certificate will have; as many as the run unless given.
        confidence: of the certificate, `certify(..., confidence=...)`.
        share: of all runs, how many are to have a solution that is certified satisfied.
    """

    held_out: int | None = None
    confidence: float = 0.95
    share: float = 0.95

    def __post_init__(self) -> None:
        if self.held_out is not None:
            check.integer("held_out", self.held_out, at_least=1)
        check.number("confidence", self.confidence, above=0.5, below=1)
        check.number("share", self.share, above=0.5, below=1)

    @staticmethod
    def of(margin: object) -> Margin | None:
        """What `run(margin=...)` asks to be found; None where the margin is given, or where there is none."""
        if isinstance(margin, str):
            check.choice("margin", margin, ("auto",))
            return Margin()
        return margin if isinstance(margin, Margin) else None


class Tightening(NamedTuple):
    """How a margin was found, and what it costs; prints as one line.

    Attributes:
        runs: how many it took, with that without a margin.
        room: (n,) how far below 0 the constraints are at the solution: the mean over seeds of -E[g_i].
        needed: (n,) the room that the certificate and the share ask for, for one seed.
        share: of runs that will be certified, as far as can be told beforehand; at least what was asked, or a warning
            has said so.
        held_out: samples of the certificate.
        loss: the mean loss at the solution, over seeds.
        loss_without: the same without a margin.
        way: how far of the way from x0 to the run's last average the solution is: 1 but where no margin was enough.
    """

    runs: int
    room: np.ndarray
    needed: np.ndarray
    share: float
    held_out: int
    loss: float
    loss_without: float
    way: float = 1.0

    @property
    def cost(self) -> float:
        """What the margin costs, in units of the loss."""
        return float(self.loss) - float(self.loss_without)

    def __str__(self) -> str:
        way = float(self.way)
        pulled = "" if way == 1 else f", {way:.0%} of the way from x0, since no margin alone is enough"
        return (
            f"room {_listed(self.room)} of {_listed(self.needed)} needed, after {int(self.runs)} runs{pulled}: "
            f"certified on {int(self.held_out):,} held-out samples in about {float(self.share):.1%} of runs; loss "
            f"{float(self.loss):.5g}, {self.cost:.2g} above that without a margin"
        )

    __repr__ = __str__


def _listed(values: ArrayLike) -> str:
    return ", ".join(f"{value:.3g}" for value in np.atleast_1d(np.asarray(values)))


class Tightened(Problem):
    """A problem whose feedback has m added to its constraints. Its functions are those of the original problem.

    m is a leaf, so that no value of it recompiles anything.
    """

    original: Problem
    margin: Array

    def feedback(self, x: PyTree, xi: PyTree) -> Feedback:
        """The original's, with g + m."""
        heard = self.original.feedback(x, xi)
        whole = jnp.asarray(self.original.share(xi), self.margin.dtype)  # of a batch that is not full, less
        return heard._replace(constraints=heard.constraints + whole * self.margin)


def checked_margin(margin: PyTree, num_constraints: int, dtype: np.dtype) -> jax.Array:
    """The margin as one finite number per constraint, in the precision of the run."""
    try:
        found = margin if tree.is_traced(margin) else np.asarray(margin, dtype=float)
    except (TypeError, ValueError):
        raise TypeError(
            f"margin must be a number, {num_constraints} numbers, 'auto' or ed.Margin(...), got {margin!r}"
        ) from None
    if np.shape(found) not in ((), (num_constraints,)):
        raise ValueError(
            f"margin must be a number, or one for each of {num_constraints} constraints, got shape {np.shape(found)}"
        )
    check.finite("margin", found)
    return jnp.broadcast_to(jnp.asarray(found, dtype), (num_constraints,))


def tightened(problem: Problem, stream: Stream, margin: Array) -> tuple[Problem, Stream]:
    """Problem and samples for a run with g + m <= 0.

    The limits of a linear model stand in its table: shifted there, all that is fast for such a model stays so.
    """
    if isinstance(problem, LinearModel) and problem.constraints is half_spaces and isinstance(stream, TableStream):
        rows = stream.data
        if isinstance(rows, Rows):
            return problem, stream._replace(data=rows._replace(limits=rows.limits - margin[None]))
    return Tightened(problem.loss, problem.constraints, problem.geometry, problem, margin), stream


def shifted(problem: Problem, margin: ArrayLike) -> Problem:
    """The problem with g + m for its constraints, as a plain one: for solvers and bounds, which call its functions."""

    def constraints(x: PyTree, xi: PyTree) -> jax.Array:
        values = problem.constraints(x, xi)
        return values + jnp.asarray(margin, values.dtype)

    return Problem(problem.loss, constraints, problem.geometry, fast_logarithms=problem.fast_logarithms)
