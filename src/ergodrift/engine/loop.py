"""The compiled loop: samples in, records out, seeds side by side."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ergodrift._core import tree, xla
from ergodrift._core.compiled import compiled
from ergodrift.data.sampler import BLOCK
from ergodrift.data.stream import Stream
from ergodrift.methods.average import Average
from ergodrift.methods.method import Method, zero_feedback
from ergodrift.problem import LinearModel, Problem
from ergodrift.types import Feedback, State

T = TypeVar("T", bound=Any)


class Setup(NamedTuple):
    """What stays fixed during a run and is shared by all seeds. All numbers in it are leaves: none recompiles."""

    problem: Problem
    method: Method
    stream: Stream
    grid: Any  # (records,) sample counts at which to record, ascending
    average: Average = Average()  # the weights of the points in x̄


class Sums(NamedTuple):
    """Sums since the start: of x over rounds and of its weights (None: all 1), of loss and constraints over samples."""

    x: Any
    weight: Any
    loss: Any
    constraints: Any


class Carry(NamedTuple):
    """One seed between two samples.

    Sums are plain inside a block and compensated from block to block: that keeps float32 sums of 10^8 terms right at
    no cost in the innermost loop.
    """

    state: State
    sampler: Any
    indices: Any  # the block of indices being used
    recent: Sums  # sums in this block
    settled: Any  # compensated sums of all blocks before it
    weights: Any  # of the last round
    marks: Any  # of a suffix average


class Record(NamedTuple):
    """What is kept of one seed at one record; in a result, with leading axes (seeds, records)."""

    rounds: Any
    samples_used: Any
    x: Any
    x_mean: Any
    queue: Any
    weights: Any
    loss_sum: Any
    constraint_sum: Any


@compiled(static_argnums=2)
def start(setup: Setup, x0: Any, num_constraints: int, seeds: Any, levels: Any) -> Carry:
    """The carry before the first sample, for all seeds (leading axis of `seeds` and `levels`)."""

    def one(seed: Any, levels: Any) -> Carry:
        state = setup.method.init(x0, num_constraints, levels)
        sampler = setup.stream.start(seed)
        indices = _blank(jax.eval_shape(setup.stream.block, sampler, jnp.int32(0))[1])
        zero, method = zero_feedback(x0, num_constraints), tree.cast(setup.method, tree.dtype(x0))
        sizes = method.sizes(zero._replace(age=zero.loss))
        weights = _blank(jax.eval_shape(method.schedule.weights, state.schedule, state.t, sizes)[1])
        weight = setup.average.weight(state.t, tree.dtype(x0))
        sums = Sums(zero.loss_grad, None if weight is None else jnp.zeros_like(weight), zero.loss, zero.constraints)
        state = state._replace(window=setup.method.estimator.stock(state.window, state.t, BLOCK))
        return Carry(state, sampler, indices, sums, tree.compensated(sums), weights, setup.average.start(sums.x))

    return jax.vmap(one)(seeds, levels)


def _blank(shapes: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def feedback_at(setup: Setup, x: Any, indices: Any, at: Any) -> Feedback:
    """What the sample at place `at` of the indices says at x; to an estimator that needs it, also which one it is."""
    index = jax.tree.map(lambda leaf: leaf[at], indices)
    estimator, problem = setup.method.estimator, setup.problem
    xi = setup.stream.xi(index)
    if estimator.needs_factors and isinstance(problem, LinearModel):
        feedback = problem.factored(x, xi)
    else:
        feedback = problem.feedback(x, xi)
    return feedback._replace(state=index) if estimator.needs_state else feedback


def take_sample(setup: Setup, carry: Carry, position: Any) -> Carry:
    """One sample, the `position`-th (from 0) of the run."""
    return take_in(setup, carry, feedback_at(setup, carry.state.x, carry.indices, position % BLOCK))


def take_in(setup: Setup, carry: T, feedback: Feedback) -> T:
    """The carry (or any tuple with its state, recent and weights) after the feedback of one sample."""
    x = carry.state.x
    state, info = setup.method.step(carry.state, feedback)
    weight = setup.average.weight(state.t, tree.dtype(x))
    term = x if weight is None else tree.scale(x, weight)
    recent = Sums(
        jax.tree.map(lambda total, leaf: total + jnp.where(info.updated, leaf, 0), carry.recent.x, term),
        None if weight is None else carry.recent.weight + jnp.where(info.updated, weight, 0),
        carry.recent.loss + feedback.loss,
        carry.recent.constraints + feedback.constraints,
    )
    return carry._replace(
        state=state,
        recent=recent,
        weights=tree.select(info.updated, info.weights, carry.weights),
    )


def next_block(setup: Setup, carry: Carry, position: Any) -> Carry:
    """Settle the sums of the block behind and draw the block that starts at `position`."""
    sampler, indices = setup.stream.block(carry.sampler, position // BLOCK)
    state, settled = carry.state, tree.compensated_add(carry.settled, carry.recent)
    return carry._replace(
        state=state._replace(window=setup.method.estimator.stock(state.window, state.t, BLOCK)),
        sampler=sampler,
        indices=indices,
        recent=jax.tree.map(jnp.zeros_like, carry.recent),
        settled=settled,
        marks=setup.average.next_block(carry.marks, tree.add(settled[0].x, settled[1].x), state.t, position),
    )


def observe(setup: Setup, carry: Carry, position: Any) -> Record:
    """The record of a seed that has taken `position` samples. Before the first round is done, the mean is x_1."""
    state, (total, lost) = carry.state, carry.settled
    sums = tree.add(total, tree.add(lost, carry.recent))
    mean = setup.average.mean(sums.x, sums.weight, state.t, carry.marks, state.x)
    used = position - setup.method.estimator.pending(state.window)
    return Record(state.t, used, state.x, mean, state.queue, carry.weights, sums.loss, sums.constraints)


@compiled()
def blank_records(setup: Setup, carry: Carry) -> Record:
    """Room for all records of all seeds."""
    shapes = jax.eval_shape(jax.vmap(lambda one: observe(setup, one, jnp.int32(0))), carry)
    count = setup.grid.shape[0]
    return jax.tree.map(lambda leaf: jnp.zeros((leaf.shape[0], count, *leaf.shape[1:]), leaf.dtype), shapes)


def take_block(setup: Setup, carry: Carry, position: Any, stop: Any) -> Carry:
    """All samples from `position` to `stop`, which lie in one block; one seed."""
    return jax.lax.fori_loop(position, stop, lambda at, carry: take_sample(setup, carry, at), carry)


class Each(NamedTuple):
    """How the parts of the loop treat the seeds: a carry of one seed, or of all along a leading axis."""

    seed: Callable[[Callable[..., Any]], Callable[..., Any]]  # makes a function of one seed one of the whole carry
    take_block: Callable[..., Carry]


ONE = Each(lambda function: function, take_block)
ALL = Each(jax.vmap, lambda setup, carry, *span: jax.vmap(lambda one: take_block(setup, one, *span))(carry))


def _advance(
    setup: Setup, carry: Carry, records: Record, position: Any, slot: Any, limit: Any, each: Each
) -> tuple[Carry, Record, Any, Any]:
    """Go on from sample `position` until `limit` samples are taken, filling records from `slot` on.

    The three nested loops count samples, blocks and records; all seeds share their counters. Where a run is cut into
    calls changes nothing in its numbers.
    """

    def until_record(loop: Any) -> Any:
        carry, records, position, slot = loop
        target = jnp.minimum(setup.grid[slot], limit)

        def until_block_end(inner: Any) -> Any:
            carry, position = inner
            begin = each.seed(lambda one: next_block(setup, one, position))
            carry = jax.lax.cond(position % BLOCK == 0, begin, lambda carry: carry, carry)
            stop = jnp.minimum(target, (position // BLOCK + 1) * BLOCK)
            return each.take_block(setup, carry, position, stop), stop

        carry, position = jax.lax.while_loop(lambda inner: inner[1] < target, until_block_end, (carry, position))

        def keep(records: Record, carry: Carry) -> Record:
            return jax.tree.map(lambda kept, new: kept.at[slot].set(new), records, observe(setup, carry, position))

        return (
            carry,
            each.seed(keep)(records, carry),
            position,
            slot + (position == setup.grid[slot]).astype(slot.dtype),
        )

    def unfinished(loop: Any) -> Any:
        _, _, position, slot = loop
        return (slot < setup.grid.shape[0]) & ((position < limit) | (setup.grid[slot] <= limit))

    return jax.lax.while_loop(unfinished, until_record, (carry, records, position, slot))


def advance(setup: Setup, carry: Carry, records: Record, position: Any, slot: Any, limit: Any, platform: str) -> Any:
    """`_advance` for all seeds: one after the other on a CPU core, side by side elsewhere.

    A core gains nothing from seeds side by side: a single seed's loop is one function, and its state stays in registers
    and nearest caches. A GPU runs a block of samples as one kernel where there is one for the problem.
    """
    if platform == "cpu":
        going = functools.partial(_advance, setup, position=position, slot=slot, limit=limit, each=ONE)
        carry, records, position, slot = jax.lax.map(lambda seed: going(*seed), (carry, records))
        return carry, records, position[0], slot[0]
    each = ALL
    if platform == "gpu":
        from ergodrift.engine import kernel  # imported here: a CPU has no use for it, and it takes its time

        if kernel.suits(setup, carry.state.x):
            each = ALL._replace(take_block=functools.partial(kernel.take_block, take_sample))
    return _advance(setup, carry, records, position, slot, limit, each)


@functools.cache
def advance_on(devices: tuple[Any, ...]) -> Any:
    """`advance`, compiled for the host's loop: each device takes its share of the seeds, records are not copied."""
    function = functools.update_wrapper(functools.partial(advance, platform=devices[0].platform), advance)
    if len(devices) > 1:
        whole, share = PartitionSpec(), PartitionSpec("seeds")
        places = {"in_specs": (whole, share, share, whole, whole, whole), "out_specs": (share, share, whole, whole)}
        function = jax.shard_map(function, mesh=_mesh(devices), check_vma=False, **places)
    return compiled(donate_argnums=2, compiler_options=xla.options())(function)


