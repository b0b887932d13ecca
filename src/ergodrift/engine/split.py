"""One seed on several devices: each takes its part of the rows of a batch, and their feedback is averaged."""

from __future__ import annotations

from typing import NamedTuple

import jax

from ergodrift._core.compiled import compiled
from ergodrift.data.stream import Stream
from ergodrift.engine.carry import Place, RunSpec
from ergodrift.engine.margin import Tightened
from ergodrift.problem import Batched, Problem
from ergodrift.types import Feedback, PyTree

ROWS = "rows"  # the axis of devices
WORTH = 2**18  # numbers in a batch from which on it pays: devices wait for each other once a round


def splits(spec: RunSpec, place: Place, devices: int) -> bool:
    """Whether a batch is to be split over so many devices: there is one seed, and the batch is large enough."""
    problem = spec.problem.original if isinstance(spec.problem, Tightened) else spec.problem
    if devices == 1 or not isinstance(problem, Batched) or len(place.carry.state.t) > 1:
        return False
    rows, data = place.carry.indices.shape[-1], jax.tree.leaves(getattr(spec.stream, "data", None))
    return rows % devices == 0 and rows * sum(leaf.size // leaf.shape[0] for leaf in data) >= WORTH


def split(spec: RunSpec, devices: int) -> RunSpec:
    """The same run as each device makes it inside `jax.shard_map` over `ROWS`."""
    problem = spec.problem
    asked = Averaged(problem.loss, problem.constraints, problem.geometry, problem)
    return spec._replace(problem=asked, stream=Part(spec.stream, devices))


class Averaged(Problem):
    """A problem whose feedback is the mean of what all devices hear, each of its part of the rows."""

    original: Problem

    @compiled()
    def _feedback(self, x: PyTree, xi: PyTree) -> Feedback:
        heard = self.original.feedback(x, xi)
        return jax.tree.map(lambda leaf: jax.lax.pmean(leaf, ROWS), heard)


class Part(NamedTuple):
    """A stream of batches, of which a device sees its part of the rows."""

    stream: Stream
    devices: int

    @property
    def data(self) -> PyTree:
        return getattr(self.stream, "data", None)

    def start(self, key: PyTree) -> PyTree:
        return self.stream.start(key)

    def block(self, carry: PyTree, number: jax.Array) -> tuple[PyTree, PyTree]:
        return self.stream.block(carry, number)

    def xi(self, entry: jax.Array) -> PyTree:
        size = entry.shape[0] // self.devices
        return self.stream.xi(jax.lax.dynamic_slice_in_dim(entry, jax.lax.axis_index(ROWS) * size, size))
