"""Agents that answer wrongly, late or not at all are never believed, and done without."""

import contextlib
import itertools
import logging
import os
import re
import sys
import time

import numpy as np
import pytest

import ergodrift as ed
from ergodrift import distributed as dd
from ergodrift.distributed import network as networks
from ergodrift.distributed import wire
from ergodrift.distributed.actor import AgentActor
from ergodrift.distributed.faults import plain
from walks import AGENTS, DIM, EDPP, PROBLEM, SOURCE, ZERO, Visited, agents, walk

pytestmark = [pytest.mark.slow, pytest.mark.x64("walks equal their simulation to float64's digits")]


class Bomb:
    """Runs code wherever it is unpickled."""

    def __reduce__(self):
        return os.abort, ()


class Faulty(AgentActor):
    """Does what its agent is called, from its third question of a walk on."""

    walk, times = b"", 0

    @plain
    def answer(self, asked):  # type: ignore[override]
        good = super().answer(asked)
        if good == b"":
            return good
        walk = asked[: wire.ID_BYTES]
        self.walk, self.times = walk, self.times + 1 if walk == self.walk else 1
        if self.times < 3:
            return good
        match self.agent.name:
            case "nan":
                return b"\xff" * (len(good) - 1) + good[-1:]
            case "gradient":
                return good[:8] + b"\xff" * (8 * DIM) + good[8 + 8 * DIM :]
            case "shape":
                return good[:-5] + good[-1:]
            case "bomb":
                return Bomb()
            case "fails":
                raise OSError("disk full")
            case "silent":
                time.sleep(1e6)
            case "late" if self.times == 3:
                time.sleep(4.5)
            case _:
                pass
        return good


@contextlib.contextmanager
def acting(actor, members):
    """A network whose agents are such actors."""
    cloudpickle, module = sys.modules["ray.cloudpickle"], sys.modules[actor.__module__]
    cloudpickle.register_pickle_by_value(module)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(networks, "AgentActor", actor)
            network = dd.Network(members)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    with network:
        yield network


def faulty(*names):
    """A network whose agents do what they are called."""
    return acting(Faulty, [dd.Agent(agents()[i % AGENTS].data, name=name) for i, name in enumerate(names)])


def bytes_of_an_answer(local_rounds):
    """f, its gradient, g and its Jacobian; or t, x, Q, two weights, sums of x, f and g, and a flag; a word each."""
    return 8 * (1 + DIM + 2 + 2 * DIM if local_rounds == 1 else 1 + DIM + 2 + 2 + DIM + 1 + 2 + 1)


WRONG = ("a", "nan", "b", "shape", "c", "bomb", "d", "fails")


@pytest.fixture(scope="module")
def wrong(cluster):
    """Every other agent answers wrongly, in every walk."""
    with faulty(*WRONG) as network:
        yield network


@pytest.mark.parametrize("local_rounds", [1, 3])
def test_wrong_answers_are_reported_by_name_and_never_taken_in(wrong, monkeypatch, caplog, local_rounds):
    """What is left is a walk on the graph, and its numbers are those of the rounds that were made."""
    ring = np.roll(np.eye(8), 1, axis=1) + np.roll(np.eye(8), -1, axis=1) + np.roll(np.eye(8), 4, axis=1)
    visited = Visited(monkeypatch)
    with caplog.at_level(logging.WARNING, logger="ergodrift.distributed"):
        done = walk(
            wrong, graph=ring, num_samples=90 * local_rounds, tokens=2, local_rounds=local_rounds, quorum=4, record=1
        )
    reasons = {name: re.sub(r":\d+", ":0", reason.split(",")[0]) for name, reason in done.set_aside.items()}
    # Both tokens may have come to it at once.
    together = 1 if f" {bytes_of_an_answer(local_rounds) - 4} " in reasons["shape"] else 2
    assert reasons == {
        "nan": "its answer is not finite",
        "shape": f"its answer has {bytes_of_an_answer(local_rounds) * together - 4} bytes",
        "bomb": "it answered with an object",
        "fails": "it failed with OSError at test_wrong_answers.py:0 in answer; its own log has the text",
    }
    for name in ("nan", "shape", "bomb", "fails"):
        assert f"{name} is set aside" in caplog.text
        assert done.visits[WRONG.index(name)] <= 2 * 2
        assert done.unanswered[WRONG.index(name)] >= 1
    assert done.held.sum() == done.unanswered.sum() > 0
    assert done.components == 2  # 0 and 4 are neighbours, 2 and 6 are; all else went through those set aside
    assert "2 components" in str(done)
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


def test_late_answers_are_discarded_and_silent_agents_done_without(cluster, monkeypatch, caplog):
    visited = Visited(monkeypatch)
    with faulty("a", "late", "silent") as network:
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


def test_below_the_quorum_the_walk_stops_and_can_go_on(network, tmp_path):
    file = tmp_path / "walk.npz"
    options = {"num_samples": 400, "tokens": 2, "checkpoint": file, "quorum": 2}
    stopped = r"1 of 3 agents left .* below quorum=2 .*OSError at .* is kept in .*walk\.npz"
    with faulty("agent 0", "fails", "nan") as members:
        members.names[1:] = ["agent 1", "agent 2"]
        with pytest.raises(dd.QuorumError, match=stopped):
            walk(members, **options)
    done = walk(network, **options)  # the same agents, repaired
    assert not done.set_aside
    assert 1 <= done.held.sum() <= 4
    assert (np.asarray(done.result.rounds)[:, -1] == 400 - done.held).all()


def test_a_gradient_that_is_not_finite_never_enters_a_window(cluster):
    """Loss and constraints are fine, and MDPP takes no step yet: only who sent it is set aside."""
    with faulty("a", "gradient", "b") as network:
        done = walk(network, algorithm=ed.mdpp(), num_samples=60, patience=20)
    assert done.set_aside == {"gradient": "its answer is not finite"}
    assert np.isfinite(done.x).all()
    with pytest.raises(ValueError, match="regret needs the path, and only 0 of"):
        ed.metrics.benchmark_losses(done.result, PROBLEM, SOURCE, [ed.Reference(ZERO, 0.0, ZERO, ZERO, 0.0)])
