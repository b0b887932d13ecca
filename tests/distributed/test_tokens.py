"""The hub's part of a hop: what it costs, whatever the number of agents."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from ergodrift.data.source import level_keys, path_keys, seed_keys
from ergodrift.data.stream import TableStream
from ergodrift.distributed import wire
from ergodrift.distributed.tokens import Hub, RandomBits
from ergodrift.distributed.wire import WalkSpec
from ergodrift.engine import loop
from ergodrift.methods.average import Average

DIM, TOKENS = 10, 4


def hub_of(algorithm, agents):
    problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] - xi[:1], ed.Ball(1.0))
    estimator = algorithm.estimator.for_run(1000, None, np.full(agents, 1 / agents))
    method = dataclasses.replace(algorithm, estimator=estimator).bind(problem)
    spec = loop.RunSpec(problem, method, TableStream(RandomBits(), None), None, Average.of(algorithm.average))
    return Hub(wire.on_host(WalkSpec(spec, np.zeros(DIM), 1, 1, 1, True)))


@pytest.mark.x64("words of 64 bits")
def test_what_is_remembered_of_each_agent_stays_where_it_is():
    """A hop of RDPP reads and writes one entry of the table: no copy of it, and nothing as large, is ever made."""
    agents = 5000
    hub, keys = hub_of(ed.rdpp(), agents), seed_keys(TOKENS)
    tokens = hub.start(path_keys(keys), level_keys(keys))
    table = sum(leaf.nbytes for leaf in jax.tree.leaves(tokens.moving.table))
    answers = np.zeros((TOKENS, hub.width + 2), hub.word)
    absorb: Any = hub._absorb
    compiled = absorb.func.lower(*absorb.args, tokens.moving, answers).compile()
    used = compiled.memory_analysis()
    assert used.alias_size_in_bytes > table > TOKENS * agents * 2 * DIM * 8
    assert used.temp_size_in_bytes < table / 100
