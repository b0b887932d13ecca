"""Ways to go, and what is told on the way: laws, jumps, mini-batches, logs, remote checkpoints, partitions."""

import csv
import itertools
import sys
import types
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import ergodrift as ed
from ergodrift import distributed as dd
from ergodrift.distributed import telemetry
from ergodrift.distributed.remote import ArrowStore, FsspecStore
from walks import AGENTS, DATA, EDPP, GRAPH, PROBLEM, ZERO, close, same, walk

RING = np.roll(np.eye(12), 1, axis=1) + np.roll(np.eye(12), -1, axis=1)


def test_a_chain_for_any_law():
    law = np.arange(1.0, 13.0)
    chain = dd.hastings(RING, law)
    flow = chain.stationary[:, None] * np.asarray(chain.P)
    np.testing.assert_allclose(flow, flow.T, atol=1e-15)
    np.testing.assert_allclose(chain.stationary, law / law.sum())
    np.testing.assert_allclose(chain.stationary @ chain.P, chain.stationary, atol=1e-15)
    slow = dd.paced(RING, np.where(np.arange(12) == 3, 0.2, 0.002)).stationary
    assert slow[0] / slow[3] == pytest.approx(10.0)
    with pytest.raises(ValueError, match=r"law must be positive numbers"):
        dd.hastings(RING, -law)


def test_jumps_leave_the_law_and_shorten_the_way():
    jumps = dd.levy(RING, 0.3)
    np.testing.assert_allclose(jumps.stationary @ jumps.P, np.full(12, 1 / 12), atol=1e-15)
    assert jumps.mixing_time() < ed.MarkovChain.from_graph(RING).mixing_time()


def test_a_self_repellent_walk_keeps_the_law_and_has_less_variance():
    """Visits of 40 walks to one agent: their mean is that of the law, their variance far below that of the chain."""
    chain, hops = ed.MarkovChain.from_graph(RING), 600
    repelled = dd.SelfRepellent(chain, 3.0).paths(range(40), hops)
    plain = dd.SelfRepellent(chain, 0.0).paths(range(40), hops)
    shares, before = ((paths == 0).mean(axis=1) for paths in (repelled, plain))
    assert abs(shares.mean() - 1 / 12) < 4 * shares.std() / np.sqrt(40)
    assert shares.var() < before.var() / 3
    assert all(RING[a, b] or a == b for path in repelled[:3] for a, b in itertools.pairwise(path))


def test_a_self_repellent_walk_on_many_agents_looks_at_neighbours_only():
    """All pairs of them would be 20 GB."""
    count = 50_000
    ones = np.ones(count)
    ring = scipy.sparse.dia_array((np.stack([ones] * 4), [1, -1, count - 1, 1 - count]), shape=(count, count)).tocsr()
    chain = ed.MarkovChain.from_graph(ring)
    path = dd.SelfRepellent(chain, 200.0).paths([0, 1], 2000)
    steps = (np.diff(path, axis=1) + 1) % count
    assert set(np.unique(steps)) <= {0, 1, 2}
    assert all(len(set(one)) > 1000 for one in path)  # it goes on where it has not been


def test_graphs_that_change_keep_the_uniform_law():
    """Neither of the two is connected; together they are."""
    pairs = [np.zeros((12, 12)), np.zeros((12, 12))]
    for i in range(12):
        pairs[i % 2][i, (i + 1) % 12] = pairs[i % 2][(i + 1) % 12, i] = 1
    paths = dd.Changing(pairs).paths(range(30), 1000)
    shares = np.stack([(paths == i).mean(axis=1) for i in range(12)])
    assert (np.abs(shares.mean(axis=1) - 1 / 12) < 5 * shares.std(axis=1) / np.sqrt(30)).all()


