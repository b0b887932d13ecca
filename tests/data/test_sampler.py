"""Samplers against the laws they draw from; what must never be drawn is tried with the extreme random bits."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ergodrift.data.sampler import BLOCK, Categorical, InOrder, Transitions, draw
from ergodrift.data.stream import Paired, Replay, TableStream, padded

PROPERTY = settings(derandomize=True, database=None, deadline=None, max_examples=50)
LAST = 2**31 - 1  # the largest value that 31 random bits take


def weight_vectors() -> Any:
    weights = hnp.arrays(float, st.sampled_from([1, 2, 12]), elements=st.sampled_from([0.0, 1e-9, 0.1, 0.3, 1.0, 7.0]))
    return weights.filter(lambda w: w.sum() > 0)


@pytest.mark.parametrize("weights", [[1.0], [1, 1], [0.2, 0.5, 0.3], [5, 0, 1, 0, 2], np.arange(1, 101)])
def test_frequencies_are_those_of_the_weights(weights):
    law, count = np.array(weights) / np.sum(weights), 3000 * BLOCK
    drawn = np.asarray(draw(Categorical.from_weights(np.array(weights)), jax.random.key(0), 3000))
    assert drawn.dtype == np.int32
    frequencies = np.bincount(drawn, minlength=len(law)) / count
    assert (np.abs(frequencies - law) <= 4.5 * np.sqrt(law * (1 - law) / count)).all()


def test_a_one_in_a_million_event_happens_ten_times_in_ten_million_draws():
    blocks = 10**7 // BLOCK
    drawn = np.asarray(draw(Categorical.from_weights(np.array([0.5, 1e-6, 0.5])), jax.random.key(1), blocks))
    happened = np.sum(drawn == 1)
    assert happened > 0
    assert abs(happened - 10) < 5 * np.sqrt(10)


@PROPERTY
@given(weights=weight_vectors())
def test_probabilities_are_resolved_to_31_bits(weights):
    thresholds = np.asarray(Categorical.from_weights(weights).thresholds, dtype=np.int64)
    shares = np.diff([0, *thresholds, 2**31]) / 2.0**31
    assert np.abs(shares - weights / weights.sum()).max() <= 1.001 * 2.0**-31


@PROPERTY
@given(weights=weight_vectors(), bits=st.lists(st.integers(0, LAST), max_size=20))
def test_what_weighs_nothing_is_never_drawn(weights, bits):
    sampler = Categorical.from_weights(weights)
    edges = [int(t) + shift for t in sampler.thresholds for shift in (-1, 0) if 0 <= int(t) + shift <= LAST]
    tried = np.resize([0, LAST, *edges, *bits], 50)  # one shape: one compilation
    drawn = np.asarray(sampler.pick(jnp.asarray(tried, jnp.uint32)))
    assert drawn.min() >= 0
    assert drawn.max() < len(weights)
    assert (weights[drawn] > 0).all()


def test_rows_after_the_last_positive_weight_are_never_drawn():
    # Ten tenths add up to less than one in floating point.
    sampler = Categorical.from_weights(np.array([0.1] * 10 + [0.0, 0.0]))
    assert int(sampler.pick(jnp.uint32(LAST))) == 9


# The first row adds up to less than one in floating point, and has fewer entries than the third.
RAGGED = np.array([[0.7, 0.2, 0.1, 0.0], [0.0, 0.0, 0.0, 1.0], [0.1, 0.2, 0.3, 0.4], [0.5, 0.0, 0.5, 0.0]])


def test_transitions_of_rows_with_few_entries_keep_to_them():
    sampler = Transitions.from_matrix(RAGGED)._replace(first=Categorical.from_weights(np.ones(4)))
    path = np.asarray(draw(sampler, jax.random.key(2), 3000))
    counts = np.zeros((4, 4))
    np.add.at(counts, (path[:-1], path[1:]), 1)
    visits = counts.sum(axis=1, keepdims=True)
    assert not counts[RAGGED == 0].any()
    assert (np.abs(counts / visits - RAGGED) <= 4.5 * np.sqrt(RAGGED * (1 - RAGGED) / visits)).all()


@pytest.mark.parametrize("bits", [0, LAST])
@pytest.mark.parametrize("state", range(4))
def test_transitions_keep_to_the_row_with_extreme_bits(monkeypatch, state, bits):
    monkeypatch.setattr("ergodrift.data.sampler.random_block", lambda key, number: jnp.full(BLOCK, bits, jnp.uint32))
    _, path = Transitions.from_matrix(RAGGED).block((jax.random.key(0), jnp.int32(state)), jnp.int32(0))
    path = np.asarray(path)
    assert path[0] == state
    assert (RAGGED[path[:-1], path[1:]] > 0).all()


@pytest.mark.parametrize(
    "sampler",
    [
        Categorical.from_weights(np.array([0.2, 0.5, 0.3])),
        Transitions.from_matrix(RAGGED)._replace(first=Categorical.from_weights(np.ones(4))),
        InOrder(),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_a_longer_draw_begins_with_the_shorter_one(sampler):
    short, long = (np.asarray(draw(sampler, jax.random.key(3), blocks)) for blocks in (2, 5))
    assert long.shape == (5 * BLOCK,)
    np.testing.assert_array_equal(long[: 2 * BLOCK], short)


def test_a_block_of_independent_draws_needs_no_other_block():
    sampler = Categorical.from_weights(np.array([0.2, 0.5, 0.3]))
    key = jax.random.key(4)
    _, third = sampler.block(key, jnp.int32(2))
    np.testing.assert_array_equal(draw(sampler, key, 3)[2 * BLOCK :], third)


def test_blocks_differ_from_each_other():
    blocks = np.asarray(draw(Categorical.from_weights(np.ones(1000)), jax.random.key(5), 50)).reshape(50, BLOCK)
    assert len({tuple(block) for block in blocks}) == 50


def test_in_order_counts_up():
    np.testing.assert_array_equal(draw(InOrder(), jax.random.key(6), 3), np.arange(3 * BLOCK))


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_replay_gives_back_every_entry_of_a_path(length):
    paths = np.random.default_rng(7).integers(0, 9, size=(2, length))
    filled, blocks = padded(paths), -(-length // BLOCK)
    assert filled.shape == (2, blocks * BLOCK)
    stream = Replay(TableStream(InOrder(), np.arange(9)))
    for row, path in zip(filled, paths, strict=True):
        replayed = np.asarray(draw(stream, row, blocks))
        np.testing.assert_array_equal(replayed[:length], path)
        assert (replayed[length:] == path[-1]).all()


def test_samplers_side_by_side_draw_what_they_draw_alone():
    coin, die = Categorical.from_weights(np.ones(2)), Categorical.from_weights(np.ones(6))
    streams = tuple(TableStream(sampler, None) for sampler in (coin, die, InOrder()))
    keys = jax.random.split(jax.random.key(8), 3)
    together = draw(Paired(streams), jax.random.key(8), 4)
    alone = draw(coin, keys[0], 4), draw(die, keys[1], 4), np.arange(4 * BLOCK)
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_array_equal(a, b)


def test_draws_are_the_same_in_float32_and_under_strict_promotion():
    sampler = Categorical.from_weights(np.array([0.2, 0.5, 0.3]))
    wide = np.asarray(draw(sampler, jax.random.key(9), 20))
    with jax.enable_x64(False), jax.numpy_dtype_promotion("strict"):
        narrow = np.asarray(draw(sampler, jax.random.key(9), 20))
    np.testing.assert_array_equal(narrow, wide)
