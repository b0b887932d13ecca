"""Agents that cannot take part, clusters that are not there, and one walk at a time."""

import os
import re
import socket
import sys
import time
import types
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from ergodrift import distributed as dd
from ergodrift.distributed import network as networks
from ergodrift.distributed.replies import read
from walks import EDPP, GRAPH, PROBLEM, ZERO, agents

pytestmark = pytest.mark.x64("walks equal their simulation to float64's digits")


def slow_to_compile(x, xi):
    time.sleep(1.2)  # when it is traced, that is, not when it is called
    return PROBLEM.loss(x, xi)


@pytest.mark.slow
def test_agents_compile_before_they_are_asked(network):
    """Patience is for answers."""
    problem = ed.Problem(slow_to_compile, PROBLEM.constraints, ed.Ball(1.0))
    done = dd.walk(EDPP, problem, GRAPH, network, x0=ZERO, num_samples=20, tokens=5, patience=1.0)
    assert not done.held.any()
    assert not done.set_aside


def test_a_network_is_for_one_walk_at_a_time_until_it_is_closed(cluster):
    one = ed.MarkovChain([[1.0]])
    with dd.Network(agents(1)) as network:
        with network.exclusive(), pytest.raises(RuntimeError, match=r"there is a walk on this Network already"):
            dd.walk(EDPP, PROBLEM, one, network, x0=ZERO, num_samples=4)
        with pytest.raises(ValueError, match=r"x0"):
            dd.walk(EDPP, PROBLEM, one, network, x0=ZERO + 9, num_samples=4)
        assert dd.walk(EDPP, PROBLEM, one, network, x0=ZERO, num_samples=4).hops == 4
    with pytest.raises(RuntimeError, match=r"this Network is closed"):
        dd.walk(EDPP, PROBLEM, one, network, x0=ZERO, num_samples=4)


def test_an_address_where_nobody_is_is_said_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens there
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=rf"address='{address}': nobody answers there .*is the cluster up"):
            networks._check_reachable(address)
        taken.listen()
        for good in (address, "auto", "local", "ray://192.0.2.1:10001"):
            networks._check_reachable(good)


@pytest.mark.slow
def test_what_nobody_asks_for_is_not_unpickled(network, cluster, tmp_path):
    """Neither what comes when its reference is gone, nor what was there before that; nor when agents are ended."""

    class BombError(Exception):
        """Makes a folder where it is unpickled."""

        def __init__(self, folder):
            self.folder = folder

        def __reduce__(self):
            return os.mkdir, (self.folder,)

    class Raises:
        def fail(self, folder):
            raise BombError(folder)

        def done(self):
            return b""

    actor = network.actor(Raises, {})
    actor.fail.remote(str(tmp_path / "early"))
    late = actor.fail.remote(str(tmp_path / "late"))
    read(cluster, actor.done.remote(), 60.0)
    time.sleep(0.5)
    del late
    time.sleep(0.5)
    assert not list(tmp_path.iterdir())
    source = "".join(file.read_text() for file in Path(dd.__file__).parent.glob("*.py"))
    assert not re.search(r"\bray\.get\(", source)


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=re.escape('pip install "ergodrift[ray]"')):
        dd.Network(agents())


def test_what_an_agent_needs_is_asked_of_ray():
    """Cores and GPUs, or shares of them, by Ray's own names; all else as resources that machines are labelled with."""
    asked = {}

    class Ray:
        @staticmethod
        def remote(kind):
            return Ray

        @staticmethod
        def options(**options):
            asked.update(options)
            return types.SimpleNamespace(remote=lambda *arguments: arguments)

    network = dd.Network.__new__(dd.Network)
    network.ray, network.runtime_env = Ray, {"working_dir": "."}  # type: ignore[assignment]
    assert network.actor(object, {"CPU": 2, "GPU": 0.5, "site:a": 1}, 7) == (7,)
    assert (asked["num_cpus"], asked["num_gpus"], asked["resources"]) == (2, 0.5, {"site:a": 1})
    assert asked["runtime_env"] == {"working_dir": "."}
    network.actor(object, {})
    assert (asked["num_cpus"], asked["num_gpus"], asked["resources"]) == (0, 0, {})


def visible_gpu():
    """What Ray lets the agent's process see."""
    return np.array([float(os.environ["CUDA_VISIBLE_DEVICES"])])


@pytest.mark.slow
def test_agents_have_shares_of_gpus_as_ray_counts_them(cluster, monkeypatch):
    """Two halves of the GPU are taken, and who asks for a third one is done without until there is room."""
    monkeypatch.setattr("ergodrift.distributed.gathering.GRACE", 1.0)
    members = [dd.Agent(visible_gpu, name=name, resources={"GPU": 0.5}) for name in ("a", "b", "c")]
    problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x - 1.0, ed.Ball(1.0))
    with dd.Network(members) as network:
        done = dd.walk(EDPP, problem, GRAPH, network, x0=np.ones(1), num_samples=60, quorum=2)
    assert len(done.set_aside) == 1
    (name,) = done.set_aside
    assert done.set_aside[name] == "away, not ready yet"
    assert sorted(done.visits > 0) == [False, True, True]
    assert done.visits["abc".index(name)] == 0
