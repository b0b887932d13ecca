"""Uniform, polynomial and suffix averages, from the points themselves."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import cases
import ergodrift as ed
from digits import rounded

DATA = cases.random_data(np.random.default_rng(0), num_states=3, dimension=3, pairs=1)
SOURCE = ed.IIDSource(DATA)
PROBLEM = ed.Problem(cases.loss, cases.constraints, ed.Ball(0.75))
X0 = jnp.array([0.5, -0.5, 0.0])
SAMPLES = 700


def run(algorithm, average, samples=SAMPLES, x0=X0):
    record = np.arange(samples + 1)
    return ed.run(algorithm, PROBLEM, SOURCE, x0=x0, num_samples=samples, record=record, average=average)


def points(result):
    """x_1, x_2, ... of the finished rounds: x as it stood before each round was finished."""
    rounds = np.asarray(result.rounds)[0]
    done = np.flatnonzero(np.diff(rounds)) + 1
    return np.asarray(result.x)[0, done - 1], rounds


def suffix_start(taken):
    """The largest 64 2^j that leaves more than half of the samples; 0 before there is one."""
    starts = [64 * 2**j for j in range(10) if 2 * 64 * 2**j < taken]
    return max(starts, default=0)


@pytest.mark.parametrize(
    ("algorithm", "average"),
    [
        *[(ed.edpp(3.0), "uniform"), (ed.edpp(3.0), ("polynomial", 1)), (ed.edpp(3.0), "suffix")],
        *[(ed.mdpp(1.0), ("polynomial", 0)), (ed.mdpp(1.0), ("polynomial", 4)), (ed.mdpp(1.0), "suffix")],
    ],
)
def test_the_mean_is_the_weighted_mean_of_the_points(algorithm, average):
    result = run(algorithm, average)
    xs, rounds = points(result)
    for taken in [0, 1, 5, 63, 64, 65, 127, 128, 129, 200, 256, 257, 512, 640, SAMPLES]:
        count = rounds[taken]
        weights = np.arange(1.0, count + 1) ** (average[1] if isinstance(average, tuple) else 0)
        if average == "suffix":
            weights[: rounds[suffix_start(taken)]] = 0
        expected = np.average(xs[:count], axis=0, weights=weights) if weights.sum() else np.asarray(result.x)[0, taken]
        np.testing.assert_allclose(
            result.x_mean[0, taken], expected, rtol=max(1e-10, rounded(1e-13)), atol=rounded(1e-14)
        )
    np.testing.assert_array_equal(result.solution, result.x_mean[:, -1])


def test_the_points_themselves_do_not_depend_on_the_average():
    one, other = run(ed.edpp(3.0), "uniform"), run(ed.edpp(3.0), "suffix")
    np.testing.assert_array_equal(one.x, other.x)
    assert not np.array_equal(one.x_mean, other.x_mean)


def test_an_algorithm_recommends_its_own():
    np.testing.assert_array_equal(run(ed.rdpp(), None).x_mean, run(ed.rdpp(), ("polynomial", 3)).x_mean)
    np.testing.assert_array_equal(run(ed.edpp(3.0), None).x_mean, run(ed.edpp(3.0), "uniform").x_mean)


@pytest.mark.parametrize("average", ["uniform", ("polynomial", 4), "suffix"])
def test_float32_means_keep_their_digits(average):
    narrow = run(ed.edpp(3.0), average, x0=X0.astype(jnp.float32))
    xs, rounds = points(narrow)
    weights = np.arange(1.0, rounds[-1] + 1) ** (average[1] if isinstance(average, tuple) else 0)
    if average == "suffix":
        weights[: suffix_start(SAMPLES)] = 0
    np.testing.assert_allclose(narrow.solution[0], np.average(xs, axis=0, weights=weights), rtol=5e-6)


@pytest.mark.parametrize("average", ["last", ("polynomial", -1), ("polynomial", 5), ("polynomial", 1.5), 3])
def test_what_is_not_an_average_is_refused(average):
    with pytest.raises((ValueError, TypeError), match="average"):
        run(ed.edpp(3.0), average)
