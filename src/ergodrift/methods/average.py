"""Which average of the points x_1, x_2, ... a run returns, at no memory that grows with the samples."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from ergodrift._core import check, tree
from ergodrift.data.sampler import BLOCK
from ergodrift.types import PyTree

AverageKind: TypeAlias = Literal["uniform", "suffix"] | tuple[Literal["polynomial"], int]

KINDS = "'uniform', 'suffix' or ('polynomial', k)"
UNIT = 2.0**-15  # polynomial weights are of t in this unit: even the fourth powers of all int32 fit into a float32


class Mark(NamedTuple):
    """The sum of x over the rounds so far, and how many those were, at some sample."""

    x: PyTree
    rounds: jax.Array


Marks: TypeAlias = tuple[Mark, ...]


@tree.module("degree", "suffix")
class Average:
    """The weights of x_1, x_2, ... in x̄.

    - uniform: 1 each, the x̄ of the paper;
    - polynomial: t^k, so that early points are forgotten (as in Lacoste-Julien, Schmidt and Bach 2012 for k = 1, and
      Shamir and Zhang 2013);
    - suffix: 1 for the rounds after sample n, else 0, where n is the largest 64 2^j that leaves more than half of the
      samples: the latest half to three quarters of them, all up to sample 128 (Rakhlin, Shamir and Sridharan 2012, with
      the start of the suffix doubled on the way, so that no horizon is needed and two marks suffice).

    Attributes:
        degree: k.
        suffix: whether it is a suffix average.
    """

    degree: int = 0
    suffix: bool = False

    @staticmethod
    def of(value: object) -> Average:
        """From what a caller wrote.

        >>> Average.of(("polynomial", 3))
        Average(degree=3, suffix=False)
        """
        match value:
            case "uniform":
                return Average()
            case "suffix":
                return Average(suffix=True)
            case ("polynomial", degree):
                return Average(check.integer("average: the degree k", degree, at_least=0, at_most=4))
            case _:
                raise ValueError(f"average must be {KINDS}, got {value!r}")

    def weight(self, t: jax.Array, kind: jnp.dtype) -> jax.Array | None:
        """The weight of x_t; None where all are equal."""
        return (t.astype(kind) * UNIT) ** self.degree if self.degree else None

    def start(self, zero: PyTree) -> Marks:
        """The marks before the first sample: none, unless the average is a suffix."""
        return (Mark(zero, jnp.int32(0)),) * 2 if self.suffix else ()

    def next_block(self, marks: Marks, total: PyTree, rounds: jax.Array, position: jax.Array) -> Marks:
        """The marks at the start of a block: at samples 64, 128, 256, ... a new one is set and the older dropped."""
        if not self.suffix:
            return marks
        number = position // BLOCK
        due = (number & (number - 1)) == 0
        return tree.select(due, (marks[1], Mark(total, rounds)), marks)

    def mean(self, total: PyTree, weight: jax.Array | None, rounds: jax.Array, marks: Marks, x: PyTree) -> PyTree:
        """x̄ from the weighted sum of x; `x` itself before the first round is done."""
        if self.suffix:
            total, rounds = tree.subtract(total, marks[0].x), rounds - marks[0].rounds
        if weight is None:
            weight = jnp.maximum(rounds, 1).astype(tree.dtype(x))
        return jax.tree.map(lambda s, x: jnp.where(rounds > 0, s / jnp.where(rounds > 0, weight, 1), x), total, x)
