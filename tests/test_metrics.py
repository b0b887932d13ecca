import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from ergodrift import metrics
from ergodrift.data.expectation import expectations

CHAIN = ed.MarkovChain([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.0, 0.3, 0.7]])
DATA = {"c": np.array([[2.0, 1.0], [0.0, 3.0], [1.0, -1.0]]), "e": np.array([0.5, -0.25, -0.5])}
SOURCE = ed.MarkovSource(CHAIN, DATA)


def loss(x, xi):
    return jnp.sum((x - xi["c"]) ** 2)


def constraints(x, xi):
    return jnp.stack([x[0] + x[1] - 1 + xi["e"], x[0] - 3])


PROBLEM = ed.Problem(loss, constraints, ed.Ball(4.0))
REFERENCE = ed.solve_reference(PROBLEM, SOURCE)
RESULT = ed.run(ed.edpp(7.0), PROBLEM, SOURCE, x0=np.zeros(2), num_samples=600, seeds=[4, 8], record=[0, 1, 250, 600])


def mean_loss(x):
    return sum(mu * np.sum((x - c) ** 2) for mu, c in zip(CHAIN.stationary, DATA["c"], strict=True))


def mean_constraints(x):
    return np.array([x[0] + x[1] - 1 + CHAIN.stationary @ DATA["e"], x[0] - 3])


@pytest.mark.x64("its digits are those of float64")
@pytest.mark.parametrize("point", ["x", "x_mean"])
def test_gap_infeasibility_and_lagrangian_gap_are_what_they_are_defined_to_be(point):
    quality = metrics.evaluate(RESULT, PROBLEM, SOURCE, REFERENCE, point)
    for seed, record in np.ndindex(2, 4):
        x = np.asarray(getattr(RESULT, point))[seed, record]
        gap, over = mean_loss(x) - mean_loss(REFERENCE.x), mean_constraints(x)
        np.testing.assert_allclose(quality.gap[seed, record], gap, atol=1e-12)
        np.testing.assert_allclose(quality.infeasibility[seed, record], over, atol=1e-12)
        expected = gap + REFERENCE.multipliers @ over
        np.testing.assert_allclose(quality.lagrangian_gap[seed, record], expected, atol=1e-12)
    assert (quality.lagrangian_gap >= -1e-9).all()
    np.testing.assert_array_equal(metrics.optimality_gap(RESULT, PROBLEM, SOURCE, REFERENCE, point), quality.gap)
    np.testing.assert_array_equal(metrics.infeasibility(RESULT, PROBLEM, SOURCE, point), quality.infeasibility)
    lagrangian = metrics.lagrangian_gap(RESULT, PROBLEM, SOURCE, REFERENCE, point)
    np.testing.assert_array_equal(lagrangian, quality.lagrangian_gap)


@pytest.mark.x64("its digits are those of float64")
def test_violation_is_the_sum_of_the_constraints_met_on_the_way():
    """A run recorded at every sample gives each x_t; the sums are then added up by hand."""
    full = ed.run(ed.edpp(7.0), PROBLEM, SOURCE, x0=np.zeros(2), num_samples=600, seeds=[4, 8], record=np.arange(601))
    paths = np.asarray(SOURCE.paths([4, 8], 600))
    for seed in range(2):
        met = [
            constraints(x, {k: v[s] for k, v in DATA.items()}) for x, s in zip(full.x[seed], paths[seed], strict=False)
        ]
        np.testing.assert_allclose(metrics.violation(RESULT)[seed, -1], np.sum(met, axis=0), rtol=1e-10)


@pytest.mark.x64("its digits are those of float64")
def test_regret_is_against_the_best_point_for_the_realised_losses():
    regret = metrics.regret(RESULT, PROBLEM, SOURCE)
    paths = np.asarray(SOURCE.paths([4, 8], 600))
    for seed in range(2):
        counts = np.bincount(paths[seed], minlength=3)
        # the realised sum of squares is smallest at the mean of the realised centres, moved onto the half-space
        centre = counts @ DATA["c"] / counts.sum()
        excess = mean_constraints(centre)[0]
        best = centre - max(excess, 0) / 2
        losses = np.array([np.sum((best - DATA["c"][s]) ** 2) for s in paths[seed]])
        for record, samples in enumerate([0, 1, 250, 600]):
            expected = RESULT.loss_sum[seed, record] - losses[:samples].sum()
            np.testing.assert_allclose(regret[seed, record], expected, atol=1e-6)


