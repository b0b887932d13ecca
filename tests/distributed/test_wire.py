"""What travels, bit by bit, and the way of a token."""

import types
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from ergodrift.data.sampler import random_block
from ergodrift.distributed import wire
from ergodrift.distributed.actor import feedback_answer
from ergodrift.distributed.tokens import route
from ergodrift.types import Feedback
from walks import DIM, ZERO

pytestmark = pytest.mark.x64("walks equal their simulation to float64's digits")


def test_words_are_the_numbers_bit_by_bit():
    tree = {
        "wide": jnp.array([[0.1, -jnp.inf], [jnp.nan, -0.0]]),
        "narrow": jnp.array([0.1, 3e38], jnp.float32),
        "half": jnp.array([0.1, -2.0], jnp.bfloat16),
        "whole": jnp.array(-5, jnp.int32),
        "flag": jnp.array([True, False]),
        "key": jax.random.key(7, impl=wire.KEY_TYPE),
    }
    for parts, kind, count in [(tree, np.uint64, 4 + 2 + 2 + 1 + 2 + 2), (dict(list(tree.items())[1:]), np.uint32, 9)]:
        words = jax.jit(wire.pack)(parts)
        assert words.dtype == wire.packed_shape(parts).dtype == kind
        assert words.shape == wire.packed_shape(parts).shape == (count,)
        back = jax.jit(lambda words, parts=parts: wire.unpack(words, jax.eval_shape(lambda: parts)))(words)
        for name, leaf in parts.items():
            data = jax.random.key_data if name == "key" else np.asarray
            assert back[name].dtype == leaf.dtype
            assert np.asarray(data(back[name])).tobytes() == np.asarray(data(leaf)).tobytes(), name


def test_answers_are_in_the_precision_of_the_walk():
    """The bits of a narrower number would be read as another one, next to 0."""
    narrow = Feedback(jnp.float32(0.5), jnp.full(DIM, 0.25, jnp.float32), jnp.ones(1), jnp.full((1, DIM), 3))
    problem = types.SimpleNamespace(feedback=lambda x, xi: narrow)
    spec = types.SimpleNamespace(run_spec=types.SimpleNamespace(problem=problem), x0=ZERO, num_constraints=1)
    words = feedback_answer(None, cast(Any, spec), None, wire.pack(jnp.asarray(ZERO)))
    assert np.asarray(words).view(float).tolist() == [0.5, *[0.25] * DIM, 1.0, *[3.0] * DIM]


def test_routes_are_those_of_the_chain():
    rng = np.random.default_rng(5)
    P = rng.random((6, 6)) * (rng.random((6, 6)) < 0.6) + 0.01 * np.eye(6) + 0.05 * np.roll(np.eye(6), 1, axis=1)
    chain = ed.MarkovChain(P / P.sum(axis=1, keepdims=True))
    sampler, keys = chain.sampler(), jax.random.split(jax.random.key(3), 4)
    starts, first = jax.vmap(sampler.start)(keys)
    bits = jax.vmap(lambda key: random_block(key, jnp.int32(0)))(starts)
    drawn = np.asarray(route(sampler, first, bits, 0))
    assert np.array_equal(drawn[:-1].T, [chain.sample_path(key, 64)[1:] for key in keys])
    # From other places in the middle of a block the same bits decide, by the probabilities there.
    places = np.array([5, 0, 3, 3])
    again = np.asarray(route(sampler, places, bits, 40))
    cumulative = np.cumsum(chain.P, axis=1)
    for number in range(40, 64):
        shares = np.asarray(bits)[:, number, None] / 2.0**31
        places = (shares >= cumulative[places]).sum(axis=1)
        assert again[number].tolist() == places.tolist()
