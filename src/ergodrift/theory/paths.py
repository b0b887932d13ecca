"""The lemmas of appendix A along a run: they hold on every path, for every schedule and estimator.

Appendix A takes V_t, alpha_t and alpha_t / V_t that never decrease. RDPP's `Aging` does not give such weights: alpha_t
falls when an old state is seen again. Of the lemmas here the queue's alone uses them, and it is stated for any alpha_t;
the regret of appendix A is not shown for such weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ergodrift._core import tree
from ergodrift._core.compiled import compiled
from ergodrift._core.precision import double
from ergodrift.data.expectation import wide
from ergodrift.data.source import Source, level_keys, seed_keys
from ergodrift.data.stream import Stream
from ergodrift.methods.algorithms import Algorithm
from ergodrift.methods.estimator import ask
from ergodrift.methods.method import DriftPlusPenalty, Method, checked_point
from ergodrift.problem import Problem
from ergodrift.types import Array, Info, PyTree, Scalar, State

LEMMAS = ("drift", "bregman", "step", "queue", "violation")


class Slack(NamedTuple):
    """How far each lemma is from being crossed: (larger - smaller side) / (sum of the sizes of all terms).

    In exact arithmetic none is negative; rounding in float64 may cost about 1e-12. Each is the smallest over all
    rounds, one entry per seed.

    Attributes:
        drift: (||Q_{t+1}||^2 - ||Q_t||^2)/2 <= Q_t.(g_t + J_t (x_{t+1} - x_t)) + sum_i (H_ti + G_ti R)^2 / 2.
        bregman: d.(x_{t+1} - x_t) + alpha D(x_{t+1}, x_t) <= d.(x - x_t) + alpha (D(x, x_t) - D(x, x_{t+1})), where d
            is V_t df_t + sum_i Q_ti dg_ti.
        step: ||x_{t+1} - x_t|| <= (V_t F_t + sum_i Q_ti G_ti) / (2 alpha_t).
        queue: ||Q_{t+1}||^2 <= sum over s <= t of (sum_i (H_si + G_si R)^2 + 2 V_s R F_s
            + 2 Q_s.(g_s + J_s (x - x_s))) + 2 R^2 A_t, where A_t = alpha_1 + sum over 1 < s <= t of
            (alpha_s - alpha_{s-1})_+ is alpha_t itself where alpha never decreases.
        violation: sum over s <= t of g_si <= Q_{t+1,i}
            + sum over s <= t of G_si (V_s F_s + sum_j Q_sj G_sj) / (2 alpha_s).
    """

    drift: Array
    bregman: Array
    step: Array
    queue: Array
    violation: Array


class Pathwise(NamedTuple):
    """The lemmas of appendix A along the paths of a run.

    Attributes:
        slack: the smallest relative slack of each lemma, one entry per seed.
        queue: ||Q_{t+1}||, (seeds, records).
        queue_bound: the bound of the queue lemma on it.
        violation: the sum of g_t(x_t), (seeds, records, n); of the estimates, where rounds use several samples
            or a memory.
        violation_bound: the bound of the violation lemma on it.
    """

    slack: Slack
    queue: Array
    queue_bound: Array
    violation: Array
    violation_bound: Array


class _Sums(NamedTuple):
    slack: Slack
    inside: jax.Array  # of the queue lemma, its terms added up with their signs
    terms: jax.Array  # and with their sizes
    proximity: jax.Array  # alpha of the last round
    climbed: jax.Array  # alpha_1 and all its increases since: sum a_t (D_t - D_{t+1}) <= R^2 times this
    violation: jax.Array
    allowance: jax.Array


def pathwise(
    algorithm: Algorithm,
    problem: Problem,
    source: Source,
    *,
    x0: PyTree,
    num_samples: int,
    seeds: int | Sequence[int] = 1,
    comparator: PyTree = None,
    record: ArrayLike | None = None,
    paths: PyTree = None,
    levels: ArrayLike | None = None,
) -> Pathwise:
    """Run drift-plus-penalty once more, in float64, and hold each round against the lemmas of appendix A.

    The lemmas use the sizes (F_t, G_t, H_t) of the rounds themselves and R alone: no constant has to be known.

    Args:
        algorithm: any drift-plus-penalty algorithm: edpp, dpp, mdpp, adpp, rdpp or wdpp.
        problem: loss, constraints and domain, which must have a finite diameter.
        source: where samples come from.
        x0: x_1.
        num_samples: how many samples to take.
        seeds: a count or a list of integers, as for `run`.
        comparator: the x of the Bregman and queue lemmas, any point of X; x0 unless given.
        record: sample counts to report queue and violation at; the last alone unless given.
        paths: (seeds, num_samples) indices to replay, or one row for all seeds, as for `run`.
        levels: (seeds, rounds) MLMC levels to replay.
    """
    if algorithm.rule is not DriftPlusPenalty:
        raise ValueError(f"{algorithm.name} is not drift-plus-penalty: appendix A says nothing about it")
    paths = source.paths(seeds, num_samples) if paths is None else paths  # in the precision of the run
    with double():
        x0 = checked_point(problem.geometry, wide(x0))
        comparator = x0 if comparator is None else checked_point(problem.geometry, wide(comparator))
        radius = float(problem.geometry.diameter(x0))
        if not np.isfinite(radius):
            raise ValueError(f"{type(problem.geometry).__name__} has no finite diameter R, which appendix A needs")
        keys = seed_keys(seeds)
        num_rounds = None if levels is None else np.shape(levels)[-1]
        estimator = algorithm.estimator.for_run(num_samples, num_rounds, source.stationary)
        method = dataclasses.replace(algorithm, estimator=estimator).bind(problem)
        paths = source.check_paths(paths, len(keys), source.samples_in(paths))
        levels = level_keys(keys) if levels is None else jnp.broadcast_to(jnp.asarray(levels), (len(keys), num_rounds))
        grid = jnp.asarray([num_samples] if record is None else record, jnp.int32)
        count = problem.check(x0, wide(source.example))
        stream = tree.cast(source.stream(), jnp.float64)
        found = _follow(source.asked(problem), method, stream, x0, comparator, radius, grid, paths, levels, count)
        return jax.tree.map(np.asarray, found)


@compiled(static_argnums=9)
def _follow(
    problem: Problem, method: Method, stream: Stream, x0: PyTree, x: PyTree, radius: Scalar, grid: jax.Array,
    paths: PyTree, levels: jax.Array, count: int,
) -> Pathwise:  # fmt: skip
    def one(path: PyTree, levels: jax.Array) -> Pathwise:
        state = method.init(x0, count, levels)
        zero, none = jnp.zeros(()), jnp.zeros(count)
        sums = _Sums(Slack(*[jnp.asarray(jnp.inf)] * len(LEMMAS)), zero, zero, zero, zero, none, none)

        def sample(position: jax.Array, carry: tuple[State, _Sums]) -> tuple[State, _Sums]:
            state, sums = carry
            index = jax.tree.map(lambda leaf: leaf[position], path)
            after, info = method.step(state, ask(problem, state.x, stream.xi(index), method.estimator, index))
            held = _hold(method, state, after, info, x, radius, sums)
            return after, tree.select(info.updated, held, sums)

        def until(carry: tuple[Scalar, State, _Sums], stop: jax.Array) -> PyTree:
            begin, state, sums = carry
            state, sums = jax.lax.fori_loop(begin, stop, sample, (state, sums))
            bound = jnp.sqrt(jnp.maximum(sums.inside + 2 * radius**2 * sums.climbed, 0))
            seen = (jnp.linalg.norm(state.queue), bound, sums.violation, state.queue + sums.allowance)
            return (stop, state, sums), seen

        (_, _, sums), seen = jax.lax.scan(until, (jnp.int32(0), state, sums), grid)
        return Pathwise(sums.slack, *seen)

    return jax.vmap(one)(paths, levels)


def _hold(method: Method, before: State, after: State, info: Info, x: PyTree, radius: Scalar, sums: _Sums) -> _Sums:
    """One round against each lemma."""
    geometry, (feedback, sizes, weights) = method.geometry, (info.feedback, info.sizes, info.weights)
    Q, V, alpha = before.queue, weights.penalty, weights.proximity
    moved = tree.subtract(after.x, before.x)
    away = tree.subtract(x, before.x)
    linear = feedback.constraints + tree.pushforward(feedback.constraint_jac, moved)
    reach = jnp.sum((sizes.constraints + sizes.constraint_jac * radius) ** 2)
    squares = jnp.sum(after.queue**2) / 2, -jnp.sum(Q**2) / 2
    drift = _relative([*squares], [Q @ linear, reach / 2])

    def slope(direction: PyTree) -> list[Scalar]:
        """(V df + sum Q dg) . direction, the two parts by themselves: they may cancel."""
        pull = tree.pushforward(feedback.constraint_jac, direction)
        dot = sum(jnp.vdot(a, b) for a, b in zip(*map(jax.tree.leaves, (feedback.loss_grad, direction)), strict=True))
        return [V * dot, Q @ pull]

    # A divergence is itself a difference of terms of size R^2, so that is what its rounding is measured by.
    bregman = _relative(
        [*slope(moved), alpha * geometry.bregman(after.x, before.x)],
        [*slope(away), alpha * geometry.bregman(x, before.x), -alpha * geometry.bregman(x, after.x)],
        size=alpha * radius**2,
    )
    force = V * sizes.loss_grad + Q @ sizes.constraint_jac
    moving = alpha > 0
    length = force / (2 * jnp.where(moving, alpha, 1))  # while S_t = 0 in appendix C, F_t and G_t are 0 too
    # x_{t+1} - x_t is known to the rounding of x alone.
    rounding = 4 * jnp.finfo(float).eps * geometry.norm(before.x)
    step = _relative([jnp.maximum(geometry.norm(moved) - rounding, 0)], [length])

    parts = jnp.stack([reach, 2 * V * radius * sizes.loss_grad,
                       2 * Q @ (feedback.constraints + tree.pushforward(feedback.constraint_jac, away))])  # fmt: skip
    inside, terms = sums.inside + jnp.sum(parts), sums.terms + jnp.sum(jnp.abs(parts))
    climbed = sums.climbed + jnp.maximum(alpha - sums.proximity, 0)
    last = 2 * radius**2 * climbed
    room = inside + last - jnp.sum(after.queue**2)
    queue = room / jnp.maximum(terms + last + jnp.sum(after.queue**2), jnp.finfo(float).tiny)

    violation = sums.violation + feedback.constraints
    allowance = sums.allowance + sizes.constraint_jac * length
    over = after.queue + allowance - violation
    size = after.queue + allowance + jnp.abs(violation) + jnp.finfo(float).tiny
    found = Slack(drift, bregman, step, queue, jnp.min(over / size))
    slack = Slack(*(jnp.minimum(old, new) for old, new in zip(sums.slack, found, strict=True)))
    return _Sums(slack, inside, terms, alpha, climbed, violation, allowance)


def _relative(smaller: list[Scalar], larger: list[Scalar], size: Scalar = 0.0) -> Array:
    size = size + sum(jnp.abs(term) for term in [*smaller, *larger])
    return (sum(larger) - sum(smaller)) / jnp.maximum(size, jnp.finfo(float).tiny)
