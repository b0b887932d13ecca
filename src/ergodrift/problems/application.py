"""What every application returns."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from ergodrift.data.source import Source
from ergodrift.problem import Problem
from ergodrift.solve.reference import Reference, solve_reference
from ergodrift.types import PyTree

P = TypeVar("P", bound=Problem)
S = TypeVar("S", bound=Source)


class Application(NamedTuple, Generic[P, S]):
    """A problem people have, with its data and its optimum: `problem, source, reference = scheduling()`.

    Attributes:
        problem: loss, constraints and domain.
        source: the samples, in the order in which they come.
        reference: the optimum under their law.
    """

    problem: P
    source: S
    reference: Reference


def solved(problem: P, source: S, x0: PyTree) -> Application[P, S]:
    """The application with its optimum, found from x0."""
    return Application(problem, source, solve_reference(problem, source, x0))
