"""Walks survive: agents, nodes and the hub killed with SIGKILL, agents that answer wrongly, late or not at all."""

import itertools
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from ergodrift import distributed as dd
from ergodrift.data.sampler import BLOCK
from ergodrift.distributed import network as networks
from ergodrift.distributed import trip as trips
from ergodrift.distributed.desk import Desk
from ergodrift.distributed.roll import Roll
from ergodrift.distributed.tokens import MOVED, Hub
from ergodrift.distributed.trip import Trip
from walks import AGENTS, DIM, GRAPH, PROBLEM, SOURCE, ZERO, agents, same

pytestmark = [pytest.mark.slow, pytest.mark.x64("walks equal their simulation to float64's digits")]

EDPP = ed.edpp(4.0)
walks = sys.modules["ergodrift.distributed.walk"]  # the package exports the function under the same name


def walk(network, **options):
    given = {"graph": GRAPH, "algorithm": EDPP, "x0": ZERO, "num_samples": 60, "record": 5} | options
    return dd.walk(PROBLEM, agents=network, **given)


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


def desks(node):
    """The agents' processes on a node (Ray's process there), those that are just starting included."""
    return [one for one in children(node) if "ray::Desk" in command(one)]


def command(process):
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""  # it has ended meanwhile


class Visited:
    """Keeps where each token was when it made a round."""

    def __init__(self, monkeypatch):
        self.hops = []
        before = Hub.arrive

        def arrive(hub, carry, sheet):
            carry, questions = before(hub, carry, sheet)
            asked = sheet.reshape(len(questions), -1)[:, -2].astype(int)
            self.hops.append(np.where(questions[:, -1] == MOVED, asked, -1))
            return carry, questions

        monkeypatch.setattr(Hub, "arrive", arrive)

    def path(self, token):
        places = np.array(self.hops)[:, token]
        return places[places >= 0]


def at_hop(monkeypatch, actions):
    """Do something at some hops, while the agents are being asked."""
    before = Trip._observe

    def observe(trip):
        actions.pop(trip.hop, lambda: None)()
        return before(trip)

    monkeypatch.setattr(Trip, "_observe", observe)


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
        whole = walk(network, **options)
        victims, before = network.processes(), Roll.ask

        def ask(roll, questions):
            """Killed before they are asked: an answer that is already on its way would need nobody."""
            while victims and sum(roll.messages) == 80:
                slow.touch()
                os.kill(victims.pop(), signal.SIGKILL)
            return before(roll, questions)

        monkeypatch.setattr(Roll, "ask", ask)
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
        bystanders = set(desks(node)) - set(network.processes())  # agents of other tests

        def burst():
            """13 kills of agents at work or just starting, at random moments."""
            quota = len(killed) + 13
            while len(killed) < quota:
                ours = [process for process in desks(node) if process not in bystanders]
                for process in rng.permutation(ours)[: rng.integers(1, 4)]:
                    os.kill(process, signal.SIGKILL)
                    killed.append(process)
                time.sleep(rng.uniform(0, 0.3))

        at_hop(monkeypatch, {int(hop): burst for hop in rng.choice(500, 8, replace=False)})
        again = walk(network, patience=300, **options)
    assert len(killed) >= 100
    assert again.restarts.sum() >= 8  # a burst is noticed; most of its kills hit agents that were just starting
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
    dd.walk(PROBLEM, GRAPH, agents(), ed.mdpp(), x0=ZERO, num_samples=2000, tokens=2, record=5,
            checkpoint={file!r}, checkpoint_every=50, address={address!r})
