"""The rules of the others: rounds by hand, averages by a Python loop, and the libraries themselves."""

import numpy as np
import pytest

import ergodrift as ed
from ergodrift.peers import libraries, rules
from ergodrift.peers.baselines import DEFAULTS, scale
from ergodrift.peers.descent import follow
from ergodrift.peers.rival import Trial
from ergodrift.peers.rules import Steps
from small_task import small

pytestmark = pytest.mark.x64("numbers are worked out by hand, and compared with libraries to rounding")

# f = |x - xi|^2 and g = x_0 - 0.3 on a ball that nothing leaves; xi = (1, 0), then (0, 1), then (1, 0).
PATH = np.array([[0, 1, 0]], np.int32)


def points(rule, steps, stops=(1, 2)):
    task = small()
    return follow(rule, task.problem, task.source, task.x0, PATH, [steps], np.array(stops))[0, 0]


def test_descent_ascent_by_hand():
    found = points(rules.DESCENT_ASCENT, Steps(0.25, 1.0), (1, 2, 3))
    # x_1 = (0, 0), grad (-2, 0), g = -0.3: x_2 = (0.5, 0), multiplier 0.
    # grad (1, -2), g = 0.2: x_3 = (0.25, 0.5), multiplier 0.2.
    # grad (-1.5, 1) + 0.2 (1, 0) = (-1.3, 1): x_4 = (0.575, 0.25).
    np.testing.assert_allclose(found[:, 0], [[0.5, 0.0], [0.25, 0.5], [0.575, 0.25]], atol=1e-15)
    # The averages are of x_1, x_2, x_3, where the samples came.
    np.testing.assert_allclose(found[:, 1], [[0, 0], [0.25, 0], [0.25, 0.5 / 3]], atol=1e-15)
    np.testing.assert_allclose(found[:, 2], [[0, 0], [1 / 3, 0], [1.75 / 6, 0.25]], atol=1e-15)


def test_decaying_steps_are_divided_by_sqrt_t():
    found = points(rules.DESCENT_ASCENT, Steps(0.25, 1.0, 0.5))
    np.testing.assert_allclose(found[1, 0], np.array([0.5, 0]) - 0.25 / np.sqrt(2) * np.array([1, -2]), atol=1e-15)


def test_adam_by_hand():
    found = points(rules.ADAM_ASCENT, Steps(0.1, 1.0))
    # The first step of Adam has length 0.1 in each coordinate that moves: gradient -2 and 0.
    np.testing.assert_allclose(found[0, 0], [0.1, 0], atol=1e-9)
    # Then gradient (0.2, -2), no multiplier yet: means 0.9 (-0.2) + 0.02 and -0.2 over 0.19, squares likewise.
    mean, square = np.array([0.9 * -0.2 + 0.02, -0.2]) / 0.19, np.array([0.999 * 0.004 + 0.00004, 0.004]) / 0.001999
    np.testing.assert_allclose(found[1, 0], np.array([0.1, 0]) - 0.1 * mean / np.sqrt(square), atol=1e-8)


def test_the_others_by_hand():
    # Switching: g = -0.3, so a step of Adam on the loss; at x_0 = 0.4 the constraint is violated, a step on it.
    found = points(rules.SSG, Steps(0.4, 0.0))
    mean, square = (0.9 * -0.2 + 0.1) / 0.19, (0.999 * 0.004 + 0.001) / 0.001999
    np.testing.assert_allclose(found[1, 0], [0.4 - 0.4 * mean / np.sqrt(square), 0], atol=1e-8)
    # Smoothing: the first step is Adam's; the centre stays at x_1 for it.
    np.testing.assert_allclose(points(rules.SSL_ALM, Steps(0.1, 1.0))[0, 0], [0.1, 0], atol=1e-9)
    # Barrier: multipliers start at 1e-9, so the first step is that of the loss.
    np.testing.assert_allclose(points(rules.SPBM, Steps(0.1, 0.0))[0, 0], [0.1, 0], atol=1e-9)


def test_points_are_projected_and_settings_and_seeds_do_not_mix():
    task = small()
    paths = np.array([[0, 0, 0, 0], [1, 1, 1, 1]], np.int32)
    steps = [Steps(0.25, 1.0), Steps(100.0, 1.0)]
    both = follow(rules.DESCENT_ASCENT, task.problem, task.source, task.x0, paths, steps, np.array([4]))
    for k, setting in enumerate(steps):
        for seed in range(2):
            alone = follow(
                rules.DESCENT_ASCENT, task.problem, task.source, task.x0, paths[seed : seed + 1], [setting], [4]
            )
            np.testing.assert_array_equal(both[k, seed], alone[0, 0])
    assert np.linalg.norm(both[..., 0, :], axis=-1).max() <= 2 + 1e-12


def test_the_scale_of_steps_has_their_units():
    """A unit c of x, a factor a of the loss and b of the constraints: c^2 / a for descent, a / b^2 for ascent."""
    plain = scale(Trial.of(small(), 2))
    import dataclasses

    task = small()
    c, a, b = 10.0, 3.0, 7.0
    problem = ed.Problem(
        lambda x, xi: a * task.problem.loss(x / c, xi),
        lambda x, xi: b * task.problem.constraints(x / c, xi),
        ed.Ball(2 * c),
    )
    best = task.optimum()
    other = dataclasses.replace(
        task, problem=problem, solve=lambda: best._replace(x=best.x * c, multipliers=best.multipliers * a / b)
    )
    found = scale(Trial.of(other, 2))
    np.testing.assert_allclose(found, [plain.primal * c**2 / a, plain.dual * a / b**2, plain.adam * c], rtol=1e-9)


TWINS = [
    (rules.ADAM_ASCENT, libraries.cooper, "cooper"),
    (rules.SSL_ALM, libraries.humane("SSL-ALM"), "humancompatible.train"),
    (rules.SSG, libraries.humane("SSG"), "humancompatible.train"),
    (rules.SPBM, libraries.humane("SPBM"), "humancompatible.train"),
]


@pytest.mark.parametrize(("rule", "prepare", "package"), TWINS, ids=["Cooper", "SSL-ALM", "SSG", "SPBM"])
def test_twins_do_what_their_libraries_do(rule, prepare, package):
    pytest.importorskip("torch", reason="pip install -r requirements-peers.txt")
    pytest.importorskip(package, reason="pip install -r requirements-peers.txt")
    trial = Trial.of(small(), 1)
    for steps in (DEFAULTS, Steps(0.1, 0.3)):  # the second reaches the constraint, and goes on
        theirs, seconds = libraries.by_library(trial, prepare, steps, 120)
        twin = follow(rule, trial.task.problem, trial.task.source, trial.task.x0, trial.paths, [steps], [120])
        np.testing.assert_allclose(twin[0, 0, 0, 0], theirs, rtol=1e-9)
        assert seconds > 0
