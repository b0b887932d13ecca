"""The stationary problem under many weightings of its losses: the best fixed points of many paths, in hindsight."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ergodrift._core.compiled import compiled
from ergodrift._core.precision import double
from ergodrift.data.expectation import BATCH, average, wide
from ergodrift.data.source import Law, Source
from ergodrift.problem import Problem
from ergodrift.solve.program import Averaged, ScaledProgram
from ergodrift.solve.reference import FEASIBLE, Reference, solve_reference
from ergodrift.types import Array, PyTree, Scalar

MANY = 100  # below this many problems, compiling Newton's method takes longer than it saves
STEPS = 12  # of Newton's method, far more than it takes near the solution
SOLVED = 1e-9  # the largest KKT residual of a solution


class Realised(Source):
    """A source whose losses are those of one path, equally weighed; all else is as in the source itself."""

    def __init__(self, source: Source, path: PyTree) -> None:
        self.source = source
        self.points, rows = source.visits(path)[0]
        self.counts = np.bincount(rows, minlength=len(jax.tree.leaves(self.points)[0]))

    @property
    def loss_law(self) -> Law:
        return Law(self.points, self.counts / self.counts.sum())

    @property
    def constraint_law(self) -> Law:
        return self.source.constraint_law

    @property
    def parts(self) -> tuple[Source, Source]:
        return self.source.parts if self.source.paired else (self, self)

    @property
    def example(self) -> PyTree:
        return self.source.example


def best_on_paths(
    problem: Problem, source: Source, paths: Sequence[PyTree], x0: PyTree, per_sample: bool = False
) -> list[Reference]:
    """For each path the x that minimises its sum of losses, subject to ḡ(x) <= 0; see `best_in_hindsight`."""
    realised = [Realised(source, path) for path in paths]
    if source.parts[0].table is not None:  # all paths go through the same points
        return best_in_hindsight(problem, source, np.stack([one.counts for one in realised]), x0, per_sample)
    return [solve_reference(problem, one, x0, per_sample=per_sample) for one in realised]


def best_in_hindsight(
    problem: Problem, source: Source, weights: np.ndarray, x0: PyTree, per_sample: bool = False
) -> list[Reference]:
    """For each row of `weights` the x that minimises the losses so weighed, subject to ḡ(x) <= 0.

    Rows that are alike are solved once. Where there are many, one is solved by `solve_reference` and the others by
    Newton's method from there; each solution is checked, and those that fail are left to `solve_reference`.

    Args:
        problem: loss, constraints and domain.
        source: its laws are the expectations.
        weights: (problems, points of the loss law), such as how often each path saw each of them.
        x0: where to start.
        per_sample: ask that the constraints hold for every sample, not on average.
    """
    distinct, which = np.unique(weights, axis=0, return_inverse=True)
    solved: list[Reference | None] = [None] * len(distinct)
    if len(distinct) >= MANY and not per_sample:
        typical = solve_reference(problem, source, x0, loss_weights=distinct.mean(axis=0))
        solved = nearby(problem, source, typical, distinct)
    solved = [
        found or solve_reference(problem, source, x0, loss_weights=row, per_sample=per_sample)
        for found, row in zip(solved, distinct, strict=True)
    ]
    return [found for found in (solved[row] for row in which.ravel()) if found is not None]


def nearby(problem: Problem, source: Source, typical: Reference, weights: np.ndarray) -> list[Reference | None]:
    """Optima under other loss weights, by Newton's method for the constraints that bind at `typical`.

    grad f̄(x) + sum_i lambda_i grad ḡ_i(x) = 0 and ḡ_i(x) = 0, i over those with lambda_i > 0

    None where the outcome is no optimum: another constraint is violated, a multiplier is negative, the point is not
    inside the domain, or the steps did not converge. Optima on the boundary of the domain are not looked for.
    """
    with double():
        loss_law, constraint_law = wide(source.loss_law), wide(source.constraint_law)
        program = ScaledProgram(problem, typical.x, loss_law, warm=True)
        region = program.region
        if len(region.equal) or region.lift.shape[0] != region.lift.shape[1]:
            return [None] * len(weights)
        binding = np.flatnonzero(typical.multipliers > 0)
        start = jnp.concatenate([ravel_pytree(typical.x)[0], typical.multipliers[binding]])
        shares = weights / weights.sum(axis=1, keepdims=True)
        found = _newton(problem, loss_law.points, constraint_law, jnp.asarray(shares), typical.x, binding, start)
        solution, values, constraints, stationarity = map(np.asarray, found)
        flat, multipliers = np.split(solution, [len(start) - len(binding)], axis=1)
        sizes = program.sizes(program.rows(Averaged(problem, constraint_law).rows))
        spread = np.zeros_like(constraints)
        spread[:, binding] = multipliers
        complementarity = np.abs(spread * constraints).max(axis=1) / program.scale
        residual = np.max(
            [
                np.abs(stationarity @ region.lift).max(axis=1) / program.scale,
                (constraints / sizes).max(axis=1),
                complementarity,
            ],
            axis=0,
        )

        x = jax.tree.map(np.asarray, jax.vmap(program.unravel)(jnp.asarray(flat)))

        def reference(row: int) -> Reference | None:
            inside = (region.walls(region.embed(flat[row]))[0] < 0).all() and program.holds(flat[row])
            worst = (constraints[row] / sizes).max()
            if not (residual[row] <= SOLVED and worst <= FEASIBLE and spread[row].min() >= 0 and inside):
                return None
            return Reference(
                jax.tree.map(lambda leaf: leaf[row], x),
                float(values[row]),
                constraints[row],
                spread[row],
                float(residual[row]),
            )

        return [reference(row) for row in range(len(weights))]


@compiled()
def _newton(
    problem: Problem,
    points: PyTree,
    constraint_law: Law,
    shares: jax.Array,
    like: PyTree,
    binding: Array,
    start: jax.Array,
) -> tuple[jax.Array, ...]:
    flat, unravel = ravel_pytree(like)
    dim = flat.size

    def one(share: jax.Array) -> tuple[jax.Array, ...]:
        def lagrangian(x: jax.Array, multipliers: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            constraints = average(problem.constraints, constraint_law, unravel(x))
            loss = average(problem.loss, Law(points, share), unravel(x))
            return loss + multipliers @ constraints[binding], (loss, constraints)

        def conditions(z: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
            slope, (loss, constraints) = jax.grad(lagrangian, has_aux=True)(z[:dim], z[dim:])
            return jnp.concatenate([slope, constraints[binding]]), (slope, loss, constraints)

        def step(_: Scalar, z: jax.Array) -> jax.Array:
            jacobian, _ = jax.jacfwd(conditions, has_aux=True)(z)
            return z - jnp.linalg.solve(jacobian, conditions(z)[0])

        z = jax.lax.fori_loop(0, STEPS, step, start)
        _, (slope, loss, constraints) = conditions(z)
        return z, loss, constraints, slope

    # A CPU core is best at one problem at a time, a GPU needs many.
    side_by_side = 1 if jax.default_backend() == "cpu" else min(BATCH, shares.shape[0])
    return jax.lax.map(one, shares, batch_size=side_by_side)
