"""Agents that share processes: the numbers of `run`, data loaded when first needed, faults told apart."""

import os
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_actor import WALK, sent_spec, unsigned

import ergodrift as ed
from ergodrift import distributed as dd
from ergodrift.distributed import replies
from ergodrift.distributed.host import HostActor
from walks import at_hop, close, same

pytestmark = pytest.mark.x64("walks equal their simulation to float64's digits")

AGENTS = 40
RING = np.roll(np.eye(AGENTS), 1, axis=1) + np.roll(np.eye(AGENTS), -1, axis=1)
PROBLEM = ed.Problem(lambda x, xi: jnp.mean((x[None] - xi) ** 2), lambda x, xi: x[:1] - jnp.mean(xi), ed.Ball(1.0))


def rows(number):
    """Two kinds of shapes, which must not meet in one array."""
    return np.random.default_rng(number).normal(size=(4 + number % 2, 3))


class Loader:
    def __init__(self, number, folder):
        self.number, self.folder = number, folder

    def __call__(self):
        (self.folder / f"loaded-{self.number}").touch()
        if (self.folder / f"broken-{self.number}").exists():
            raise ValueError("a secret row")
        return rows(self.number)


def go(network, **options):
    given = {"x0": np.zeros(3), "num_samples": 60, "tokens": 6, "record": 5} | options
    return dd.walk(ed.edpp(4.0), PROBLEM, RING, network, **given)


