"""Who is waited for at the start of a walk, on a clock of our own."""

import math
import types
from typing import Any

import pytest
from test_roster import READY, Reply

from ergodrift.distributed import gathering, replies
from ergodrift.distributed.peers import AgentError


class Start:
    """A Ray whose time is a number, and agents that are ready at given times, or that no machine has room for."""

    def __init__(self, ready_at):
        self.now, self.ray, self.excluded, self.changes = 0.0, self, set(), 0
        self.names = [f"agent {i}" for i in range(len(ready_at))]
        self.agents = [types.SimpleNamespace(resources={"mars": 1.0} if at is None else {}) for at in ready_at]
        self.actors = [self.actor(math.inf if at is None else at) for at in ready_at]

    def actor(self, at):
        return types.SimpleNamespace(
            prepare=types.SimpleNamespace(remote=lambda walk, spec: Reply(at, replies.ready(READY)))
        )

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 2.0}}]

    def put(self, value):
        return value

    def wait(self, refs, num_returns, timeout):
        self.now += timeout
        return [ref for ref in refs if ref.at <= self.now], []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def gathered(monkeypatch):
    def gathered(ready_at, quorum):
        start: Any = Start(ready_at)
        monkeypatch.setattr(gathering, "time", start)
        monkeypatch.setattr(gathering, "read", lambda ray, ref, timeout: ref.value)
        return gathering.gather(start, b"", b"", 1.0, quorum), start.now

    return gathered


def test_who_has_no_place_holds_nobody_up_once_there_is_a_quorum(gathered, caplog):
    came, seconds = gathered([2.0, None, 6.0, None], quorum=1)
    assert set(came.ready) == {0, 2}
    assert set(came.awaited) == {1, 3}
    assert seconds == pytest.approx(6.0, abs=0.3)
    assert "agent 1: no machine of the cluster has {'mars': 1.0}" in caplog.text
    assert "waiting for agent 1, agent 2, agent 3" in caplog.text


def test_who_is_slow_has_some_time_more(gathered):
    came, seconds = gathered([2.0, 12.0, 40.0], quorum=1)
    assert set(came.ready) == {0, 1}
    assert seconds == pytest.approx(2.0 + gathering.GRACE, abs=0.3)


def test_a_machine_that_a_quorum_needs_is_waited_for(gathered):
    with pytest.raises(AgentError, match=r"agent 1 was not ready in time, 120 seconds; is there a node with {'mars'"):
        gathered([2.0, None], quorum=2)
