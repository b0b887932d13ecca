from __future__ import annotations

import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import cases
import ergodrift as ed
from digits import rounded
from ergodrift.methods.estimator import MultiLevel, Prefetched, SingleSample, draw_level, mean_samples

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "golden.json").read_text())


def blank(num_constraints: int = 2) -> ed.Feedback:
    n = num_constraints
    return ed.Feedback(jnp.zeros(()), jnp.zeros(3), jnp.zeros(n), jnp.zeros((n, 3)))


@jax.jit
def fold(estimator: Any, levels: Any, samples: ed.Feedback) -> tuple[Any, Any]:
    """Feed all samples in; one row a sample: the estimate so far and whether it is complete."""
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), samples)

    def one(carry: Any, sample: Any) -> Any:
        window, t = carry
        window, estimate, complete = estimator.observe(window, t, sample)
        return (window, t + jnp.asarray(complete, t.dtype)), (estimate, complete)

    return jax.lax.scan(one, (estimator.init(zero, levels), jnp.int32(0)), samples)[1]


def samples_of(values: np.ndarray) -> ed.Feedback:
    """A feedback for each entry, with the entry (times distinct numbers) in every field."""
    zero = blank()
    return jax.tree.map(
        lambda leaf: jnp.asarray(values.reshape(-1, *[1] * leaf.ndim) * (1 + np.arange(leaf.size).reshape(leaf.shape))),
        zero,
    )


def estimate(level: int, samples: ed.Feedback, cap: int) -> ed.Feedback:
    """The estimate from a window of this level, checked to be complete exactly at its last sample."""
    estimates, complete = fold(MultiLevel.with_cap(cap), jnp.array([level]), samples)
    size = 2**level if 2**level <= cap else 1
    np.testing.assert_array_equal(complete, np.arange(1, len(complete) + 1) == size)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[size - 1], estimates)


@pytest.mark.parametrize("max_level", [0, 1, 2, 4, 6])
def test_the_levels_of_one_window_telescope_to_its_mean(max_level):
    size = 2**max_level

    @settings(cases.deterministic, max_examples=10)
    @given(st.lists(st.integers(-1000, 1000), min_size=size, max_size=size))
    def check(values):
        # Whole numbers and powers of two: every sum is exact, and so is the identity.
        samples = samples_of(np.array(values, float))
        expectation = jax.tree.map(lambda leaf: 2.0**-max_level * np.asarray(leaf[0]), samples)  # levels above: N = 1
        for level in range(1, max_level + 1):
            term = estimate(level, samples, cap=size)
            expectation = jax.tree.map(lambda a, b, level=level: a + 2.0**-level * b, expectation, term)
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, np.mean(b, axis=0)), expectation, samples)

    check()


@pytest.mark.parametrize("case", GOLDEN["mlmc_weights"], ids=lambda case: f"N={len(case['chunk'])}")
def test_weights_of_the_states_in_a_window(case):
    chunk = np.array(case["chunk"])
    level = int(np.log2(len(chunk))) or 9  # one sample is what a level above the cap takes
    one_hot = jnp.eye(3)[chunk]
    samples = ed.Feedback(jnp.zeros(len(chunk)), one_hot, one_hot, jnp.zeros((len(chunk), 3, 3)))
    result = estimate(level, samples, cap=16)
    np.testing.assert_array_equal(result.constraints, case["weights"])
    np.testing.assert_array_equal(result.loss_grad, case["weights"])


@pytest.mark.parametrize(("cap", "name"), [(16, "cap16"), (25_000**2, "capT2_T25000")])
def test_mean_number_of_samples(cap, name):
    assert mean_samples(cap) == GOLDEN["mean_N"][name]


@pytest.mark.parametrize("cap", [1, 2, 3, 7, 8, 1000])
def test_mean_number_of_samples_sums_over_the_levels(cap):
    # 2^j with probability 2^-j while 2^j <= cap, else 1.
    expected = sum(2.0**-j * (2**j if 2**j <= cap else 1) for j in range(1, 200))
    assert mean_samples(cap) == pytest.approx(expected, rel=1e-12)


@pytest.fixture(scope="module")
def drawn() -> np.ndarray:
    """Levels of 20,000 rounds for each of four keys."""
    keys = jax.vmap(jax.random.key)(jnp.arange(4))
    return np.asarray(jax.vmap(lambda key: jax.vmap(lambda t: draw_level(key, t))(jnp.arange(20_000)))(keys))


