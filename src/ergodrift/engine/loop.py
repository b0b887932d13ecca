"""The compiled loop: samples in, records out, seeds side by side."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ergodrift._core import tree, xla
from ergodrift._core.compiled import compiled
from ergodrift._core.products import by_sums
from ergodrift.data.sampler import BLOCK
from ergodrift.engine.carry import Carry, Place, Record, RunSpec, Sums
from ergodrift.engine.split import split
from ergodrift.methods.estimator import ask
from ergodrift.methods.method import zero_feedback
from ergodrift.types import Device, Feedback, PyTree

T = TypeVar("T", bound=PyTree)
SEEDS = "seeds"  # an axis of devices, each with its share of them


@compiled(static_argnums=2)
def start(spec: RunSpec, x0: PyTree, num_constraints: int, seeds: PyTree, levels: jax.Array) -> Carry:
    """The carry before the first sample, for all seeds (leading axis of `seeds` and `levels`)."""

    def one(seed: PyTree, levels: jax.Array) -> Carry:
        state = spec.method.init(x0, num_constraints, levels)
        sampler = spec.stream.start(seed)
        indices = _blank(jax.eval_shape(spec.stream.block, sampler, jnp.int32(0))[1])
        zero, method = zero_feedback(x0, num_constraints), tree.cast(spec.method, tree.dtype(x0))
        sizes = method.sizes(zero._replace(age=zero.loss))
        weights = _blank(jax.eval_shape(method.schedule.weights, state.schedule, state.t, sizes)[1])
        weight = spec.average.weight(state.t, tree.dtype(x0))
        sums = Sums(zero.loss_grad, None if weight is None else jnp.zeros_like(weight), zero.loss, zero.constraints)
        state = state._replace(window=spec.method.estimator.prefetch(state.window, state.t, BLOCK))
        return Carry(state, sampler, indices, sums, tree.compensated(sums), weights, spec.average.start(sums.x))

    return jax.vmap(one)(seeds, levels)


def _blank(shapes: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def feedback_at(spec: RunSpec, x: PyTree, indices: PyTree, at: jax.Array | int) -> Feedback:
    """What the sample at place `at` of the indices says at x."""
    index = jax.tree.map(lambda leaf: leaf[at], indices)
    return ask(spec.problem, x, spec.stream.xi(index), spec.method.estimator, state=index)


def take_sample(spec: RunSpec, carry: Carry, position: jax.Array) -> Carry:
    """One sample, the `position`-th (from 0) of the run."""
    return absorb(spec, carry, feedback_at(spec, carry.state.x, carry.indices, position % BLOCK))


def absorb(spec: RunSpec, carry: T, feedback: Feedback) -> T:
    """The carry (or any tuple with its state, recent and weights) after the feedback of one sample."""
    x = carry.state.x
    state, info = spec.method.step(carry.state, feedback)
    weight = spec.average.weight(state.t, tree.dtype(x))
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


def next_block(spec: RunSpec, carry: Carry, position: jax.Array) -> Carry:
    """Settle the sums of the block behind and draw the block that starts at `position`."""
    sampler, indices = spec.stream.block(carry.sampler, position // BLOCK)
    state, settled = carry.state, tree.compensated_add(carry.settled, carry.recent)
    return carry._replace(
        state=state._replace(window=spec.method.estimator.prefetch(state.window, state.t, BLOCK)),
        sampler=sampler,
        indices=indices,
        recent=jax.tree.map(jnp.zeros_like, carry.recent),
        settled=settled,
        marks=spec.average.next_block(carry.marks, tree.add(settled[0].x, settled[1].x), state.t, position),
    )


def observe(spec: RunSpec, carry: Carry, position: jax.Array) -> Record:
    """The record of a seed that has taken `position` samples. Before the first round is done, the mean is x_1."""
    state, (total, lost) = carry.state, carry.settled
    sums = tree.add(total, tree.add(lost, carry.recent))
    mean = spec.average.mean(sums.x, sums.weight, state.t, carry.marks, state.x)
    used = position - spec.method.estimator.pending(state.window)
    return Record(state.t, used, state.x, mean, state.queue, carry.weights, sums.loss, sums.constraints)


@compiled()
def blank_records(spec: RunSpec, carry: Carry) -> Record:
    """Room for all records of all seeds."""
    shapes = jax.eval_shape(jax.vmap(lambda one: observe(spec, one, jnp.int32(0))), carry)
    count = spec.grid.shape[0]
    return jax.tree.map(lambda leaf: jnp.zeros((leaf.shape[0], count, *leaf.shape[1:]), leaf.dtype), shapes)


def beginning(spec: RunSpec, carry: Carry) -> Place:
    """Where a run begins: nothing taken, nothing recorded."""
    return Place(carry, blank_records(spec, carry), jnp.int32(0), jnp.int32(0))


def take_block(spec: RunSpec, carry: Carry, position: jax.Array, stop: jax.Array) -> Carry:
    """All samples from `position` to `stop`, which lie in one block; one seed."""
    return jax.lax.fori_loop(position, stop, lambda at, carry: take_sample(spec, carry, at), carry)


Span: TypeAlias = Callable[[RunSpec, Carry, jax.Array, jax.Array], Carry]  # the samples from one place to another
ForSeeds: TypeAlias = Callable[[Callable[..., PyTree]], Callable[..., PyTree]]  # of a function of one seed's carry


def take_until(
    spec: RunSpec,
    carry: Carry,
    position: jax.Array,
    target: jax.Array,
    seed: ForSeeds = lambda function: function,
    take: Span = take_block,
) -> tuple[Carry, jax.Array]:
    """All samples from `position` to `target`, block by block: of one seed, or of all side by side."""

    def until_block_end(inner: tuple[Carry, jax.Array]) -> tuple[Carry, jax.Array]:
        carry, position = inner
        begin = seed(lambda one: next_block(spec, one, position))
        carry = jax.lax.cond(position % BLOCK == 0, begin, lambda carry: carry, carry)
        stop = jnp.minimum(target, (position // BLOCK + 1) * BLOCK)
        return take(spec, carry, position, stop), stop

    return jax.lax.while_loop(lambda inner: inner[1] < target, until_block_end, (carry, position))


class SeedAxis(NamedTuple):
    """How the parts of the loop treat the seeds: a carry of one seed, or of all along a leading axis."""

    seed: ForSeeds
    take_until: Span


def side_by_side(take: Span) -> SeedAxis:
    """All seeds along a leading axis; `take` takes the samples of a block."""
    return SeedAxis(jax.vmap, lambda spec, carry, start, stop: take_until(spec, carry, start, stop, jax.vmap, take)[0])


def _all_blocks(spec: RunSpec, carry: Carry, position: jax.Array, stop: jax.Array) -> Carry:
    return jax.vmap(lambda one: take_block(spec, one, position, stop))(carry)


ONE = SeedAxis(lambda function: function, lambda spec, carry, *span: take_until(spec, carry, *span)[0])
ALL = side_by_side(_all_blocks)


def _blocks_on_gpu(spec: RunSpec, carry: Carry, position: jax.Array, stop: jax.Array) -> Carry:
    """The same for a device that one seed may have to itself."""
    if jax.tree.leaves(carry.state.x)[0].shape[0] > 1:
        return _all_blocks(spec, carry, position, stop)
    one = jax.tree.map(lambda leaf: leaf[0], carry)
    step = by_sums(take_sample)
    one = jax.lax.fori_loop(position, stop, lambda at, carry: step(spec, carry, at), one)
    return jax.tree.map(lambda leaf: leaf[None], one)


def in_kernels() -> SeedAxis:
    """All seeds in one kernel from record to record, or from block to block, or in as many as XLA makes of them."""
    from ergodrift.engine import kernel  # imported here: a CPU has no use for it

    by_blocks = side_by_side(kernel.instead_of(_blocks_on_gpu, take_block))
    return SeedAxis(jax.vmap, kernel.instead_of(by_blocks.take_until, ONE.take_until))


def _advance(spec: RunSpec, place: Place, limit: jax.Array, each: SeedAxis) -> Place:
    """Go on from a place until `limit` samples are taken, filling records from its slot on.

    The three nested loops count samples, blocks and records; all seeds share their counters. Where a run is cut into
    calls changes nothing in its numbers.
    """

    def until_record(place: Place) -> Place:
        carry, records, position, slot = place
        target = jnp.minimum(spec.grid[slot], limit)
        carry, position = each.take_until(spec, carry, position, target), jnp.maximum(position, target)

        def keep(records: Record, carry: Carry) -> Record:
            return jax.tree.map(lambda kept, new: kept.at[slot].set(new), records, observe(spec, carry, position))

        done = (position == spec.grid[slot]).astype(slot.dtype)
        return Place(carry, each.seed(keep)(records, carry), position, slot + done)

    def unfinished(place: Place) -> jax.Array:
        _, _, position, slot = place
        return (slot < spec.grid.shape[0]) & ((position < limit) | (spec.grid[slot] <= limit))

    return jax.lax.while_loop(unfinished, until_record, place)


def advance(
    spec: RunSpec,
    carry: Carry,
    records: Record,
    position: jax.Array,
    slot: jax.Array,
    limit: jax.Array,
    platform: str,
) -> Place:
    """`_advance` for all seeds: one after the other on a CPU core, side by side elsewhere.

    A core gains nothing from seeds side by side: a single seed's loop is one function, and its state stays in registers
    and nearest caches. A GPU runs all samples up to the next record as one kernel where the problem allows it.
    """
    if platform == "cpu":

        def one(seed: tuple[Carry, Record]) -> Place:
            return _advance(spec, Place(seed[0], seed[1], position, slot), limit, ONE)

        place = jax.lax.map(one, (carry, records))
        return place._replace(position=place.position[0], slot=place.slot[0])
    each = in_kernels() if platform == "gpu" else ALL
    return _advance(spec, Place(carry, records, position, slot), limit, each)


@functools.cache
def advance_on(devices: tuple[Device, ...], axis: str = SEEDS) -> Callable[..., Place]:
    """`advance`, compiled for the host's loop: each device takes its share of the seeds, or of the rows of a batch
    (`split.ROWS`); records are not copied.

    Its last argument is `waiting_for(limit)`.
    """

    def function(
        spec: RunSpec, carry: Carry, records: Record, position: jax.Array, slot: jax.Array, limits: jax.Array
    ) -> Place:
        spec = spec if axis == SEEDS else split(spec, len(devices))
        return advance(spec, carry, records, position, slot, limits.max(), platform=devices[0].platform)

    functools.update_wrapper(function, advance)
    if len(devices) > 1:
        whole, share = PartitionSpec(), PartitionSpec(SEEDS) if axis == SEEDS else PartitionSpec()
        function = jax.shard_map(
            function,
            mesh=_mesh(devices, axis),
            in_specs=(whole, share, share, whole, whole, whole),
            out_specs=Place._make([share, share, whole, whole]),
            check_vma=False,
        )
    return compiled(donate_argnums=2, compiler_options=xla.options())(function)


def waiting_for(limit: int) -> np.ndarray:
    """A limit, as often as it takes for a call to return at once and the host to go on meanwhile: what XLA counts less
    than 1,000 operations in, the bodies of loops once, it runs in the caller's thread on a CPU."""
    return np.full(2048, limit, np.int32)


