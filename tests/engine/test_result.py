"""A result keeps what its run was asked to do, wherever it goes, and never that of another run."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import sys
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed

DATA = np.random.default_rng(0).normal(size=(4, 2))
CHAIN = ed.MarkovChain(0.6 * np.eye(4) + 0.1)


def loss(x, xi):
    return jnp.sum((x - xi) ** 2)


def constraints(x, xi):
    return x[:1] - 0.25 + xi[:1]


PROBLEM = ed.Problem(loss, constraints, ed.Ball(2.0))


def run(tau=3.0, data=DATA, problem=PROBLEM, **options):
    source = ed.MarkovSource(CHAIN, data)
    return ed.run(ed.edpp(tau), problem, source, **{"x0": np.zeros(2), "num_samples": 300, "record": 5, **options})


WAYS = {
    "replace": lambda result: dataclasses.replace(result, name="mine"),
    "device_get": jax.device_get,
    "device_put": jax.device_put,
    "tree.map": lambda result: jax.tree.map(lambda leaf: leaf + 0, result),
    "block_until_ready": jax.block_until_ready,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_knows_its_run(way):
    found = run(problem=ed.Problem(lambda x, xi: loss(x, xi), constraints, ed.Ball(2.0)))
    again = WAYS[way](found)
    assert again.setting is found.setting
    assert str(again.certify()) == str(found.certify())


def test_it_is_a_field():
    assert "setting" in [field.name for field in dataclasses.fields(ed.Result)]
    assert dataclasses.replace(run(), setting=None).setting is None
    assert not any(leaf is run().setting for leaf in jax.tree.leaves(run()))


def test_results_of_other_runs_map_together():
    one, other = run(), run(9.0, data=DATA + 1)
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert hash(jax.tree.structure(one)) == hash(jax.tree.structure(other))
    both = jax.tree.map(lambda a, b: np.concatenate([a, b]), one, other)
    assert both.solution.shape == (2, 2)
    assert both.setting is one.setting
    for ask in ("certify", "feasibility", "within_theory"):
        with pytest.raises(ValueError, match="not of one run"):
            getattr(both, ask)()


def test_a_compiled_function_never_mixes_up_two_runs():
    traces = []

    @jax.jit
    def same(result):
        traces.append(result.setting)
        return result

    one, other = run(), run(9.0, data=DATA + 1)
    assert [same(result).setting for result in (one, other)] == [None, None]
    assert traces == [None]  # one trace serves both
    with pytest.raises(ValueError, match="made inside vmap or jit"):
        same(one).certify()
    assert jax.vmap(lambda tau: run(tau).solution)(jnp.array([2.0, 3.0])).shape == (2, 1, 2)
    assert jax.vmap(run)(jnp.array([2.0, 3.0])).setting is None


def test_a_structure_keeps_no_data_alive():
    found = run()
    structure, gone = jax.tree.structure(found), weakref.ref(found.setting)
    del found
    gc.collect()
    assert gone() is None
    assert structure.unflatten([None] * structure.num_leaves).setting is None


PICKLED = [
    *[ed.edpp(3.0), ed.rdpp(), ed.pd2(4.0)],
    *(pytest.param(algorithm, marks=pytest.mark.slow) for algorithm in (ed.mdpp(), ed.wdpp(), ed.sdpp())),
]


@pytest.mark.parametrize("algorithm", PICKLED, ids=str)
def test_a_pickled_result_knows_its_run(algorithm):
    source = ed.MarkovSource(CHAIN, DATA)
    found = ed.run(algorithm, PROBLEM, source, x0=np.zeros(2), num_samples=300, seeds=2, record=20)
    again = pickle.loads(pickle.dumps(found))
    jax.tree.map(np.testing.assert_array_equal, again, found)
    assert str(again.certify(PROBLEM)) == str(found.certify(PROBLEM))
    if algorithm.rule is ed.DriftPlusPenalty:
        assert str(again.within_theory()) == str(found.within_theory())
        assert str(again.feasibility()) == str(found.feasibility())


def test_a_pickled_result_of_a_linear_model_refuses_its_training_samples():
    model, rng = ed.LinearModel("logistic", ed.Ball(2.0)), np.random.default_rng(1)
    data = model.data(
        list(rng.normal(size=(40, 3, 2))), rng.choice([-1.0, 1.0], (40, 3)), normals=np.ones((40, 1, 2)), limits=[1.0]
    )
    again = pickle.loads(pickle.dumps(ed.run(ed.dpp(), model, ed.SeriesSource(data), x0=np.zeros(2), record=5)))
    with pytest.raises(ValueError, match="fitted on"):
        again.certify(ed.SeriesSource(data))
    assert again.setting.problem.link is model.link


def test_functions_that_cannot_be_pickled_or_found_again_are_left_out(monkeypatch):
    found = pickle.loads(pickle.dumps(run(problem=ed.Problem(lambda x, xi: loss(x, xi), constraints, ed.Ball(2.0)))))
    pickled = pickle.dumps(run())
    monkeypatch.delattr(sys.modules[__name__], "loss")
    for result in (found, pickle.loads(pickled)):
        assert result.setting is None
        assert result.solution.shape == (1, 2)
        with pytest.raises(ValueError, match=r"does not know its run.* functions that cannot be \(such as lambdas\)"):
            result.certify()
