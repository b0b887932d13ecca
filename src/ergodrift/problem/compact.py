"""Compact feedback: the tangent planes of a state, kept as the few numbers that change between its visits."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

import jax

from ergodrift.types import Feedback, PyTree

if TYPE_CHECKING:
    from ergodrift.problem.problem import Problem


class CompactForm(abc.ABC):
    """How the feedback of a problem is remembered in few numbers, in the place of whole tangent planes.

    As functions of x, the tangent planes of a state's loss and constraints must be linear in its numbers and in the
    `share` of a part that never changes. A method with a memory keeps the numbers alone: the basis, which makes planes
    of them, comes back with the state. See `Problem.compact`, which offers one.

    A form is part of what is compiled, so it is compared by value and holds no arrays: write a frozen dataclass.

    Attributes:
        size: how many numbers are kept per state.
    """

    size: int

    @abc.abstractmethod
    def feedback(self, problem: Problem, x: PyTree, xi: PyTree) -> Feedback:
        """`problem.feedback(x, xi)` with its `Compact`."""

    @abc.abstractmethod
    def planes(self, basis: PyTree, numbers: jax.Array, share: jax.Array) -> Feedback:
        """The planes that these numbers stand for, as the feedback at x = 0: values there, and slopes.

        Linear in (numbers, share); a state's own planes have its numbers and share 1.
        """
