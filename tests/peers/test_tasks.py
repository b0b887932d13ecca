"""Tasks: samples are those of the paths, optima of other solvers are ours too, constraints bind, later is later."""

import jax
import numpy as np
import pytest

import ergodrift as ed
from ergodrift.data.expectation import expectations
from ergodrift.data.tables import TableSource
from ergodrift.peers.tasks import TASKS
from ergodrift.peers.tasks.solvers import linear_program, slsqp
from ergodrift.problems import scores
from ergodrift.problems.scheduling import Skies

BUILT = {}


def task(name, quick=True):
    if (name, quick) not in BUILT:
        BUILT[name, quick] = TASKS[name](quick=quick)
    return BUILT[name, quick]


@pytest.mark.parametrize("name", TASKS)
def test_a_quick_task_is_small_and_says_what_it_is(name):
    found = task(name)
    assert found.name == name
    assert found.num_samples <= 3000
    assert found.title
    assert found.about.endswith(".")
    assert found.data == "simulated" or "(" in found.data
    assert found.problem.check(found.x0, found.source.example) >= 1


@pytest.mark.parametrize("name", TASKS)
def test_the_optimum_is_feasible_and_has_the_loss_that_our_expectation_has(name):
    found = task(name)
    best = found.optimum()
    assert found.optimum() is best
    loss, constraints = expectations(found.problem, found.source, best.x)
    start, over = expectations(found.problem, found.source, found.x0)
    gap = float(start) - best.loss + over @ best.multipliers
    assert loss == pytest.approx(best.loss, rel=1e-8)
    assert gap > 0
    assert (constraints * np.maximum(best.multipliers, gap / np.abs(over).max()) < 1e-6 * gap).all()
    assert best.multipliers.shape == constraints.shape
    assert best.multipliers.min() >= 0
    assert best.multipliers.max() > 0  # a constraint binds
    assert abs(constraints @ best.multipliers) < 1e-6 * gap


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_our_reference_agrees(name):
    found = task(name)
    best = found.optimum()
    reference = ed.solve_reference(found.problem, found.source, found.x0)
    assert reference.value == pytest.approx(best.loss, rel=1e-6)
    assert reference.multipliers == pytest.approx(best.multipliers, rel=1e-2, abs=1e-3 * best.multipliers.max())


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_the_full_task(name):
    """Its optimum too has the loss of our expectation and keeps its constraints, of which one binds."""
    found = task(name, quick=False)
    best = found.optimum()
    loss, constraints = expectations(found.problem, found.source, best.x)
    assert found.num_samples <= 60_000
    assert loss == pytest.approx(best.loss, rel=1e-7)
    assert constraints.max() < 1e-6
    assert best.multipliers.max() > 0
    assert found.diagnosis().tau_mix >= 1


@pytest.mark.parametrize("name", TASKS)
def test_samples_are_those_of_the_paths(name):
    found = task(name)
    samples, paths = found.samples(1), found.paths(2)
    assert {len(leaf) for leaf in jax.tree.leaves(samples)} == {found.num_samples}
    if paths is None:
        assert not isinstance(found.source, TableSource)
        drawn = found.source.paths([1], found.num_samples)
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, np.asarray(b)[0]), samples, drawn)
        return
    assert paths.shape == (2, found.num_samples)
    looked_up = jax.tree.map(lambda leaf: leaf[paths[1]], found.source.table)
    jax.tree.map(np.testing.assert_array_equal, samples, looked_up)


@pytest.mark.parametrize("name", ["compas", "adult", "queue"])
def test_a_run_takes_the_paths(name):
    found = task(name)
    result = ed.run(
        ed.adpp(), found.problem, found.source, x0=found.x0, num_samples=found.num_samples, seeds=2, record=1,
        paths=found.paths(2),
    )  # fmt: skip
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.solution))


def test_orders_in_time_start_in_twenty_places_and_wrap_around():
    found = task("compas")
    rows = found.source.length
    paths = found.paths(23)
    assert paths[0].tolist() == list(range(rows))
    assert paths[:20, 0].tolist() == [round(k * rows / 20) for k in range(20)]
    assert len(set(paths[:, 0].tolist())) == 23
    assert (np.diff(paths, axis=1) % rows == 1).all()
    assert (np.sort(paths, axis=1) == np.arange(rows)).all()


def test_orders_of_a_record_without_one_are_permutations():
    paths = task("adult").paths(3)
    assert (np.sort(paths, axis=1) == np.arange(paths.shape[1])).all()
    assert (paths[0] != paths[1]).any()


def test_dependence_is_told():
    assert task("adult").diagnosis().tau_mix < 5
    assert 10 < task("queue").diagnosis().tau_mix < 500


def test_the_later_part_has_no_row_of_the_training_part():
    for name in ("compas", "flights", "capacity", "prices", "cvar"):
        found = task(name)
        leaf = jax.tree.leaves(found.source.data)[0]
        after = jax.tree.leaves(found.later.data)[0]
        assert not (leaf[-1] == after[0]).all()
        assert after.shape[1:] == leaf.shape[1:]


def test_the_law_of_the_queue_is_what_is_simulated():
    """Means along a long path are those of the law, within five standard errors."""
    source = Skies()
    law = source.loss_law
    assert law.weights.sum() == pytest.approx(1)
    path = jax.tree.map(np.asarray, source.paths([3], 60_000))
    for name, spread in [("arrivals", 1.0), ("sky", 0.5)]:
        told = law.weights @ law.points[name]
        assert np.abs(path[name][0].mean(axis=0) - told).max() < 5 * spread * np.sqrt(300 / 60_000)


def test_contrasts_are_differences_of_means():
    rng = np.random.default_rng(0)
    values, group = rng.normal(size=40), rng.random(40) < 0.3
    difference = values[group].mean() - values[~group].mean()
    assert (scores.between(group)[:, 0] * values).mean() == pytest.approx(difference)
    names = np.array(["a", "b", "c"])[rng.integers(3, size=40)]
    found = (scores.from_all(names, np.array(["b"]))[:, 0] * values).mean()
    assert found == pytest.approx(values[names == "b"].mean() - values.mean())


def test_slsqp_finds_a_point_and_its_multipliers_by_hand():
    """min |x - (2, 0)|^2 / 2 subject to x_0 <= 1: x = (1, 0), multiplier 1."""
    target = np.array([2.0, 0.0])
    found = slsqp(
        lambda x: (np.array([np.sum((x - target) ** 2) / 2]), (x - target)[None]),
        lambda x: (x[:1] - 1, np.array([[1.0, 0.0]])),
        np.zeros(2),
        radius=10.0,
    )
    assert found.x == pytest.approx(np.array([1.0, 0.0]), abs=1e-7)
    assert found.multipliers == pytest.approx(np.array([1.0]), abs=1e-6)


def test_a_linear_program_and_its_multipliers_by_hand():
    """min -x subject to 2 x <= 1 and 0 <= x <= 3: x = 1/2, multiplier 1/2."""
    z, multipliers = linear_program(np.array([-1.0]), np.array([[2.0]]), np.array([1.0]), [(0, 3)], budgets=1)
    assert z == pytest.approx(np.array([0.5]))
    assert multipliers == pytest.approx(np.array([0.5]))
    with pytest.raises(RuntimeError, match="HiGHS did not solve"):
        linear_program(np.array([-1.0]), np.array([[1.0]]), np.array([-1.0]), [(0, 3)], budgets=1)
