"""The fairness problem and its synthetic data."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

import ergodrift as ed
from digits import rounded
from ergodrift import Problem, metrics
from ergodrift.problems import fairness, synthetic

ROWS = synthetic(3, points=60)
UNEVEN = [np.delete(column, slice(0, 37), axis=0) for column in ROWS]  # the first state has fewer rows


def by_hand(x, rows, limit, state):
    """f_j, g_j and h_j as section 5 writes them, row by row."""
    X, y, z, states = rows
    held = states == state
    score = X[held] @ x[:2] + x[2]
    covariance = np.mean((z[held] - z.mean()) * score)
    return np.mean(np.log1p(np.exp(-y[held] * score))), np.array([covariance - limit, -covariance - limit])


@pytest.mark.parametrize("rows", [ROWS, UNEVEN], ids=["equal", "uneven"])
def test_loss_and_constraints_are_the_papers(rows):
    problem, data, _ = fairness(*rows, limit=0.3)
    x = np.array([0.4, -1.2, 0.3])
    for state in range(3):
        xi = jax.tree.map(lambda leaf, state=state: leaf[state], data)
        loss, constraints = by_hand(x, rows, 0.3, state)
        np.testing.assert_allclose(problem.loss(x, xi), loss, rtol=rounded(1e-12))
        np.testing.assert_allclose(problem.constraints(x, xi), constraints, rtol=rounded(1e-12))


@pytest.mark.parametrize("rows", [ROWS, UNEVEN], ids=["equal", "uneven"])
@pytest.mark.parametrize("scale", [0.0, 1.0, 300.0])  # at 300 a naive exponential overflows
def test_the_written_out_derivatives_agree_with_automatic_ones(rows, scale):
    problem, data, _ = fairness(*rows)
    plain = Problem(problem.loss, problem.constraints, problem.geometry)
    x = scale * jnp.array([0.4, -1.2, 0.3])
    for state in range(3):
        xi = jax.tree.map(lambda leaf, state=state: jnp.asarray(leaf[state]), data)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=max(1e-11, rounded(1e-13)), atol=rounded(1e-13)),
            problem.feedback(x, xi),
            plain.feedback(x, xi),
        )


def test_the_bounds_hold_everywhere_on_the_ball():
    problem, data, bounds = fairness(*ROWS, limit=0.5, radius=5.0)
    rng = np.random.default_rng(0)
    for _ in range(200):
        x = rng.normal(size=3)
        x *= 5.0 * rng.random() ** (1 / 3) / np.linalg.norm(x)
        xi = jax.tree.map(lambda leaf: leaf[rng.integers(3)], data)
        feedback = problem.feedback(jnp.asarray(x), xi)
        assert np.linalg.norm(feedback.loss_grad) <= bounds.loss_grad
        assert np.linalg.norm(feedback.constraint_jac, axis=1).max() <= bounds.constraint_jac
        assert np.abs(feedback.constraints).max() <= bounds.constraints
    assert bounds.delta(10.0) == pytest.approx(
        bounds.loss_grad**2 / 4 + 200 * bounds.constraint_jac**2 + 2 * bounds.constraints**2
    )


def test_the_mean_of_the_sensitive_feature_is_shared_by_all_states():
    """Were it re-centred in each state, the covariance of a constant score would vanish there."""
    _, data, _ = fairness(*ROWS)
    assert np.abs(data.normals[:, 0, 2]).max() > 1e-3
    np.testing.assert_allclose(data.normals[:, 0, 2].mean(), 0, atol=1e-12)  # equal states: it does over all


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": ROWS.y[:5]}, "y must have one entry for each of the 360 rows of X, got shape (5,)"),
        ({"y": ROWS.z}, "y must hold -1 and 1 only"),
        ({"X": np.full((360, 2), np.nan)}, "X holds nan at index (0, 0)"),
        ({"X": ROWS.y}, "X must have shape (rows, features)"),
        ({"state": ROWS.state + 1}, "state must hold 0, 1, ..., S-1, each at least once"),
        ({"limit": 0.0}, "limit must be > 0, got 0.0"),
        ({"radius": -1.0}, "radius must be > 0, got -1.0"),
    ],
)
def test_bad_rows_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        fairness(**{**ROWS._asdict(), **change})


def test_the_clusters_have_their_means_and_covariances():
    rows = synthetic(0, points=20_000, angles=(90.0,), scale=2.0)
    for label, cov in [(1, [[5, 1], [1, 5]]), (-1, [[10, 1], [1, 3]])]:
        cluster = rows.X[rows.y == label]
        # Largest standard errors: sqrt(10 / 20,000) = 0.022 of a mean, 10 sqrt(2 / 20,000) = 0.1 of a covariance. The
        # tolerances are between four and five of them.
        np.testing.assert_allclose(cluster.mean(axis=0), label * np.array([-4.0, 4.0]), atol=0.1)
        np.testing.assert_allclose(np.cov(cluster.T), cov, atol=0.45)


def test_the_sensitive_feature_follows_its_law():
    """Among rows whose probability of z = 1 is near q, a share near q has z = 1."""
    rows = synthetic(1, points=20_000, angles=(0.0,), scale=1.0)
    turned = np.stack([-rows.X[:, 1], rows.X[:, 0]], axis=1)  # by +90 degrees
    normal: Any = multivariate_normal
    up = normal([2, 2], [[5, 1], [1, 5]]).pdf(turned)
    down = normal([-2, -2], [[10, 1], [1, 3]]).pdf(turned)
    probability = up / (up + down)
    for low in np.arange(0, 1, 0.1):
        chosen = (probability >= low) & (probability < low + 0.1)
        error = np.sqrt(0.25 / chosen.sum())
        assert abs(rows.z[chosen].mean() - probability[chosen].mean()) < 5 * error


def test_the_data_are_fixed_by_their_seed():
    jax.tree.map(np.testing.assert_array_equal, synthetic(5, points=10), synthetic(5, points=10))
    assert not np.array_equal(synthetic(5, points=10).X, synthetic(6, points=10).X)


def test_the_clusters_as_published_leave_the_constraint_inactive():
    problem, data, _ = fairness(*synthetic(0, angles=(0.0, 0.0, 0.0), scale=1.0))
    source = ed.MarkovSource(ed.MarkovChain(np.full((3, 3), 1 / 3)), data)
    reference = ed.solve_reference(problem, source, np.zeros(3))
    assert reference.constraints.max() < -0.01
    assert reference.multipliers.max() == 0


@pytest.mark.slow
def test_training_on_a_slow_chain_meets_the_fairness_constraint():
    problem, data, bounds = fairness(*synthetic(0, points=100))
    chain = ed.MarkovChain(np.full((3, 3), 0.01) + 0.97 * np.eye(3))
    source = ed.MarkovSource(chain, data)
    result = ed.run(ed.edpp(chain.mixing_time()), problem, source, x0=np.zeros(3), num_samples=100_000, seeds=4)
    assert metrics.infeasibility(result, problem, source)[:, -1].max() < 0.05
    assert bounds.constraints > 1  # which the constraint could have been
