"""Batches of rows: means over rows, the last one of a pass at its weight, and every part of a run agrees about it."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from ergodrift.problem import Batched

RNG = np.random.default_rng(3)
ROWS = {"a": RNG.normal(size=(23, 2)), "b": RNG.normal(size=23)}
X0 = np.array([0.3, -0.2])


def loss(x, xi):
    return (xi["a"] @ x - xi["b"]) ** 2 + 1.0


def constraints(x, xi):
    return jnp.stack([xi["a"][0] * x[0] + x[1] - 0.2, x @ x - 0.5])


PROBLEM = ed.Problem(loss, constraints, ed.Ball(2.0))


def rounding():
    return 1e-12 if jnp.zeros(()).dtype == np.float64 else 2e-5


def rows_of(path, x):
    """Losses and constraints of the rows of a batch at x, by NumPy alone."""
    a, b = ROWS["a"][path[path >= 0]], ROWS["b"][path[path >= 0]]
    return (a @ x - b) ** 2 + 1.0, np.stack([a[:, 0] * x[0] + x[1] - 0.2, np.full(len(a), x @ x - 0.5)], axis=1)


@pytest.mark.parametrize(("batch", "order"), [(5, "given"), (4, "shuffled"), (23, "blocks")])
def test_a_run_is_that_of_the_means_over_batches(batch, order):
    """Each sample's feedback worked out by hand in NumPy; a batch of r rows counts r / batch."""
    source = ed.SeriesSource(ROWS, epochs=2, order=order, batch=batch)
    result = ed.run(ed.edpp(2.0), PROBLEM, source, x0=X0, seeds=[4], record=source.length)
    paths = np.asarray(source.paths([4], source.length))[0]
    method = ed.edpp(2.0).bind(PROBLEM)
    state, sums = method.init(jnp.asarray(X0), 2), np.zeros(3)
    for number, path in enumerate(paths):
        rows, x = path[path >= 0], np.asarray(state.x, dtype=float)
        a, b = ROWS["a"][rows], ROWS["b"][rows]
        f, g = rows_of(path, x)
        jac = np.array([[a[:, 0].sum(), len(rows)], 2 * x * len(rows)]) / batch
        told = ed.Feedback(f.sum() / batch, 2 * (a @ x - b) @ a / batch, g.sum(axis=0) / batch, jac)
        state, _ = method.step(state, jax.tree.map(jnp.asarray, told))
        sums += np.append(f.sum(), g.sum(axis=0)) / batch
        assert np.allclose(result.x[0, number], state.x, atol=rounding())
        assert np.allclose(
            np.append(result.loss_sum[0, number], result.constraint_sum[0, number]), sums, atol=30 * rounding()
        )
    assert source.length == 2 * -(-23 // batch)
    replayed = ed.run(ed.edpp(2.0), PROBLEM, source, x0=X0, seeds=[4], paths=paths[:3], record=3)
    assert np.array_equal(replayed.x[0], result.x[0, :3])


def test_batches_of_one_row_are_rows():
    plain, one = ed.SeriesSource(ROWS), ed.SeriesSource(ROWS, batch=1)
    results = [ed.run(ed.sdpp(), PROBLEM, source, x0=X0) for source in (plain, one)]
    assert np.array_equal(results[0].x, results[1].x)
    assert plain.paths(1, 23).shape == one.paths(1, 23).shape


@pytest.mark.slow
def test_linear_models_and_problems_agree_about_batches():
    features, labels = RNG.normal(size=(11, 6, 2)), RNG.choice([-1.0, 1.0], size=(11, 6))
    model = ed.LinearModel("logistic", ed.Ball(2.0))
    data = model.data(features, labels, normals=features.mean(axis=1, keepdims=True), limits=[0.1])
    plain = ed.Problem(model.loss, model.constraints, model.geometry)
    source = ed.SeriesSource(data, batch=4, epochs=3, order="shuffled")
    ours, theirs = (ed.run(ed.sdpp(), each, source, x0=np.zeros(2), margin=0.05) for each in (model, plain))
    assert np.allclose(ours.x, theirs.x, atol=100 * rounding())
    assert np.allclose(ours.constraint_sum, theirs.constraint_sum, atol=100 * rounding())


@pytest.mark.slow
def test_metrics_are_sums_over_rows_divided_by_the_batch():
    source = ed.SeriesSource(ROWS, epochs=3, order="shuffled", batch=4)
    grid = [1, 6, 7, 17, 18]
    result = ed.run(ed.sdpp(), PROBLEM, source, x0=X0, seeds=2, record=grid)
    regret, best = ed.metrics.regret(result, PROBLEM, source), ed.metrics.benchmarks(result, PROBLEM, source)
    for seed, path in enumerate(np.asarray(source.paths(2, 18))):
        theirs = np.cumsum([rows_of(one, best[seed].x)[0].sum() / 4 for one in path])
        assert np.allclose(regret[seed], np.asarray(result.loss_sum)[seed] - theirs[np.array(grid) - 1], atol=1e-4)
    # three whole passes: the best point in hindsight is that of the record
    assert np.allclose(best[0].x, ed.solve_reference(PROBLEM, ed.SeriesSource(ROWS), X0).x, atol=1e-6)


def test_a_margin_counts_by_the_row_and_the_sums_are_about_g():
    """With a loss and constraints that do not move the point, all sums are known."""
    still = ed.Problem(lambda x, xi: 2.0 + 0.0 * jnp.sum(x), lambda x, xi: 0.0 * x[:1] + xi["b"], ed.Ball(2.0))
    source = ed.SeriesSource(ROWS, batch=4, epochs=2)
    for margin in (None, 0.25):
        result = ed.run(ed.dpp(), still, source, x0=X0, record=source.length, margin=margin)
        rows = source.rows_taken(np.asarray(result.samples))
        assert np.allclose(result.loss_sum[0], 2.0 * rows / 4, rtol=1e-6)
        sums = np.concatenate([[0], np.cumsum(np.tile(ROWS["b"], 2))])[rows]
        assert np.allclose(result.constraint_sum[0, :, 0], sums / 4, atol=1e-5)
        replayed = ed.run(
            ed.dpp(), still, source, x0=X0, record=2, margin=margin, paths=np.array([[5, -1, -1, -1], [6, 7, -1, -1]])
        )
        assert np.allclose(
            replayed.constraint_sum[0, :, 0], np.cumsum([ROWS["b"][5], ROWS["b"][[6, 7]].sum()]) / 4, atol=1e-5
        )
    assert np.allclose(result.queue[0, 0], max(ROWS["b"][:4].mean() + 0.25, 0), atol=1e-5)


@pytest.mark.parametrize(
    "algorithm", [pytest.param(ed.adpp(), marks=pytest.mark.slow), ed.edpp(2.0)], ids=["ADPP", "EDPP-t"]
)
def test_runs_on_batches_are_within_their_theory(algorithm):
    slack = ed.Problem(loss, lambda x, xi: 0.1 * constraints(x, xi) - 0.4, ed.Ball(1.0))
    source = ed.SeriesSource(ROWS, epochs=6, order="shuffled", batch=4)
    result = ed.run(algorithm, slack, source, x0=X0, seeds=2)
    found = result.within_theory()
    assert found.checked
    assert found, found


def test_a_run_on_batches_goes_on_from_its_checkpoint(tmp_path):
    source = ed.SeriesSource(ROWS, epochs=40, order="shuffled", batch=4)
    file = tmp_path / "run.npz"
    whole = ed.run(ed.sdpp(), PROBLEM, source, x0=X0)
    first = ed.run(ed.sdpp(), PROBLEM, source, x0=X0, checkpoint=file)
    again = ed.run(ed.sdpp(), PROBLEM, source, x0=X0, checkpoint=file)
    assert np.array_equal(whole.x, first.x)
    assert np.array_equal(whole.x, again.x)
    for other in [{"batch": 5}, {"batch": 4, "order": "given"}]:
        changed = ed.SeriesSource(ROWS, **{"epochs": 40, "order": "shuffled", **other})
        with pytest.raises(ValueError, match="checkpoint"):
            ed.run(ed.sdpp(), PROBLEM, changed, x0=X0, num_samples=200, checkpoint=file)


def test_margins_are_found_on_the_record_as_it_came():
    """As many certificates as rows, not as samples: three passes or batches do not make a certificate surer."""
    data = RNG.normal(size=(3000, 1))
    problem = ed.Problem(lambda x, xi: jnp.sum((x - 1.0) ** 2), lambda x, xi: x + xi - 0.3, ed.Ball(3.0))
    plain = ed.run(ed.sdpp(), problem, ed.SeriesSource(data), x0=np.zeros(1), margin="auto")
    read = ed.SeriesSource(data, epochs=3, order="shuffled", batch=10)
    result = ed.run(ed.sdpp(), problem, read, x0=np.zeros(1), margin="auto")
    assert result.tightening.held_out == plain.tightening.held_out == 3000
    assert np.allclose(result.tightening.needed, plain.tightening.needed, rtol=0.2)
    assert result.certify(ed.SeriesSource(RNG.normal(size=(3000, 1)))).satisfied


def test_a_batch_compiles_once_for_a_problem():
    source = ed.SeriesSource(ROWS, batch=4)
    same = [jax.tree.structure(source.asked(PROBLEM)) for _ in range(2)]
    assert same[0] == same[1]
    kinds = {type(source.asked(PROBLEM)), type(dataclasses.replace(Batched.of(PROBLEM)))}
    assert kinds == {Batched}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda source: ed.run(ed.rdpp(), PROBLEM, source, x0=X0), "remembers every state, but the source has none"),
        (lambda source: ed.Zip(source, source), "losses comes in batches of 4 rows; a Zip takes them row by row"),
        (lambda source: replay(source, [[0, 1, 2]]), r"paths must have shape \(seeds, num_samples, 4\) = \(1, 1, 4\)"),
        (lambda source: replay(source, [[0, 1, 2, 23]]), "paths must hold rows between 0 and 22, got 0 to 23"),
        (lambda source: replay(source, [[0, -1, 2, 3]]), "a batch must begin with its rows"),
        (lambda source: replay(source, [[-1, -1, -1, -1]]), "a batch must begin with its rows"),
        (lambda source: replay(source, [[0.0, 1.0, 2.0, 3.0]]), "paths must hold integers"),
        (lambda source: ed.run(ed.sdpp(), PROBLEM, source, x0=X0, num_samples=7), "the series has only 6 samples"),
    ],
)
def test_what_batches_cannot_do_is_refused_by_name(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(ed.SeriesSource(ROWS, batch=4))


def replay(source, paths):
    return ed.run(ed.sdpp(), PROBLEM, source, x0=X0, paths=np.array(paths))