def test_levels_are_geometric(drawn):
    # Levels 1..9 and the rest; 80,000 draws leave at least 156 expected in each class.
    observed = np.bincount(np.minimum(drawn.ravel(), 10), minlength=11)[1:]
    expected = drawn.size * 2.0 ** -np.array([*range(1, 10), 9])
    assert drawn.min() == 1
    statistic = np.sum((observed - expected) ** 2 / expected)
    assert statistic < scipy.stats.chi2.ppf(0.999, df=9)


def test_levels_of_consecutive_rounds_are_independent(drawn):
    table = np.zeros((4, 4))
    np.add.at(table, (np.minimum(drawn[:, :-1], 4) - 1, np.minimum(drawn[:, 1:], 4) - 1), 1)
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    statistic = np.sum((table - expected) ** 2 / expected)
    assert statistic < scipy.stats.chi2.ppf(0.999, df=9)


def test_rounds_use_as_many_samples_as_the_law_says(drawn):
    estimator = MultiLevel.with_cap(16)
    levels = jnp.asarray(drawn.ravel())
    lengths = np.asarray(jax.vmap(lambda t: estimator.length(levels, t))(jnp.arange(len(levels), dtype=jnp.int32)))
    np.testing.assert_array_equal(np.unique(lengths), [1, 2, 4, 8, 16])
    error = np.std(lengths) / np.sqrt(len(lengths))
    assert abs(np.mean(lengths) - 4.0625) < 4 * error
    assert error < 0.02


@pytest.mark.parametrize("cap", [4, 5, 7])
def test_a_cap_between_two_powers_of_two_acts_as_the_smaller(cap):
    values = np.arange(1.0, 9.0)
    # f^1 + 4 (f^4 - f^2) = 1 + 4 (2.5 - 1.5) = 5, and level 3, which would need 8, gives the first sample.
    assert estimate(2, samples_of(values), cap).loss == 5
    assert estimate(3, samples_of(values), cap).loss == 1


def test_levels_that_are_used_up_hold_the_window_open():
    samples = samples_of(np.arange(1.0, 31.0))
    _, complete = fold(MultiLevel.with_cap(16), jnp.array([1, 9, 2]), samples)
    # Two samples, one (level 9 is above the cap), four; then no round ends any more.
    np.testing.assert_array_equal(np.flatnonzero(complete), [1, 2, 6])


@pytest.mark.parametrize("level", [31, 32, 33])
def test_a_window_too_long_to_count_never_ends(level):
    # Nothing may overflow: 2^31 samples do not fit an int32.
    _, complete = fold(MultiLevel.with_cap(2**40), jnp.array([level, 1]), samples_of(np.ones(50)))
    assert not np.asarray(complete).any()


