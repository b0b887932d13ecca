"""The study `beyond`: a small part of it, its graphs, its tables, its figure and its command."""

from __future__ import annotations

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from studies.beyond import AGENTS, graphs, sweep
from studies.beyond_report import draw_sweep, tables
from studies.laws import by_reversible_transitions, by_transitions, law_errors, shares
from studies.variants import Antithetic, Balanced, Clipped

import ergodrift as ed
from ergodrift.methods.estimator import MultiLevel
from ergodrift.types import Feedback
from studies import beyond

pytestmark = pytest.mark.x64("a study in float64")


def test_the_graphs_have_fifty_agents_and_the_walks_the_laws_they_should():
    for name, adjacency, kind in graphs():
        assert adjacency.shape == (AGENTS, AGENTS)
        np.testing.assert_array_equal(adjacency, adjacency.T)
        assert not adjacency.diagonal().any()
        chain = ed.MarkovChain.from_graph(adjacency, kind)
        even = np.allclose(chain.stationary, 1 / AGENTS)
        assert even == (name != "hubs and leaves")
    degrees = {name: set(adjacency.sum(axis=1).tolist()) for name, adjacency, _ in graphs()}
    assert degrees["ring"] == {2.0}
    assert degrees["grid 2 x 25"] == {2.0, 3.0}
    assert degrees["hubs and leaves"] == {1.0, 11.0}


@pytest.mark.slow
def test_a_small_sweep_its_tables_and_its_figure(tmp_path):
    rows = sweep(seeds=2, taus=(1,))
    assert [row["algorithm"] for row in rows] == ["EDPP-t", "PD", "DPP-t", "MDPP", "WDPP", "RDPP"]
    gaps = {row["algorithm"]: row["gap"][-1] for row in rows}
    assert gaps["RDPP"] < gaps["EDPP-t"] / 5
    design = {"design": "default", **rows[0]}
    network = {"graph": "ring", "walk": "metropolis", **rows[0]}
    law = {"chain": "default", "samples": 300, "errors": {"visits": 0.5}, "gap": {"RDPP": 0.25}}
    stream = {**rows[0], "more": 0.125, "more_error": 0.5}
    parts = {"designs": [design], "tried": [design], "networks": [network], "sweep": rows}
    text = tables({**parts, "laws": [law, {k: law[k] for k in ("chain", "samples", "errors")}], "streams": [stream]})
    assert "| default | 300 | 0.500 | 2.5e-01 |" in text
    assert "| default | 300 | 0.500 |  |" in text
    assert text.splitlines()[-1].endswith("| +1.2e-01 | 5.0e-01 |")
    assert "| tau_mix | EDPP-t | PD | DPP-t | MDPP | WDPP | RDPP |" in text
    assert f"| default | EDPP-t | {gaps['EDPP-t']:.1e} |" in text
    assert {line.count("|") for line in text.splitlines() if "tau_mix | EDPP-t" in line} == {8}
    draw_sweep(rows, tmp_path / "sweep.svg")
    assert "mixing time" in (tmp_path / "sweep.svg").read_text()


@pytest.fixture
def begun(monkeypatch):
    """How often the study itself was begun."""
    calls = []
    monkeypatch.setattr(beyond, "beyond", lambda quick, log: calls.append(quick) or {"quick": quick, "sweep": []})
    monkeypatch.setattr(beyond, "tables", lambda results: "tables")
    monkeypatch.setattr(beyond, "draw_sweep", lambda rows, path: None)
    return calls


def test_the_command_keeps_what_another_configuration_left(tmp_path, capsys, begun):
    out = ["--out", str(tmp_path / "out")]
    beyond.main(["--quick", *out])
    assert begun == [True]
    assert json.loads((tmp_path / "out" / "beyond.json").read_text())["quick"] is True
    with pytest.raises(SystemExit) as ended:
        beyond.main(out)
    assert ended.value.code == 2
    assert "quick=True there, False here" in capsys.readouterr().err
    beyond.main([*out, "--force"])
    assert begun == [True, False]


def test_the_command_says_what_it_draws_with_before_any_work(tmp_path, monkeypatch, capsys, begun):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit):
        beyond.main(["--out", str(tmp_path / "out")])
    assert "pip install 'ergodrift[plots]'" in capsys.readouterr().err
    assert begun == []
    assert not (tmp_path / "out").exists()


def test_the_law_of_the_estimated_chain_is_that_of_the_visits():
    """A path enters a state as often as it leaves it: the shares are stationary for the most likely chain."""
    chain = ed.MarkovChain([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
    path = np.asarray(chain.sample_path(jax.random.key(1), 5000))
    closed = np.append(path, path[0])  # a path that ends where it began leaves nothing over
    np.testing.assert_allclose(by_transitions(closed, 3), shares(path, 3), atol=1e-12)
    np.testing.assert_allclose(by_transitions(path, 3), shares(path, 3), atol=5 / len(path))
    symmetric = np.array([[0.9, 0.1], [0.1, 0.9]])  # two states are always reversible: nothing to gain
    two = np.asarray(ed.MarkovChain(symmetric).sample_path(jax.random.key(2), 5000))
    np.testing.assert_allclose(by_reversible_transitions(two, 2), by_transitions(two, 2), atol=1e-6)
    errors = law_errors(path[None], chain.stationary)
    assert set(errors) == {"visits", "transitions", "reversible"}
    assert errors["visits"] < 0.05


def fed(estimator, values, level):
    """What a window of 2^level samples with these losses makes of them, everything else being as large."""
    zero = Feedback(jnp.zeros(()), jnp.zeros(2), jnp.zeros(1), jnp.zeros((1, 2)))
    window, round_feedback, complete = estimator.init(zero, np.array([level])), zero, False
    for value in values:
        sample = jax.tree.map(lambda leaf: jnp.full(leaf.shape, value), zero)  # noqa: B023
        window, round_feedback, complete = estimator.observe(window, jnp.int32(0), sample)
    assert complete
    return round_feedback


def test_clipped_and_antithetic_windows_by_hand():
    values = [1.0, 2.0, 4.0, 5.0]  # f^1 = 1, f^4 = 3, and the correction is 4 + 5 - 1 - 2 = 6
    assert float(fed(MultiLevel(4), values, 2).loss) == 7.0
    clipped = fed(Clipped(4), values, 2)
    np.testing.assert_allclose(clipped.loss, 1 + 3)  # the correction is cut to the size of f^4
    np.testing.assert_allclose(clipped.loss_grad, [4, 4])
    np.testing.assert_allclose(clipped.constraint_jac, [[4, 4]])
    mild = [1.0, 1.0, 1.5, 1.0]  # a correction of 1/2 below f^4 = 9/8 stays as it is
    np.testing.assert_allclose(fed(Clipped(4), mild, 2).constraints, fed(MultiLevel(4), mild, 2).constraints)
    turned = [float(fed(MultiLevel(4), series, 2).loss) for series in (values, values[::-1])]
    np.testing.assert_allclose(fed(Antithetic(4), values, 2).loss, np.mean(turned))
    np.testing.assert_allclose(fed(Antithetic(4), values, 2).loss, 3.0)


def test_balanced_constraints_have_size_one():
    balanced = Balanced(MultiLevel(4), 2.0)
    found = fed(balanced, [3.0, 3.0], 1)
    np.testing.assert_allclose(4 * np.sum(found.constraint_jac**2) + found.constraints**2, 1)
    np.testing.assert_allclose(found.loss, 3.0)
