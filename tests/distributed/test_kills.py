"""Walks survive agents, nodes and hubs that are killed with SIGKILL, to the last bit."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import ergodrift as ed
from ergodrift import distributed as dd
from ergodrift.data.sampler import BLOCK
from ergodrift.distributed.roster import Roster
from walks import ZERO, Visited, agents, at_hop, same, walk

pytestmark = [pytest.mark.slow, pytest.mark.x64("walks equal their simulation to float64's digits")]


def parent(process):
    """The process that started this one."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def children(process):
    """The processes that this one has started and that are still there."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and parent(folder.name) == process:
                found.append(int(folder.name))
        except OSError:
            pass  # it has ended meanwhile
    return found


def descendants(process):
    return [one for child in children(process) for one in (child, *descendants(child))]


def actors(node):
    """The agents' processes on a node (Ray's process there), those that are just starting included."""
    return [one for one in children(node) if "ray::AgentActor" in command(one)]


def command(process):
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""  # it has ended meanwhile


def test_an_agent_killed_on_the_way_changes_no_bit(cluster, monkeypatch):
    with dd.Network(agents()) as network:
        whole = walk(network, tokens=2)
        victims = network.processes()
        at_hop(monkeypatch, {20: lambda: os.kill(victims[1], signal.SIGKILL)})
        again = walk(network, tokens=2)
        assert network.processes()[0] == victims[0]
        assert network.processes()[1] != victims[1]
    assert same(whole.result, again.result)
    assert again.restarts.tolist() == [0, 1, 0]
    assert not again.held.any()
    assert np.array_equal(whole.visits, again.visits)


def test_agents_that_died_together_load_their_data_together(cluster, monkeypatch, tmp_path):
    """One after the other, those of a node with many agents would not be back within anybody's patience."""
    slow = tmp_path / "slow"

    def loader(number):
        def load():
            began = time.time()
            time.sleep(6 if slow.exists() else 0)
            (tmp_path / str(number)).write_text(f"{began} {time.time()}")
            return agents()[number].data

        return load

    with dd.Network([dd.Agent(loader(number)) for number in range(2)]) as network:
        options = {"graph": 1 - np.eye(2), "tokens": 2, "paths": np.repeat([[0], [1]], 60, axis=1)}
        options["barrier"] = True
        whole = walk(network, **options)
        victims, before = network.processes(), Roster.ask

        def ask(roster, questions):
            """Killed before they are asked: an answer that is already on its way would need nobody."""
            while victims and sum(roster.messages) == 80:
                slow.touch()
                os.kill(victims.pop(), signal.SIGKILL)
            return before(roster, questions)

        monkeypatch.setattr(Roster, "ask", ask)
        again = walk(network, **options)
    assert not victims
    times = np.array([(tmp_path / str(number)).read_text().split() for number in range(2)], float)
    assert times[:, 0].max() < times[:, 1].min()
    assert same(whole.result, again.result)
    assert again.restarts.tolist() == [1, 1]


def test_a_hundred_random_kills_in_twenty_thousand_hops_lose_nothing(cluster, monkeypatch):
    """Every update is made once: the result is, to the last bit, that of the walk that nobody disturbed."""
    rng, killed = np.random.default_rng(7), []
    with dd.Network(agents()) as network:
        options = {"num_samples": 500, "tokens": 40}  # 500 hops of 40 tokens
        whole = walk(network, **options)
        node = parent(network.processes()[0])
        bystanders = set(actors(node)) - set(network.processes())  # agents of other tests

        def burst():
            """5 kills of agents at work or just starting, at random moments."""
            quota = len(killed) + 5
            while len(killed) < quota:
                ours = [process for process in actors(node) if process not in bystanders]
                for process in rng.permutation(ours)[: rng.integers(1, 4)]:
                    os.kill(process, signal.SIGKILL)
                    killed.append(process)
                time.sleep(rng.uniform(0, 0.3))

        # All along the walk, and each time after enough answers not to be taken for a crash loop.
        at_hop(monkeypatch, {25 * part + int(rng.integers(5)): burst for part in range(20)})
        again = walk(network, patience=300, **options)
    assert len(killed) >= 100
    assert again.restarts.sum() >= 20  # a burst is noticed; most of its kills hit agents that were just starting
    assert same(whole.result, again.result)
    assert not again.held.any()
    assert np.array_equal(whole.visits, again.visits)