def test_windows_follow_each_other_without_a_gap():
    rng = np.random.default_rng(0)
    values, levels = rng.normal(size=200), rng.geometric(0.5, size=200)
    estimates, complete = fold(MultiLevel.with_cap(8), jnp.asarray(levels), samples_of(values))
    ends, position = [], 0
    for level in levels:
        N = 2**level if level <= 3 else 1
        window = values[position : position + N]
        position += N
        if position > len(values):
            break
        expected = window[0] + (N * (window.mean() - window[: N // 2].mean()) if N > 1 else 0)
        assert float(estimates.loss[position - 1]) == pytest.approx(expected, abs=rounded(1e-12))
        ends.append(position - 1)
    np.testing.assert_array_equal(np.flatnonzero(complete), ends)


@pytest.mark.parametrize("every", [1, 7, 64])
def test_prefetched_levels_are_those_of_the_key(every):
    # They are drawn in the middle of windows too, as the compiled loop does at the end of a block.
    estimator, key = MultiLevel.with_cap(16), jax.random.key(5)

    @jax.jit
    def complete_at(count: Any) -> Any:
        def one(carry: Any, position: Any) -> Any:
            window, t = carry
            window = jax.lax.cond(position % every == 0, lambda w: estimator.prefetch(w, t, every), lambda w: w, window)
            window, _, complete = estimator.observe(window, t, blank())
            return (window, t + jnp.asarray(complete, t.dtype)), (complete, estimator.pending(window))

        window = estimator.prefetch(estimator.init(blank(), key), jnp.int32(0), every)
        return jax.lax.scan(one, (window, jnp.int32(0)), count)[1]

    complete, pending = complete_at(jnp.arange(500))
    levels = np.asarray(jax.vmap(lambda t: draw_level(key, t))(jnp.arange(500)))
    ends = np.cumsum(np.where(levels <= 4, 2**levels, 1))
    np.testing.assert_array_equal(np.flatnonzero(complete) + 1, ends[ends <= 500])
    unfinished = [taken - max(ends[ends <= taken], default=0) for taken in range(1, 501)]
    np.testing.assert_array_equal(pending, unfinished)


def test_given_levels_are_prefetched_as_they_are_and_end():
    estimator = MultiLevel.with_cap(16)
    window = estimator.init(blank(), jnp.array([3, 1, 2]))
    ahead = estimator.prefetch(window, jnp.int32(1), 4)
    assert isinstance(ahead.levels, Prefetched)
    np.testing.assert_array_equal(ahead.levels.drawn, [1, 2, 0, 0, 0])
    for t in (1, 2, 3):
        assert estimator.length(ahead.levels, jnp.int32(t)) == estimator.length(window.levels, jnp.int32(t))


def test_given_levels_say_how_many_samples_they_take():
    levels = np.array([[1, 2, 4, 1], [5, 5, 1, 3]])  # 2 + 4 + 16 + 2 samples, and 1 + 1 + 2 + 8
    assert MultiLevel.with_cap(16).samples_for(levels) == 24
    assert MultiLevel.with_cap(16).samples_for(levels[1:]) == 12
    assert MultiLevel.with_cap(2**40).samples_for(np.full((1, 3), 30)) == 3 * 2**30
    with pytest.raises(ValueError, match="levels were given, but SingleSample"):
        SingleSample().samples_for(levels)


def test_single_samples_pass_through():
    estimator, sample = SingleSample(), blank()
    window, feedback, complete = estimator.observe(estimator.init(blank(), None), jnp.int32(0), sample)
    assert feedback is sample
    assert complete
    assert estimator.pending(window) == 0
    assert estimator.for_run(100, None) is estimator


@pytest.mark.parametrize("num_samples", [1, 2, 4, 5, 17, 100, 1000, 25_000])
def test_the_cap_of_theory_fits_the_most_rounds_into_the_samples(num_samples):
    def mean(cap: int) -> float:
        level = max(j for j in range(100) if 2**j <= cap)
        return sum(2.0**-j * 2**j for j in range(1, level + 1)) + 2.0**-level

    rounds = max(T for T in range(1, num_samples + 1) if T == 1 or T * mean(T**2) <= num_samples)
    expected = max(j for j in range(100) if 2**j <= rounds**2)
    assert MultiLevel.with_cap(None).for_run(num_samples, None).max_level == expected


@pytest.mark.parametrize(("rounds", "max_level"), [(1, 0), (2, 2), (3, 3), (10, 6), (25_000, 29)])
def test_the_cap_of_theory_is_the_square_of_the_rounds_where_they_are_known(rounds, max_level):
    assert MultiLevel.with_cap(None).for_run(10**6, rounds).max_level == max_level


def test_a_cap_from_the_caller_stays():
    assert MultiLevel.with_cap(16).for_run(10**6, 500).max_level == 4


def test_the_cap_of_theory_cannot_be_guessed_by_a_single_round():
    with pytest.raises(ValueError, match=r"cap=None stands for T\^2: pass a cap"):
        MultiLevel.with_cap(None).init(blank(), jax.random.key(0))


@pytest.mark.parametrize("given", [[2, 9, 1], np.array([2, 9, 1]), jnp.array([2, 9, 1])], ids=["list", "numpy", "jax"])
def test_levels_may_be_any_array(given):
    window = MultiLevel.with_cap(16).init(blank(), given)
    assert int(window.length) == 4


@pytest.mark.parametrize(
    "levels",
    [
        jax.random.PRNGKey(3),  # two whole numbers, but not levels: no round would ever end
        jnp.array([0, 1]),
        jnp.array([-1, 1]),
        jnp.array([1.0, 2.0]),
        5,
    ],
    ids=["raw key", "zero", "negative", "floats", "scalar"],
)
def test_what_cannot_be_levels_is_refused(levels):
    with pytest.raises(
        ValueError, match=r"levels must be a jax\.random\.key, or whole numbers >= 1, one per round; got"
    ):
        MultiLevel.with_cap(16).init(blank(), levels)


def test_levels_must_come_from_somewhere():
    with pytest.raises(ValueError, match="levels"):
        MultiLevel.with_cap(16).init(blank(), None)


@pytest.mark.parametrize(
    ("cap", "error", "message"),
    [
        (0, ValueError, "cap must be between 1 and .*, got 0"),
        (-4, ValueError, "cap must be between 1 and .*, got -4"),
        (2.5, TypeError, "cap must be a whole number, got 2.5"),
        ("16", TypeError, "cap must be a whole number, got '16'"),
    ],
)
def test_a_cap_that_is_no_positive_whole_number_is_refused(cap, error, message):
    with pytest.raises(error, match=message):
        MultiLevel.with_cap(cap)