def spread(devices: tuple[Any, ...], setup: Setup, place: tuple[Carry, Record, Any, Any]) -> Any:
    """Setup and place of a loop on the devices that `advance_on` will leave them on: else it would compile twice."""
    if len(devices) == 1:
        return setup, place
    whole, share = (NamedSharding(_mesh(devices), spec) for spec in (PartitionSpec(), PartitionSpec("seeds")))
    return jax.device_put((setup, place), (whole, (share, share, whole, whole)))


def _mesh(devices: tuple[Any, ...]) -> Mesh:
    return Mesh(np.array(devices), ("seeds",))


class Fault(NamedTuple):
    """Which quantities are not finite after one sample of one seed."""

    loss: Any
    loss_grad: Any
    constraints: Any
    constraint_jac: Any
    x: Any
    queue: Any
    weights: Any


def finite(value: Any) -> Any:
    """Whether all numbers in a pytree are finite."""
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(value)]))


@jax.jit
def healthy(carry: Carry) -> Any:
    """For each seed, whether its point, queue, weights and sums are finite; once a sum is not, it never recovers."""
    return jax.vmap(lambda one: finite((one.state.x, one.state.queue, one.weights, one.recent, one.settled[0])))(carry)


@compiled()
def locate(setup: Setup, carry: Carry, position: Any, limit: Any) -> tuple[Any, Any, Fault]:
    """Replay one seed from `position` up to the first sample after which something is not finite, or to `limit`."""

    def onward(loop: Any) -> Any:
        carry, position, _ = loop
        carry = jax.lax.cond(position % BLOCK == 0, lambda c: next_block(setup, c, position), lambda c: c, carry)
        feedback = feedback_at(setup, carry.state.x, carry.indices, position % BLOCK)
        carry = take_sample(setup, carry, position)
        fault = Fault(*(~finite(part) for part in (*feedback[:4], carry.state.x, carry.state.queue, carry.weights)))
        return carry, position + 1, fault

    def fine(loop: Any) -> Any:
        return ~jnp.any(jnp.stack(loop[2])) & (loop[1] < limit)

    carry, position, fault = jax.lax.while_loop(
        fine, onward, (carry, position, Fault(*[jnp.array(False)] * len(Fault._fields)))
    )
    return position, carry.state.t, fault