"""


def test_a_hub_killed_and_resumed_changes_no_bit(cluster, network, tmp_path, monkeypatch):
    file, log = tmp_path / "walk.npz", tmp_path / "log"
    address = cluster.get_runtime_context().gcs_address
    script = HUB.format(tests=str(Path(__file__).parents[1]), file=str(file), address=address)
    with log.open("wb") as out:
        command = [sys.executable, "-c", textwrap.dedent(script)]
        hub = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "RAY_AUTH_MODE": "disabled"})
        deadline = time.monotonic() + 120
        while not file.exists() and hub.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        hub.kill()
        assert hub.wait() == -signal.SIGKILL, log.read_text()
    options = {"algorithm": ed.mdpp(), "num_samples": 2000, "tokens": 2}
    visited = Visited(monkeypatch)
    resumed = walk(network, checkpoint=file, checkpoint_every=50, **options)
    assert 0 < len(visited.hops) < 2000
    assert (2000 - len(visited.hops)) % BLOCK  # from the middle of a block of hops
    whole = walk(network, **options)
    assert same(whole.result, resumed.result)
    assert np.array_equal(whole.visits, resumed.visits)
    assert resumed.bytes.sum() == whole.bytes.sum() + 2 * ZERO.nbytes  # what was on its way was asked once more


def test_a_full_disk_costs_a_walk_its_file_and_nothing_else(network, tmp_path, monkeypatch):
    file, options = tmp_path / "walk.npz", {"num_samples": 100, "tokens": 2}

    def fails(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.warns(UserWarning, match=r"walk\.npz could not be written .*No space left") as said:
            walked = walk(network, checkpoint=file, checkpoint_every=10, **options)
    assert len(said) == 2  # once on the way, and at the end
    assert list(tmp_path.iterdir()) == []
    assert same(walked.result, walk(network, checkpoint=file, **options).result)


def test_a_walk_is_written_every_so_many_seconds_too(network, tmp_path, monkeypatch):
    """By default it would be written after 1,000 hops, and many walks are shorter than that."""
    file, options = tmp_path / "walk.npz", {"num_samples": 100, "tokens": 2}
    monkeypatch.setattr(trips, "WRITE", 0.0)
    with monkeypatch.context() as patch:
        at_hop(patch, {70: lambda: 1 / 0})
        with pytest.raises(ZeroDivisionError):
            walk(network, checkpoint=file, **options)
    visited = Visited(monkeypatch)
    resumed = walk(network, checkpoint=file, **options)
    assert 100 - 69 <= len(visited.hops) < 100
    assert same(resumed.result, walk(network, **options).result)


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
            whole = walk(network, tokens=2)

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


# Agents that answer wrongly, late or not at all.


class Faulty(Desk):
    """Does what its agent is called, from its third question on."""

    times = 0

    def answer(self, asked):  # type: ignore[override]
        good = super().answer(asked)
        if good == b"":
            return good
        self.times += 1
        if self.times < 3:
            return good
        match self.agent.name:
            case "nan":
                return b"\xff" * len(good)
            case "gradient":
                return good[:8] + b"\xff" * (8 * DIM) + good[8 + 8 * DIM :]
            case "shape":
                return good[:-4]
            case "words":
                return "sorry"
            case "fails":
                raise OSError("disk full")
            case "silent":
                time.sleep(1e6)
            case "late" if self.times == 3:
                time.sleep(4.5)
        return good


@pytest.fixture
def faulty(cluster, monkeypatch):
    """Networks whose agents do what they are called."""
    cloudpickle = sys.modules["ray.cloudpickle"]
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr(networks, "Desk", Faulty)
    opened = []

    def make(*names):
        opened.append(dd.Network([dd.Agent(agents()[i % AGENTS].data, name=name) for i, name in enumerate(names)]))
        return opened[-1]

    yield make
    for network in opened:
        network.close()
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def bytes_of_an_answer(local_rounds):
    """f, its gradient, g and its Jacobian; or t, x, Q, two weights, sums of x, f and g, and a flag; a word each."""
    return 8 * (1 + DIM + 2 + 2 * DIM if local_rounds == 1 else 1 + DIM + 2 + 2 + DIM + 1 + 2 + 1)


@pytest.mark.parametrize("local_rounds", [1, 3])
def test_wrong_answers_are_reported_by_name_and_never_taken_in(faulty, monkeypatch, caplog, local_rounds):
    """What is left is a walk on the graph, and its numbers are those of the rounds that were made."""
    names = ("a", "nan", "b", "shape", "c", "words", "d", "fails")
    ring = np.roll(np.eye(8), 1, axis=1) + np.roll(np.eye(8), -1, axis=1) + np.roll(np.eye(8), 4, axis=1)
    visited, network = Visited(monkeypatch), faulty(*names)
    with caplog.at_level(logging.WARNING, logger="ergodrift.distributed"):
        done = walk(
            network, graph=ring, num_samples=90 * local_rounds, tokens=2, local_rounds=local_rounds, quorum=4, record=1
        )
    assert {name: reason.split(",")[0] for name, reason in done.set_aside.items()} == {
        "nan": "its answer is not finite",
        "shape": f"its answer has {bytes_of_an_answer(local_rounds) - 4} bytes",
        "words": "it answered with str",
        "fails": "it failed with OSError('disk full')",
    }
    for name in ("nan", "shape", "words", "fails"):
        assert f"{name} is set aside" in caplog.text
        assert done.visits[names.index(name)] <= 2 * 2
        assert done.unanswered[names.index(name)] >= 1
    assert done.held.sum() == done.unanswered.sum() > 0
    assert done.pieces == 2  # 0 and 4 are neighbours, 2 and 6 are; all else went through those set aside
    assert "fall into 2 parts" in str(done)
    assert np.array_equal(np.asarray(done.result.rounds)[:, -1], (90 - done.held) * local_rounds)
    assert np.array_equal(np.asarray(done.result.samples_used)[:, -1], (90 - done.held) * local_rounds)
    for token in range(2):
        path = visited.path(token)
        assert all(one == other or ring[one, other] for one, other in itertools.pairwise(path))
        repeated = np.repeat(path % AGENTS, local_rounds)
        run = ed.run(EDPP, PROBLEM, SOURCE, x0=ZERO, num_samples=len(repeated), paths=repeated, record=1)
        np.testing.assert_allclose(done.x[token], run.x[0, -1], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(done.queue[token], run.queue[0, -1], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(done.result.loss_sum[token, -1], run.loss_sum[0, -1], rtol=1e-12)


def test_late_answers_are_discarded_and_silent_agents_done_without(faulty, monkeypatch, caplog):
    visited, network = Visited(monkeypatch), faulty("a", "late", "silent")
    done = walk(network, num_samples=4000, tokens=1, quorum=1, patience=3.0, record=1)
    # On a machine that is busy with other things an agent may be late for other reasons, too.
    assert done.late >= 1
    assert list(done.set_aside) == ["silent"]
    assert "away, no answer within 3 seconds" in done.set_aside["silent"]
    assert done.held.sum() == done.unanswered.sum() == 4000 - len(visited.path(0))
    assert (done.unanswered[1:] >= 1).all()
    path = visited.path(0)
    assert (path == 1).sum() > 2 >= (path == 2).sum()  # "late" is asked again once it is back
    run = ed.run(EDPP, PROBLEM, SOURCE, x0=ZERO, num_samples=len(path), paths=path, record=1)
    np.testing.assert_allclose(done.x[0], run.x[0, -1], rtol=1e-12, atol=1e-12)
    assert "late is back" in caplog.text
    # Late answers have travelled, too: all messages beyond the questions are answers, in time or late.
    question, answer = ZERO.nbytes, bytes_of_an_answer(1)
    assert done.bytes.sum() - done.messages.sum() * question == (done.visits.sum() + done.late) * (answer - question)


def slow_to_compile(x, xi):
    time.sleep(1.2)  # when it is traced, that is, not when it is called
    return jnp.sum((x - xi) ** 2)


def test_agents_compile_before_they_are_asked(cluster):
    """Patience is for answers."""
    cloudpickle = sys.modules["ray.cloudpickle"]
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    problem = ed.Problem(slow_to_compile, lambda x, xi: x[:1] - xi[:1], ed.Ball(1.0))
    with dd.Network([dd.Agent(np.ones(DIM)), dd.Agent(np.zeros(DIM))]) as network:
        done = dd.walk(problem, np.ones((2, 2)), network, EDPP, x0=ZERO, num_samples=20, tokens=5, patience=1.0)
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert not done.held.any()
    assert not done.set_aside


@pytest.mark.parametrize("local_rounds", [1, 2])
def test_a_token_that_diverges_is_nobodys_fault(cluster, local_rounds):
    problem = ed.Problem(lambda x, xi: jnp.sum(x * xi), lambda x, xi: x[:1] + 1.5e308 * xi[:1], ed.Ball(1.0))
    members = [dd.Agent(np.ones(DIM), name=name) for name in "ab"]
    with pytest.raises(ed.NonFiniteError, match=r"token 0: .* not finite after hop [1-9], .* the answer of [ab] is"):
        dd.walk(problem, np.ones((2, 2)), members, EDPP, x0=ZERO, num_samples=20, local_rounds=local_rounds)


def test_a_sum_that_overflows_is_said(cluster):
    problem = ed.Problem(lambda x, xi: 5e307 + jnp.sum(x * xi), lambda x, xi: x[:1] - xi[:1], ed.Ball(1.0))
    with pytest.raises(ed.NonFiniteError, match=r"token 0: a sum of losses or constraints is not finite at hop 4"):
        dd.walk(problem, np.ones((2, 2)), (dd.Agent(np.ones(DIM)) for _ in "ab"), EDPP, x0=ZERO, num_samples=20)


def test_below_the_quorum_the_walk_stops_and_can_go_on(faulty, network, tmp_path):
    file = tmp_path / "walk.npz"
    options = {"num_samples": 400, "tokens": 2, "checkpoint": file, "quorum": 2}
    members = faulty("agent 0", "fails", "nan")
    members.names[1:] = ["agent 1", "agent 2"]
    with pytest.raises(
        dd.QuorumError, match=r"1 of 3 agents left .* below quorum=2 .*disk full.* is kept in .*walk\.npz"
    ):
        walk(members, **options)
    done = walk(network, **options)  # the same agents, repaired
    assert not done.set_aside
    assert 1 <= done.held.sum() <= 4
    assert (np.asarray(done.result.rounds)[:, -1] == 400 - done.held).all()


# Checkpoints.


def test_checkpoints_that_are_damaged_or_of_another_walk_are_refused(network, tmp_path):
    file = tmp_path / "walk.npz"
    first = walk(network, checkpoint=file)
    assert same(first.result, walk(network, checkpoint=file).result)
    assert walk(network, checkpoint=file).messages.sum() == first.messages.sum()
    for other in ({"algorithm": ed.edpp(5.0)}, {"num_samples": 120}, {"tokens": [1]}, {"local_rounds": 2}):
        with pytest.raises(ValueError, match=r"cannot be used: it belongs to a run with other arguments"):
            walk(network, checkpoint=file, **other)
    whole = file.read_bytes()
    for broken in (whole[: len(whole) // 2], b"", whole[:200] + bytes(200) + whole[400:]):
        file.write_bytes(broken)
        with pytest.raises(ValueError, match=r"walk\.npz cannot be used"):
            walk(network, checkpoint=file)
    file.write_bytes(whole)
    with np.load(file) as saved:
        arrays = dict(saved)
    assert "state[0].state.x" in arrays  # a reader without this code can tell what is what
    np.savez(file, **{**arrays, "state[3]": arrays["state[3]"][:-1]})
    with pytest.raises(ValueError, match=r"cannot be used: state\[3\] is int64 of shape \(5, 3\), not .* \(6, 3\)"):
        walk(network, checkpoint=file)
    np.savez(file, format=np.array("ergodrift run v4", object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"cannot be used: Object arrays cannot be loaded"):
        walk(network, checkpoint=file)


def limited(limit, factor=1.0):
    """Written anew at every call."""
    return ed.Problem(
        lambda x, xi: factor * PROBLEM.loss(x, xi), lambda x, xi: PROBLEM.constraints(x, xi) - limit, ed.Ball(1.5)
    )


@pytest.mark.parametrize("local_rounds", [1, 2])
def test_a_checkpoint_of_a_walk_refuses_functions_that_changed(network, tmp_path, local_rounds):
    def go(problem, **options):
        given = {"x0": ZERO, "num_samples": 20, "record": 1, "local_rounds": local_rounds} | options
        return dd.walk(problem, GRAPH, network, EDPP, checkpoint=tmp_path / "walk.npz", **given)

    first = go(limited(0.5))
    assert same(first.result, go(limited(0.5)).result)
    for other, named in [
        (limited(0.1), "constraints"),
        (limited(0.5, factor=2.0), "loss"),
        (ed.Problem(PROBLEM.loss, limited(0.5).constraints, ed.Ball(1.6)), "loss and domain and algorithm"),
    ]:
        with pytest.raises(ValueError, match=f"belongs to a run with other arguments: changed {named};"):
            go(other)
    with pytest.raises(ValueError, match="changed tokens, paths or x0;"):
        go(limited(0.5), x0=ZERO + 0.1)


def test_functions_of_agents_that_keep_shapes_private_are_told_by_their_code():
    told = [{"loss": "a", "constraints": "b"}, {}]
    one, again, other = (walks._functions(limited(limit), told) for limit in (0.5, 0.5, 0.1))
    assert one == again
    assert one["loss"] == other["loss"]
    assert one["constraints"] != other["constraints"]


def test_a_gradient_that_is_not_finite_never_enters_a_window(faulty):
    """Loss and constraints are fine, and MDPP takes no step yet: only who sent it is set aside."""
    done = walk(faulty("a", "gradient", "b"), algorithm=ed.mdpp(), num_samples=60, patience=20)
    assert done.set_aside == {"gradient": "its answer is not finite"}
    assert np.isfinite(done.x).all()
    with pytest.raises(ValueError, match="regret needs the path, and only 0 of"):
        ed.metrics.benchmark_losses(done.result, PROBLEM, SOURCE, [ed.Reference(ZERO, 0.0, ZERO, ZERO, 0.0)])
