"""Expectations under a source's stationary law, in float64 whatever the run used.

A gap of 1e-6 between losses of size one needs more digits than float32 has, so all of this runs in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ergodrift._core import tree
from ergodrift._core.compiled import compiled
from ergodrift._core.precision import double
from ergodrift.data.source import Law, Source
from ergodrift.problem import Problem
from ergodrift.types import PyTree

T = TypeVar("T", bound=PyTree)

BATCH = 256  # points of a law evaluated side by side: a long series does not fit into memory at once


def wide(data: T) -> T:
    """Floating leaves as float64 numpy arrays; the others as they are."""

    def leaf(value: ArrayLike) -> np.ndarray:
        array = np.asarray(value)
        return array.astype(np.float64) if jnp.issubdtype(array.dtype, np.floating) else array

    return jax.tree.map(leaf, data)


def average(function: Callable[[PyTree, PyTree], jax.Array], law: Law, x: PyTree) -> jax.Array:
    """E[function(x, xi)] under the law."""

    def weighed(pair: tuple[jax.Array, PyTree]) -> jax.Array:
        weight, xi = pair
        return weight * function(x, xi)

    terms = jax.lax.map(weighed, (law.weights, law.points), batch_size=min(BATCH, law.weights.shape[0]))
    return jnp.sum(terms, axis=0)


def expectations(problem: Problem, source: Source, x: PyTree, axes: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """f̄(x) and ḡ(x), at one point or at many.

    Args:
        problem: loss and constraints.
        source: its stationary laws are used.
        x: a point, or points stacked along leading axes that all leaves share.
        axes: how many such axes there are; 2 for the records of a run.

    Returns:
        Expected losses with those axes, and expected constraints with one axis more.
    """
    shape = np.shape(jax.tree.leaves(x)[0])[:axes]
    check_parts(problem, source, jax.tree.map(lambda leaf: leaf[(0,) * axes], x))
    with double():
        points = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[axes:]), wide(x))
        found = _expectations(problem, wide(source.loss_law), wide(source.constraint_law), points)
        losses, constraints = map(np.asarray, found)
    return losses.reshape(shape), constraints.reshape(*shape, -1)


def check_parts(problem: Problem, source: Source, x: PyTree) -> None:
    """Where losses and constraints come from two sources, each function is averaged over its own alone; raise where it
    reads the other's samples."""
    if not source.paired:
        return
    for name, function, other in [("loss", problem.loss, 1), ("constraints", problem.constraints, 0)]:
        xi = tree.cast(source.example, tree.dtype(x))
        jaxpr = jax.make_jaxpr(function)(x, xi).jaxpr
        first = len(jax.tree.leaves(x)) + (len(jax.tree.leaves(xi[0])) if other else 0)
        inputs = jaxpr.invars[first : first + len(jax.tree.leaves(xi[other]))]
        used = {id(variable) for equation in jaxpr.eqns for variable in equation.invars}
        if any(id(variable) in used for variable in inputs):
            raise ValueError(f"{name} reads xi[{other}], but in a Zip it may read xi[{1 - other}] only")


@compiled()
def _expectations(problem: Problem, loss_law: Law, constraint_law: Law, points: PyTree) -> tuple[jax.Array, jax.Array]:
    def one(x: PyTree) -> tuple[jax.Array, jax.Array]:
        return average(problem.loss, loss_law, x), average(problem.constraints, constraint_law, x)

    # A CPU core is best at one point at a time, a GPU needs many.
    side_by_side = 1 if jax.default_backend() == "cpu" else min(BATCH, jax.tree.leaves(points)[0].shape[0])
    return jax.lax.map(one, points, batch_size=side_by_side)