@pytest.mark.slow
def test_agents_that_share_processes(cluster, tmp_path, monkeypatch):
    with dd.Network([dd.Agent(Loader(i, tmp_path)) for i in range(AGENTS)], processes=2) as network:
        assert len(set(network.processes())) == 2
        walk = go(network, paths=np.tile(np.arange(60) % 12, (6, 1)))
        loaded = {int(file.name.split("-")[1]) for file in tmp_path.iterdir()}
        assert loaded == {*range(12), 20}  # who was visited, and one of the other process, to compile
        for local_rounds in (1, 3):
            walk = go(network, local_rounds=local_rounds)
            source = ed.MarkovSource(ed.MarkovChain.from_graph(RING), np.arange(AGENTS))
            path = np.repeat(source.paths(6, 60 // local_rounds), local_rounds, axis=1)
            assert np.array_equal(walk.visits * local_rounds, np.bincount(path.ravel(), minlength=AGENTS))
        whole = go(network)
        assert whole.bytes.sum() == 6 * 60 * 8 * (3 + 1 + 3 + 1 + 3)

        victims = network.processes()
        with monkeypatch.context() as patch:
            at_hop(patch, {20: lambda: os.kill(victims[0], signal.SIGKILL)})
            again = go(network, patience=120.0)
        assert same(whole.result, again.result)
        assert again.restarts[: AGENTS // 2].all()
        assert not again.restarts[AGENTS // 2 :].any()

        (tmp_path / "broken-7").touch()
        os.kill(network.processes()[0], signal.SIGKILL)
        without = go(network, patience=120.0)
        assert list(without.set_aside) == ["agent 7"]
        assert "secret" not in without.set_aside["agent 7"]
        assert without.visits[7] == 0


def test_the_numbers_are_those_of_run(cluster):
    data = np.random.default_rng(0).normal(size=(AGENTS, 4, 3))
    source = ed.MarkovSource(ed.MarkovChain.from_graph(RING), data)
    with dd.Network([dd.Agent(xi) for xi in data], processes=2) as network:
        walk = go(network)
        run = ed.run(ed.edpp(4.0), PROBLEM, source, x0=np.zeros(3), num_samples=60, seeds=6, record=5)
    close(walk.result, run, 1e-12)


@pytest.mark.slow
def test_what_is_wrong_with_a_forked_agent_is_said_by_name(cluster, monkeypatch):
    monkeypatch.setattr("ergodrift.distributed.network.FEW", 2)
    members = [*(dd.Agent(rows(i)) for i in range(3)), dd.Agent(raises, name="raises"), dd.Agent(ends, name="ends")]
    ring = np.roll(np.eye(5), 1, axis=1) + np.roll(np.eye(5), -1, axis=1)
    with dd.Network(members) as network:
        found = dd.walk(ed.edpp(4.0), PROBLEM, ring, network, x0=np.zeros(3), num_samples=20, record=1, quorum=3)
    assert set(found.set_aside) == {"raises", "ends"}
    assert found.set_aside["ends"] == "its process ended before it was ready"
    assert found.set_aside["raises"].startswith("it failed with ValueError at test_hosts.py:")


@pytest.mark.slow
def test_what_agents_are_forked_from_has_begun_nothing():
    """JAX warns of forks once it has started threads, which a fork would lose."""
    pytest.importorskip("ray")
    code = """
import os, warnings
import ergodrift.distributed.nursery
warnings.simplefilter("error")
child = os.fork()
if child == 0:
    import jax.numpy as jnp
    os._exit(int(jnp.arange(8).sum()))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("28\n", 0), done.stderr


@pytest.mark.slow
def test_forked_agents_have_processes_of_their_own(cluster, monkeypatch):
    """They share memory and compiled code, and nothing else: one that is killed is started anew, and no bit changes."""
    data = np.random.default_rng(0).normal(size=(AGENTS, 4, 3))[:20]
    ring = np.roll(np.eye(20), 1, axis=1) + np.roll(np.eye(20), -1, axis=1)
    options = {"x0": np.zeros(3), "num_samples": 60, "tokens": 6, "record": 5}
    with dd.Network([dd.Agent(xi) for xi in data]) as network:
        whole = dd.walk(ed.edpp(4.0), PROBLEM, ring, network, **options)
        victims = network.processes()
        assert len(set(victims)) == 20
        at_hop(monkeypatch, {20: lambda: os.kill(victims[3], signal.SIGKILL)})
        again = dd.walk(ed.edpp(4.0), PROBLEM, ring, network, **options)
        assert [one == other for one, other in zip(victims, network.processes(), strict=True)].count(False) == 1
    assert same(whole.result, again.result)
    assert again.restarts.tolist() == [0, 0, 0, 1, *[0] * 16]
    source = ed.MarkovSource(ed.MarkovChain.from_graph(ring), data)
    close(whole.result, ed.run(ed.edpp(4.0), PROBLEM, source, x0=np.zeros(3), num_samples=60, seeds=6, record=5), 1e-12)


def raises():
    raise ValueError("a secret row")


def of_another_shape():
    return np.ones((4, 5))


def of_no_rows():
    return np.ones((0, 3))


def leaves():
    sys.exit("a secret row")


def ends():
    os._exit(3)


@pytest.mark.slow
def test_one_of_many_in_a_process_takes_nobody_with_it(cluster, caplog):
    """Whatever is wrong with it, and be it the first, for whose data the others' functions would be compiled."""
    bad = {0: raises, 5: of_another_shape, 7: ends, 11: leaves, 20: of_no_rows, 21: raises, 33: ends}
    members = [
        dd.Agent(bad.get(i) or np.ones((4, 3)) * i / AGENTS, name=bad[i].__name__ + f" {i}" if i in bad else None)
        for i in range(AGENTS)
    ]
    path = np.tile(np.r_[np.arange(AGENTS), np.arange(AGENTS)], (4, 1))
    with dd.Network(members, processes=2) as network:
        found = go(network, paths=path, num_samples=2 * AGENTS, tokens=4, quorum=30, patience=120.0)
    assert set(found.set_aside) == {f"{loader.__name__} {i}" for i, loader in bad.items()}
    assert (np.delete(found.visits, list(bad)) == 8).all()
    assert not found.visits[list(bad)].any()
    assert "secret" not in caplog.text + str(found)


def test_whatever_one_of_many_raises_the_others_are_answered_for(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    class Beyond(BaseException):
        pass

    def exits():
        raise SystemExit("a secret row")

    def beyond():
        raise Beyond("a secret row")

    flag = "jax_cpu_enable_async_dispatch"
    before = jax.config.read(flag)
    host = HostActor(10, "-".join(map(str, tmp_path.parts[1:])))
    jax.config.update(flag, before)
    members = [dd.Agent(loader) for loader in (beyond, lambda: np.ones((4, 3)), exits, lambda: np.zeros((4, 3)))]
    said = host.prepare(WALK, sent_spec(PROBLEM), unsigned(members))
    assert isinstance(replies.parsed(said), replies.Ready), said
    asked = np.concatenate([np.zeros((4, 3)), np.arange(10, 14)[:, None].astype(np.uint64).view(float)], axis=1)
    answer = replies.parsed(host.answer(WALK + asked.tobytes()))
    host.end()
    assert isinstance(answer, bytes)
    rows = np.frombuffer(answer, np.uint64).reshape(4, -1)
    assert rows[:, -1].tolist() == [0, 1, 0, 1]
    assert rows[1, :-1].view(float)[0] == 1.0  # the loss at 0
    assert (rows[[0, 2]] == 0).all()


@pytest.mark.slow
def test_one_of_many_in_a_process_is_judged_by_its_own_answers(cluster, caplog):
    """As one in a process of its own would be: told of, or set aside where bounds are asked for; nobody else is."""
    data = np.random.default_rng(0).normal(size=(AGENTS, 4, 3))
    data[7] *= -100
    with dd.Network([dd.Agent(xi) for xi in data], processes=2) as network:
        told = go(network, num_samples=400)
        assert list(told.loud) == ["agent 7"]
        assert not told.set_aside
        assert caplog.text.count("agent 7 is loud: its loss") == 1
        assert "loud: its loss has the norm" in str(told)
        for bounds in ("auto", 500.0):
            without = go(network, num_samples=400, bounds=bounds)
            assert list(without.set_aside) == ["agent 7"]
            assert without.set_aside["agent 7"].startswith("its loss has the norm")
            assert without.visits[7] == 0
            assert not without.loud
            assert (np.delete(without.visits, 7) > 0).all()