def spread(devices: tuple[Device, ...], spec: RunSpec, place: Place, axis: str = SEEDS) -> tuple[RunSpec, Place]:
    """A run and its place on the devices that `advance_on` will leave them on: else it would compile twice."""
    if len(devices) == 1:
        return spec, place
    own = PartitionSpec(SEEDS) if axis == SEEDS else PartitionSpec()
    whole, share = (NamedSharding(_mesh(devices, axis), axes) for axes in (PartitionSpec(), own))
    return jax.device_put((spec, place), (whole, Place._make([share, share, whole, whole])))


def everywhere(devices: tuple[Device, ...], value: T) -> T:
    """A part of what stays fixed, on all devices of a run. A single CPU has it already."""
    first, *others = devices
    if others:
        return jax.device_put(value, NamedSharding(_mesh(devices), PartitionSpec()))
    return value if first.platform == "cpu" else jax.device_put(value)


def _mesh(devices: tuple[Device, ...], axis: str = SEEDS) -> Mesh:
    return Mesh(np.array(devices), (axis,))


class Fault(NamedTuple):
    """Which quantities are not finite after one sample of one seed; of the sample itself not all may be read."""

    xi: jax.Array
    loss: jax.Array
    loss_grad: jax.Array
    constraints: jax.Array
    constraint_jac: jax.Array
    x: jax.Array
    queue: jax.Array
    weights: jax.Array