HUB = """
    import sys
    sys.path.insert(0, {tests!r})
    import jax
    jax.config.update("jax_enable_x64", True)
    from walks import GRAPH, PROBLEM, ZERO, agents
    import ergodrift as ed
    from ergodrift import distributed as dd
    dd.walk(ed.mdpp(), PROBLEM, GRAPH, agents(), x0=ZERO, num_samples=2000, tokens=2, record=5,
            checkpoint={file!r}, checkpoint_every=50, address={address!r})
"""


def test_a_hub_killed_and_resumed_changes_no_bit(cluster, network, tmp_path, monkeypatch):
    file, log = tmp_path / "walk.npz", tmp_path / "log"
    address = cluster.get_runtime_context().gcs_address
    script = HUB.format(tests=str(Path(__file__).parents[1]), file=str(file), address=address)
    with log.open("wb") as out:
        command = [sys.executable, "-c", textwrap.dedent(script)]
        hub = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "RAY_AUTH_MODE": "disabled"})
        deadline, written = time.monotonic() + 120, set()
        while len(written) < 3 and hub.poll() is None and time.monotonic() < deadline:
            written |= {file.stat().st_mtime_ns} if file.exists() else set()  # the first is of a token's first hop
            time.sleep(0.001)
        hub.kill()
        assert hub.wait() == -signal.SIGKILL, log.read_text()
    options = {"algorithm": ed.mdpp(), "num_samples": 2000, "tokens": 2}
    visited = Visited(monkeypatch)
    resumed = walk(network, checkpoint=file, checkpoint_every=50, **options)
    made = [len(visited.path(token)) for token in range(2)]
    assert 0 < min(made) <= max(made) < 2000
    assert (2000 - made[0]) % BLOCK  # from the middle of a block of hops
    whole = walk(network, **options)
    assert same(whole.result, resumed.result)
    assert np.array_equal(whole.visits, resumed.visits)
    twice = (resumed.bytes.sum() - whole.bytes.sum()) / ZERO.nbytes  # what was on its way was asked once more
    assert twice in (0, 1, 2)


def joined(address, folder):
    """Another node of the cluster, with what agent "b" needs."""
    command = [
        str(Path(sys.executable).parent / "ray"), "start", f"--address={address}", "--node-ip-address=127.0.0.1",
        "--num-cpus=1", '--resources={"site:b": 1}', "--block", "--disable-usage-stats",
    ]  # fmt: skip
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    with (folder / "log").open("ab") as out:
        return subprocess.Popen(command, stdout=out, stderr=out, env=environment)


def test_a_node_lost_and_joined_again_changes_no_bit(cluster, tmp_path, monkeypatch):
    """All processes of a node are killed; the agent that must run there waits for the node and is asked again."""
    address = cluster.get_runtime_context().gcs_address
    nodes = [joined(address, tmp_path)]
    try:
        members = [*agents(2), dd.Agent(agents()[2].data, name="b", resources={"site:b": 1})]
        with dd.Network(members) as network:
            whole = walk(network, tokens=2, quorum=3)  # the node has still to join

            def lose():
                for process in [nodes[0].pid, *descendants(nodes[0].pid)]:
                    os.kill(process, signal.SIGKILL)
                nodes.append(joined(address, tmp_path))

            at_hop(monkeypatch, {20: lose})
            again = walk(network, tokens=2)
        assert same(whole.result, again.result)
        assert again.restarts[2] == 1
        assert not again.held.any()
    finally:
        for node in nodes:
            node.terminate()
            node.wait()