def test_partitions(tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    owner, x = np.repeat(["a", "b", "c"], [3, 1, 4]), np.arange(8.0)
    parquet.write_table(pa.table({"owner": owner, "x": x}), tmp_path / "all.parquet", row_group_size=2)
    agents = dd.partitions(tmp_path / "all.parquet", by="owner")
    assert [agent.name for agent in agents] == ["a", "b", "c"]
    for agent, rows in zip(agents, np.split(x, [3, 4]), strict=True):
        assert np.array_equal(agent.load()["x"], rows)
    parquet.write_table(pa.table({"owner": owner[::-1][[0, 7, 1]], "x": x[:3]}), tmp_path / "mixed.parquet")
    with pytest.raises(ValueError, match=r"must be sorted by 'owner': rows of 'c' stand in several places"):
        dd.partitions(tmp_path / "mixed.parquet", by="owner")
    (tmp_path / "own").mkdir()
    parquet.write_table(pa.table({"x": x}), tmp_path / "own" / "site.parquet")
    assert [agent.name for agent in dd.partitions(tmp_path / "own")] == ["site"]


@pytest.mark.slow
@pytest.mark.x64("walks equal their simulation to float64's digits")
def test_a_law_that_is_not_the_chains_own(network):
    """Answers weighed by law / stationary: `run` on a problem with these weights. On a directed graph, in this case."""
    graph = np.array([[0, 1, 0], [1, 0, 1], [1, 0, 0]])
    chain = ed.MarkovChain.from_graph(graph, "lazy")
    found = dd.walk(EDPP, PROBLEM, chain, network, x0=ZERO, num_samples=120, tokens=2, record=4, law="uniform")
    weights = 1 / AGENTS / chain.stationary
    assert np.ptp(weights) > 0.1
    weighed = ed.Problem(
        lambda x, xi: xi[0] * PROBLEM.loss(x, xi[1]), lambda x, xi: xi[0] * PROBLEM.constraints(x, xi[1]), ed.Ball(1.5)
    )
    source = ed.MarkovSource(chain, (weights, DATA))
    close(found.result, ed.run(EDPP, weighed, source, x0=ZERO, num_samples=120, seeds=2, record=4), 1e-12)
    with pytest.raises(ValueError, match=r"law must be 'uniform' or 3 numbers"):
        walk(network, law=[1.0])
    with pytest.raises(ValueError, match=r"law needs local_rounds=1"):
        walk(network, law="uniform", local_rounds=2)


@pytest.mark.slow
@pytest.mark.x64("walks equal their simulation to float64's digits")
def test_what_is_told_on_the_way(network, tmp_path):
    route = dd.SelfRepellent(ed.MarkovChain.from_graph(GRAPH))
    told = []
    found = walk(network, graph=route, tokens=2, log=told.append, algorithm="auto")
    assert np.array_equal(found.visits, np.bincount(route.paths([0, 1], 60).ravel(), minlength=AGENTS))
    assert told[-1]["hop"] == 60
    assert told[-1]["loss"] == pytest.approx(np.mean(found.result.loss_sum[:, -1]) / 60)
    assert told[-1]["bytes"] == found.bytes.sum()
    for _ in range(2):
        walk(network, log=tmp_path / "log.csv")
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["hop"] for row in rows} >= {"60"}
    assert set(rows[0]) >= {"hop", "seconds", "rate", "loss", "constraint_0", "constraint_1"}
    with pytest.raises(ValueError, match=r"log: the folder of .* does not exist"):
        walk(network, log=tmp_path / "no" / "log.csv")


@pytest.mark.slow
@pytest.mark.x64("walks equal their simulation to float64's digits")
def test_a_checkpoint_elsewhere(network, tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    url = "memory://walks/walk.npz"
    whole = walk(network, tokens=2)
    kept = walk(network, tokens=2, checkpoint=url)
    assert same(whole.result, kept.result)
    assert fsspec.filesystem("memory").exists("/walks/walk.npz")
    again = walk(network, tokens=2, checkpoint=url)
    assert same(whole.result, again.result)
    assert again.messages.sum() == kept.messages.sum()
    with pytest.raises(ValueError, match=r"changed .*tokens, paths or x0"):
        walk(network, tokens=3, checkpoint=url)
    store = ArrowStore((tmp_path / "there.npz").as_uri())
    (tmp_path / "here").write_bytes(b"abc")
    store.store(tmp_path / "here")
    store.fetch(tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"abc"
    FsspecStore("memory://nowhere").fetch(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_minibatches_are_a_function_of_the_point_and_right_on_average():
    problem = ed.Problem(lambda x, xi: jnp.mean(xi["a"]) * x[0], lambda x, xi: xi["b"][:1], ed.Ball(9.0))
    few = dd.minibatch(problem, 4)
    rows = {"a": np.arange(20.0), "b": np.arange(20.0)}
    points = np.random.default_rng(0).uniform(1, 2, size=(4000, 1))
    grads = np.array([few.feedback(jnp.asarray(x), rows).loss_grad[0] for x in points[:300]])
    assert len(set(grads.round(6))) > 50
    assert abs(grads.mean() - 9.5) < 4 * grads.std() / np.sqrt(300)
    assert grads.std() == pytest.approx(np.std(rows["a"]) / 2, rel=0.2)
    x = jnp.asarray(points[0])
    assert few.feedback(x, rows).loss == few.feedback(x, rows).loss


def test_a_log_for_tensorboard_has_a_scalar_for_each_number(monkeypatch, tmp_path):
    class SummaryWriter:
        def __init__(self, folder, flush_secs):
            self.folder, self.scalars, self.flushed, self.closed = folder, [], 0, False

        def add_scalar(self, *scalar):
            self.scalars.append(scalar)

        def flush(self):
            self.flushed += 1

        def close(self):
            self.closed = True

    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=SummaryWriter))
        log: Any = telemetry.callback_of(tmp_path / "runs")
        log({"hop": 7, "rate": 2.5, "loss": 0.5})
    assert log.writer.folder == str(tmp_path / "runs")
    assert log.writer.scalars == [("rate", 2.5, 7), ("loss", 0.5, 7)]
    assert log.writer.flushed == 1
    writer = log.writer
    assert not writer.closed
    del log  # as at the end of a walk
    assert writer.closed
    for name in ("tensorboardX", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="needs tensorboardX: pip install tensorboardX"):
        telemetry.callback_of(tmp_path / "runs")