Search: TypeAlias = tuple[Carry, jax.Array, Fault]


def finite(value: PyTree) -> jax.Array:
    """Whether all numbers in a pytree are finite."""
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(value)]))


@jax.jit
def healthy(carry: Carry) -> jax.Array:
    """For each seed, whether its point, queue, weights and sums are finite; once a sum is not, it never recovers."""
    return jax.vmap(lambda one: finite((one.state.x, one.state.queue, one.weights, one.recent, one.settled[0])))(carry)


@compiled()
def locate(spec: RunSpec, carry: Carry, position: jax.Array, limit: jax.Array) -> tuple[jax.Array, jax.Array, Fault]:
    """Replay one seed from `position` up to the first sample after which something is not finite, or to `limit`."""

    def onward(so_far: Search) -> Search:
        carry, position, _ = so_far
        carry = jax.lax.cond(position % BLOCK == 0, lambda c: next_block(spec, c, position), lambda c: c, carry)
        feedback = feedback_at(spec, carry.state.x, carry.indices, position % BLOCK)
        carry = absorb(spec, carry, feedback)
        xi = spec.stream.xi(jax.tree.map(lambda leaf: leaf[position % BLOCK], carry.indices))
        parts = (xi, *feedback[:4], carry.state.x, carry.state.queue, carry.weights)
        fault = Fault(*(~finite(part) for part in parts))
        return carry, position + 1, fault

    def fine(so_far: Search) -> jax.Array:
        _, position, fault = so_far
        return ~jnp.any(jnp.stack(fault[1:])) & (position < limit)

    carry, position, fault = jax.lax.while_loop(
        fine, onward, (carry, position, Fault(*[jnp.array(False)] * len(Fault._fields)))
    )
    return position, carry.state.t, fault
