"""Runs of a rule in one compiled loop: many settings and seeds, with the last point and two averages on the way."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, PartitionSpec

from ergodrift._core import tree, xla
from ergodrift._core.compiled import compiled
from ergodrift.data.source import Source
from ergodrift.peers.rules import Memory, Rule, Seen, Steps
from ergodrift.problem import Problem
from ergodrift.types import Array, Device, PyTree

POINTS = ("last", "uniform average", "average with weights t")  # of which the best is taken in hindsight


class Subject(NamedTuple):
    """What is run on: functions and data."""

    problem: Problem
    stream: PyTree


class Walk(NamedTuple):
    """One run on its way: samples taken, x, what the rule remembers, and the two averages."""

    t: jax.Array
    x: jax.Array
    memory: Memory
    uniform: jax.Array
    weighted: jax.Array


def follow(
    rule: Rule, problem: Problem, source: Source, x0: PyTree, paths: PyTree, steps: Sequence[Steps], stops: Array
) -> np.ndarray:
    """The points that a rule reaches, (settings, seeds, records, 3, d): the last, and two averages of x_1, x_2, ...

    Args:
        rule: of `rules`.
        problem: loss, constraints and domain; after each round x is projected onto it.
        source: what paths are of.
        x0: the first point.
        paths: as `source.paths` draws them, one row per seed.
        steps: the settings, each run on all seeds.
        stops: sample counts to record at, ascending.
    """
    x0 = jax.tree.map(jnp.asarray, x0)
    seeds = len(jax.tree.leaves(paths)[0])
    subject = Subject(problem, tree.cast(source.stream(), tree.dtype(x0)))
    pairs = list(itertools.product(steps, range(seeds)))
    settings = jax.tree.map(lambda *leaves: jnp.asarray(leaves, tree.dtype(x0)), *[pair[0] for pair in pairs])
    rows = jnp.asarray([row for _, row in pairs], jnp.int32)
    devices = jax.devices()
    share = max(count for count in range(1, len(devices) + 1) if len(pairs) % count == 0)
    run = _compiled(rule, tuple(devices[:share]))
    found = run(subject, x0, jax.tree.map(jnp.asarray, paths), settings, rows, jnp.asarray(stops, jnp.int32))
    return np.asarray(found).reshape(len(steps), seeds, *found.shape[1:])


@functools.cache
def _compiled(rule: Rule, devices: tuple[Device, ...]) -> Callable[..., jax.Array]:
    """`_runs`, compiled: each device takes its share of the runs."""
    function = functools.update_wrapper(functools.partial(_runs, rule=rule), _runs)
    if len(devices) > 1:
        whole, share = PartitionSpec(), PartitionSpec("runs")
        function = jax.shard_map(
            function,
            mesh=Mesh(np.array(devices), ("runs",)),
            in_specs=(whole, whole, whole, share, share, whole),
            out_specs=share,
            check_vma=False,
        )
    return compiled(compiler_options=xla.options())(function)


def _runs(
    subject: Subject, x0: PyTree, paths: PyTree, settings: Steps, rows: jax.Array, stops: jax.Array, rule: Rule
) -> jax.Array:
    start, unravel = ravel_pytree(x0)
    entry = jax.tree.map(lambda leaf: leaf[0, 0], paths)
    count = jax.eval_shape(subject.problem.feedback, x0, subject.stream.xi(entry)).constraints.shape[0]

    def one(run: tuple[Steps, jax.Array]) -> jax.Array:
        steps, row = run

        def sample(walk: Walk) -> Walk:
            xi = subject.stream.xi(jax.tree.map(lambda leaf: leaf[row, walk.t], paths))
            memory, moved = rule.update(
                walk.memory, walk.t + 1, walk.x, seen(subject.problem, unravel(walk.x), xi), steps
            )
            x = ravel_pytree(subject.problem.geometry.project(unravel(moved)))[0]
            t = (walk.t + 1).astype(x.dtype)
            uniform = walk.uniform + (walk.x - walk.uniform) / t
            weighted = walk.weighted + (walk.x - walk.weighted) * (2 / (t + 1))
            return Walk(walk.t + 1, x, memory, uniform, weighted)

        def until(walk: Walk, stop: jax.Array) -> tuple[Walk, jax.Array]:
            walk = jax.lax.while_loop(lambda walk: walk.t < stop, sample, walk)
            return walk, jnp.stack([walk.x, walk.uniform, walk.weighted])

        first = Walk(jnp.int32(0), start, rule.start(start, count), start, start)
        return jax.lax.scan(until, first, stops)[1]

    return jax.lax.map(one, (settings, rows))


def seen(problem: Problem, x: PyTree, xi: PyTree) -> Seen:
    """A sample's feedback on flat vectors."""
    found = problem.feedback(x, xi)
    rows = jax.vmap(lambda row: ravel_pytree(row)[0])(found.constraint_jac)
    return Seen(ravel_pytree(found.loss_grad)[0], found.constraints, rows)
