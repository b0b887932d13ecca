"""What the compiled loop is made of: what a run keeps fixed, carries from sample to sample, and records."""

from __future__ import annotations

from typing import NamedTuple

import jax

from ergodrift.data.stream import Stream
from ergodrift.methods.average import Average
from ergodrift.methods.method import Method
from ergodrift.problem import Problem
from ergodrift.types import PyTree, State


class RunSpec(NamedTuple):
    """What stays fixed during a run and is shared by all seeds. All numbers in it are leaves: none recompiles."""

    problem: Problem
    method: Method
    stream: Stream
    grid: PyTree  # (records,) sample counts at which to record, ascending; None where somebody else keeps records
    average: Average = Average()  # the weights of the points in x̄


class Sums(NamedTuple):
    """Sums since the start: of x over rounds and of its weights (None: all 1), of loss and constraints over samples."""

    x: PyTree
    weight: jax.Array | None
    loss: jax.Array
    constraints: jax.Array


class Carry(NamedTuple):
    """One seed between two samples.

    Sums are plain inside a block and compensated from block to block: that keeps float32 sums of 10^8 terms right at
    no cost in the innermost loop.
    """

    state: State
    sampler: PyTree
    indices: PyTree  # the block of indices being used
    recent: Sums  # sums in this block
    settled: tuple[Sums, Sums]  # compensated sums of all blocks before it
    weights: PyTree  # of the last round
    marks: PyTree  # of a suffix average


class Record(NamedTuple):
    """What is kept of one seed at one record; in a result, with leading axes (seeds, records)."""

    rounds: jax.Array
    samples_used: jax.Array
    x: PyTree
    x_mean: PyTree
    queue: jax.Array
    weights: PyTree
    loss_sum: jax.Array
    constraint_sum: jax.Array


class Place(NamedTuple):
    """Where a run is, for all seeds: `position` samples are taken, and the next record goes to `slot`."""

    carry: Carry
    records: Record
    position: jax.Array
    slot: jax.Array
