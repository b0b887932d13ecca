"""The command `ergodrift beyond`: a small part of it, its graphs, its tables and its figure."""

from __future__ import annotations

import numpy as np

import ergodrift as ed
from ergodrift.experiments.beyond import AGENTS, graphs, markdown, sweep
from ergodrift.report.figures import draw_sweep


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


def test_a_small_sweep_its_tables_and_its_figure(tmp_path):
    rows = sweep(seeds=2, taus=(1,))
    assert [row["algorithm"] for row in rows] == ["EDPP-t", "PD", "DPP-t", "MDPP", "WDPP", "RDPP"]
    gaps = {row["algorithm"]: row["gap"][-1] for row in rows}
    assert gaps["RDPP"] < gaps["EDPP-t"] / 5
    design = {"design": "default", **rows[0]}
    network = {"graph": "ring", "walk": "metropolis", **rows[0]}
    text = markdown({"designs": [design], "tried": [design], "networks": [network], "sweep": rows})
    assert "| tau_mix | EDPP-t | PD | DPP-t | MDPP | WDPP | RDPP |" in text
    assert f"| default | EDPP-t | {gaps['EDPP-t']:.1e} |" in text
    assert {line.count("|") for line in text.splitlines() if "tau_mix | EDPP-t" in line} == {8}
    draw_sweep(rows, tmp_path / "sweep.svg")
    assert "mixing time" in (tmp_path / "sweep.svg").read_text()