def test_the_regret_benchmark_is_not_the_stationary_optimum():
    for benchmark in metrics.benchmarks(RESULT, PROBLEM, SOURCE):
        assert np.abs(benchmark.x - REFERENCE.x).max() > 1e-3


def test_regret_of_a_replayed_path_uses_that_path():
    paths = np.asarray(SOURCE.paths([4, 8], 600))
    replayed = ed.run(ed.edpp(7.0), PROBLEM, SOURCE, x0=np.zeros(2), num_samples=600, seeds=2, paths=paths, record=4)
    np.testing.assert_allclose(
        metrics.regret(replayed, PROBLEM, SOURCE)[:, -1], metrics.regret(RESULT, PROBLEM, SOURCE)[:, -1], atol=1e-8
    )


@pytest.mark.x64("its digits are those of float64")
def test_regret_counts_every_sample_of_an_mlmc_round():
    result = ed.run(ed.mdpp(), PROBLEM, SOURCE, x0=np.zeros(2), num_samples=500, record=[500])
    comparator = metrics.benchmarks(result, PROBLEM, SOURCE)[0]
    losses = [loss(comparator.x, {k: v[s] for k, v in DATA.items()}) for s in np.asarray(SOURCE.paths([0], 500))[0]]
    np.testing.assert_allclose(
        metrics.regret(result, PROBLEM, SOURCE)[0, 0], result.loss_sum[0, 0] - np.sum(losses), rtol=1e-9
    )


def test_a_wrong_number_of_comparators_is_refused():
    with pytest.raises(ValueError, match="comparators: 1 given for 2 seeds"):
        metrics.regret(RESULT, PROBLEM, SOURCE, [REFERENCE])


def test_an_unknown_point_is_refused():
    with pytest.raises(ValueError, match="point must be one of 'x_mean', 'x', got 'last'"):
        metrics.evaluate(RESULT, PROBLEM, SOURCE, REFERENCE, "last")


def test_summary_of_a_hand_worked_table():
    summary = metrics.summarise(np.array([[1.0, 2.0], [3.0, 2.0], [5.0, 2.0]]))
    np.testing.assert_allclose(summary.mean, [3, 2])
    np.testing.assert_allclose(summary.std, [2, 0])
    np.testing.assert_allclose(summary.standard_error, [2 / np.sqrt(3), 0])
    np.testing.assert_allclose(summary.low, [1.4, 2])
    np.testing.assert_allclose(summary.high, [4.6, 2])
    assert metrics.summarise(np.ones((1, 2))).std.tolist() == [0, 0]


def test_metrics_of_a_float32_run_are_computed_in_float64():
    with jax.enable_x64(False):
        narrow = jax.tree.map(lambda leaf: leaf.astype(np.float32), DATA)
        source = ed.MarkovSource(CHAIN, narrow)
        result = ed.run(ed.edpp(7.0), PROBLEM, source, x0=np.zeros(2, np.float32), num_samples=100, record=2)
        quality = metrics.evaluate(result, PROBLEM, source, REFERENCE)
    assert result.x.dtype == jnp.float32
    assert quality.gap.dtype == np.float64
    x = np.asarray(result.x_mean, dtype=np.float64)[0, -1]
    np.testing.assert_allclose(quality.gap[0, -1], mean_loss(x) - REFERENCE.value, atol=1e-13)


def test_expectations_at_one_point_and_over_a_law_longer_than_a_batch():
    series = ed.SeriesSource(np.arange(1000.0))
    problem = ed.Problem(lambda x, xi: x[0] * xi, lambda x, xi: jnp.stack([x[0] - xi, xi]), ed.Ball(1.0))
    value, over = expectations(problem, series, np.array([2.0]))
    np.testing.assert_allclose(value, 999.0)
    np.testing.assert_allclose(over, [2 - 499.5, 499.5])


def test_a_reference_for_every_sample_has_no_lagrangian_gap():
    every = ed.solve_reference(PROBLEM, SOURCE, per_sample=True)
    with pytest.raises(ValueError, match="reference was solved with per_sample=True"):
        metrics.evaluate(RESULT, PROBLEM, SOURCE, every)
