"""`ergodrift walk`: its graphs and agents, and the command itself on a cluster of this machine."""

import json
import os
import re
import shlex
import subprocess
import sys

import jax
import numpy as np
import pytest
import scipy

from ergodrift import cli
from ergodrift.experiments.graphs import GRAPHS, network
from ergodrift.experiments.network import ALGORITHMS, DemoConfig, local_rounds_study, own_rows

pytestmark = pytest.mark.x64("the command sets the precision itself: once is enough")


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("agents", [3, 7, 20])
def test_a_graph_is_connected_symmetric_and_drawn_apart(graph, agents):
    adjacency, places = network(graph, agents, seed=3)
    assert adjacency.shape == (agents, agents)
    assert (adjacency == adjacency.T).all()
    assert not adjacency.diagonal().any()
    assert scipy.sparse.csgraph.connected_components(adjacency)[0] == 1
    assert (np.linalg.norm(places[:, None] - places, axis=2) + np.eye(agents) > 1e-3).all()


def test_graphs_are_what_their_names_say():
    degrees = {graph: network(graph, 9)[0].sum(axis=0).astype(int).tolist() for graph in GRAPHS}
    assert degrees["ring"] == [2] * 9
    assert degrees["complete"] == [8] * 9
    assert degrees["star"] == [8] + [1] * 8
    assert degrees["grid"] == [2, 3, 2, 3, 4, 3, 2, 3, 2]
    with pytest.raises(ValueError, match="graph must be one of ring, grid, star, geometric, complete, got 'line'"):
        network("line", 4)


def test_agents_make_their_own_rows():
    one, two = (own_rows(number, agents=4, points=30, seed=0) for number in (0, 1))
    leaves = list(zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))
    assert all(a.shape == b.shape for a, b in leaves)
    assert any((a != b).any() for a, b in leaves)
    again = own_rows(0, agents=4, points=30, seed=0)
    assert all((a == b).all() for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(again), strict=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--agents", "2"], "agents must be between 3 and"),
        (["--samples", "10", "--local-rounds", "3"], "samples=10 must be a multiple of local_rounds=3"),
        (["--patience", "0"], "--patience must be > 0"),
        (["--noise", "1"], "noise=1.0 needs clip"),
        (["--tokens", "0"], "tokens must be between 1 and"),
    ],
)
def test_wrong_usage_is_said_before_anything_starts(tmp_path, capsys, arguments, message):
    assert cli.main(["walk", *arguments, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_unknown_names_are_refused_with_those_that_are_known(capsys):
    for option, known in [("--graph", GRAPHS), ("--algorithm", ALGORITHMS)]:
        with pytest.raises(SystemExit):
            cli.main(["walk", option, "nothing"])
        error = capsys.readouterr().err
        assert all(name in error for name in known)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_examples_are_commands(name):
    """Each example is a command and what it does, at least two spaces apart."""
    for line in re.sub(r"\\\n\s+", "", cli.COMMANDS[name].EXAMPLES).splitlines():
        example = shlex.split(re.split(r"\s{2,}", line.strip())[0])
        assert cli.build_parser().parse_args(example[1:]).run is cli.COMMANDS[name].run


@pytest.mark.parametrize(
    ("arguments", "promised"),
    [(["reproduce"], True), (["theory"], False), (["walk"], False), (["walk", "--checkpoint", "walk.npz"], True)],
)
def test_an_interrupted_command_promises_only_what_it_keeps(monkeypatch, capsys, arguments, promised):
    def interrupted(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.COMMANDS[arguments[0]], "run", interrupted)
    assert cli.main(arguments) == 130
    assert ("run the same command again to go on" in capsys.readouterr().err) == promised


SMALL = ["walk", "--agents", "3", "--samples", "60", "--tokens", "2", "--points", "20"]


def command(out, *more):
    """The command in a process of its own."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    run = [sys.executable, "-m", "ergodrift.cli", *SMALL, "--out", str(out), *more]
    return subprocess.run(run, capture_output=True, text=True, env=environment, timeout=240)


@pytest.fixture(scope="module")
def written(cluster, tmp_path_factory):
    """A walk on a cluster that is there already."""
    out, address = tmp_path_factory.mktemp("walk"), cluster.get_runtime_context().gcs_address
    return out, command(out, "--address", address, "--checkpoint", str(out / "walk.npz"))


def test_the_command_walks_judges_and_draws(written):
    out, done = written
    assert done.returncode == 0, done.stderr
    found = json.loads((out / "results.json").read_text())
    assert found["config"] == {
        **vars(DemoConfig(agents=3, samples=60, tokens=2, points=20)),
        "mixing_time": found["config"]["mixing_time"],
    }
    assert sum(agent["visits"] for agent in found["walk"]["agents"]) == 2 * 60
    assert found["walk"]["held"] == 0
    assert found["records"][-1]["samples"] == 60
    assert all(record["Lagrangian gap"] > 0 for record in found["records"])
    # Sums in float64 of the same terms as in the simulation, in another order where XLA fuses otherwise.
    assert found["difference"] < 1e-12
    assert "largest difference from ed.run on the pooled data" in done.stdout
    html = (out / "index.html").read_text()
    assert "A walk over 3 agents" in html
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_finished_walk_is_found_in_its_checkpoint_whatever_the_cluster(written):
    """Without an address a cluster of this machine is started, and stopped at the end."""
    out, _ = written
    before = json.loads((out / "results.json").read_text())
    again = command(out, "--checkpoint", str(out / "walk.npz"))
    assert again.returncode == 0, again.stderr
    after = json.loads((out / "results.json").read_text())
    assert after["solution"] == before["solution"]
    assert after["walk"]["agents"] == before["walk"]["agents"]


@pytest.mark.slow
def test_clipping_alone_leaves_valid_json(cluster, tmp_path):
    assert cli.main([*SMALL, "--clip", "1", "--out", str(tmp_path)]) == 0

    def refuse(constant):
        raise ValueError(f"{constant} is not JSON")

    found = json.loads((tmp_path / "results.json").read_text(), parse_constant=refuse)
    assert {agent["epsilon"] for agent in found["walk"]["agents"]} == {None}


@pytest.mark.slow
def test_local_rounds_are_studied_as_the_page_says():
    """The table has a row for each algorithm and k; fewer visits for the same samples do not help."""
    table = local_rounds_study(["edpp"], rounds=(1, 4), visits=30, tokens=8)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert [row[:2] for row in rows] == [["EDPP", "1"], ["EDPP", "4"]]
    assert float(rows[0][3]) < float(rows[1][3])
