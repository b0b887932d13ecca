"""The compiled side of a learner: the loop of `run` for one seed, fed from outside, without records."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import tree
from ergodrift._core.compiled import compiled
from ergodrift._core.pack import Layout, Packed
from ergodrift.data.sampler import InOrder
from ergodrift.data.stream import TableStream
from ergodrift.engine import loop
from ergodrift.engine.carry import Carry, Record, RunSpec
from ergodrift.methods.average import Average
from ergodrift.methods.estimator import ask
from ergodrift.methods.method import Method
from ergodrift.problem import Problem
from ergodrift.types import Array, PyTree


@tree.module()
class Setup:
    """What a learner keeps fixed."""

    problem: Problem
    method: Method
    average: Average

    def spec(self, data: PyTree = None, first: PyTree = None) -> RunSpec:
        """As the loop wants it, for rows of a stream that begin with row `first`."""
        return RunSpec(self.problem, self.method, TableStream(InOrder(), data, first), None, self.average)


class Standing(NamedTuple):
    """Where a learner stands: what is carried from sample to sample, how many there were, whether all is finite."""

    carry: Carry
    position: jax.Array
    healthy: jax.Array


def begun(setup: Setup, num_constraints: int, x0: PyTree, data: PyTree, key: jax.Array, levels: jax.Array) -> Standing:
    """Where a learner begins. `data` is a window of one row, `key` and `levels` have a leading axis of one."""
    carry = loop.start(setup.spec(data, jnp.int32(0)), x0, num_constraints, key, levels)
    return _after(jax.tree.map(lambda leaf: leaf[0], carry), jnp.int32(0))


@compiled(static_argnums=(1, 2))
def beginning(setup: Setup, layout: Layout, num_constraints: int, *told: PyTree) -> Packed:
    """The same, packed."""
    return layout.pack(begun(setup, num_constraints, *told))


def _after(carry: Carry, position: jax.Array) -> Standing:
    fine = loop.finite((carry.state.x, carry.state.queue, carry.weights, carry.recent, carry.settled[0]))
    return Standing(carry, position, fine.astype(jnp.int32))


@compiled(static_argnums=1)
def take_rows(setup: Setup, layout: Layout, packed: Packed, data: PyTree, limit: Array | np.integer) -> Packed:
    """The rows of a window, which begins where the learner stands, up to sample number `limit`."""
    carry, position, _ = layout.unpack(packed)
    return layout.pack(_after(*loop.take_until(setup.spec(data, position), carry, position, jnp.asarray(limit))))


@compiled(static_argnums=(1, 2))
def take_one(setup: Setup, layout: Layout, begins: bool, packed: Packed, xi: PyTree) -> Packed:
    """One sample; `begins` where it is the first of a block. To rounding what `take_rows` makes of one row: there the
    same operations are part of another program."""
    carry, position, _ = layout.unpack(packed)
    spec = setup.spec()
    if begins:
        carry = loop.next_block(spec, carry, position)
    heard = ask(setup.problem, carry.state.x, xi, setup.method.estimator)
    return layout.pack(_after(loop.absorb(spec, carry, heard), position + 1))


@compiled(static_argnums=1)
def observed(setup: Setup, layout: Layout, packed: Packed) -> Record:
    """What a record holds of where the learner stands."""
    carry, position, _ = layout.unpack(packed)
    return loop.observe(setup.spec(), carry, position)


@compiled(static_argnums=1)
def located(
    setup: Setup, layout: Layout, packed: Packed, data: PyTree, limit: Array | np.integer
) -> tuple[jax.Array, jax.Array, loop.Fault]:
    """The first row after which something is not finite (or `limit`), the rounds by then, and what it is."""
    carry, position, _ = layout.unpack(packed)
    return loop.locate(setup.spec(data, position), carry, position, jnp.asarray(limit))
