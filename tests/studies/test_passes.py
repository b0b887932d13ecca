"""The study of passes: its truth is that of the law which its records are drawn from."""

import numpy as np
import pytest
import scipy.optimize

from studies import passes


def test_the_optimum_under_the_law_has_no_gap_and_all_others_have():
    found = scipy.optimize.minimize(
        lambda x: np.sum((x - passes.WEIGHTS) ** 2) / 2,
        np.zeros(passes.SIZE),
        constraints=[{"type": "ineq", "fun": lambda x: passes.LIMIT - x.sum()}],
        tol=1e-12,
    )
    assert passes.truth_gap(found.x) == pytest.approx(0, abs=1e-9)
    points = np.random.default_rng(0).normal(size=(100, passes.SIZE))
    assert min(map(passes.truth_gap, points)) > 0


def test_records_have_the_moments_that_the_truth_is_worked_out_from():
    data = [passes.record(seed) for seed in range(40)]
    worth = 40 * passes.ROWS / (2 * passes.TAU - 1)
    means = np.mean([one["c"].mean(axis=0) for one in data], axis=0)
    assert np.abs(means - 1).max() < 4.5 * 0.5 / np.sqrt(worth)
    moments = np.mean([one["a"].T @ one["a"] / passes.ROWS for one in data], axis=0)
    assert np.abs(moments - np.eye(passes.SIZE)).max() < 4.5 * np.sqrt(2 / worth)
    noise = np.mean(
        [np.mean((one["b"] - one["a"] @ passes.WEIGHTS)[:, None] * one["a"], axis=0) for one in data], axis=0
    )
    assert np.abs(noise).max() < 4.5 / np.sqrt(worth)
