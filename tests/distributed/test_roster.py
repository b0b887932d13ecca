"""Who is asked again, away, back, or set aside, on a clock of our own."""

import dataclasses
import math
import types
from typing import Any

import numpy as np
import pytest

from ergodrift.distributed import roster as rosters

pytestmark = pytest.mark.x64("walks equal their simulation to float64's digits")


class RayError(Exception):
    pass


class GetTimeoutError(RayError):
    pass


class RayTaskError(RayError):
    pass


class Clockwork:
    """A Ray whose time is a number: agents that are silent for ever, and the last one, whose process has just died."""

    exceptions = types.SimpleNamespace(RayError=RayError, GetTimeoutError=GetTimeoutError, RayTaskError=RayTaskError)

    def __init__(self, agents, back, loads):
        self.now, self.back, self.loads, self.prepared = 0.0, back, loads, False
        self.ray, self.agents, self.names = self, [None] * agents, [f"agent {i}" for i in range(agents)]
        self.missing: Any = None  # what it answers, if not what it should
        self.ask = [*[lambda sent: Reply(math.inf, b"")] * (agents - 1), self.answer]
        methods = {"prepare": self.prepare, "process_id": lambda: Reply(self.now, 7)}
        actor = types.SimpleNamespace(**{k: types.SimpleNamespace(remote=method) for k, method in methods.items()})
        self.actors = [None] * (agents - 1) + [actor]

    def answer(self, sent):
        if self.missing is not None:
            return Reply(self.now + 0.01, self.missing)
        if self.now < self.back:
            return Reply(self.now, RayError("its process died"))
        return Reply(self.now, bytes(8) if self.prepared else b"")

    def prepare(self, walk, spec):
        self.prepared = True
        return Reply(self.now + self.loads, 1)

    def get(self, ref, timeout=math.inf):
        self.now = max(self.now, min(ref.at, self.now + timeout))
        if ref.at > self.now:
            raise GetTimeoutError
        if isinstance(ref.value, Exception):
            raise ref.value
        return ref.value

    def wait(self, refs, timeout):
        self.now = max(self.now, min(min(ref.at for ref in refs), self.now + timeout))
        return [ref for ref in refs if ref.at <= self.now][:1], []

    def put(self, value):
        return value

    def restart(self, agent, error):
        pass

    def look_until_all_are_back(self, roster):
        while roster.probes:
            self.now += 0.5
            roster.poll()

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@dataclasses.dataclass(eq=False)
class Reply:
    at: float
    value: object


@pytest.mark.parametrize("silent", [0, 1, 40, 100])
def test_who_is_restarted_waits_for_nobody_who_is_silent(monkeypatch, silent):
    clock = Clockwork(silent + 1, back=3.0, loads=25.0)
    monkeypatch.setattr(rosters, "time", clock)
    roster = rosters.Roster(clock, b"", b"", 8, 8, 1, patience=60.0)  # type: ignore[arg-type]
    found = roster.ask(dict.fromkeys(range(silent + 1), bytes(8)))()
    assert list(found) == [silent]
    assert roster.present.tolist() == [False] * silent + [True]
    assert sum(roster.restarts) == 1
    assert clock.now == pytest.approx(60.0 if silent else 28.0, abs=0.1)
    assert not roster.preparing


def test_what_takes_longer_to_load_than_patience_lasts_is_away(monkeypatch):
    clock = Clockwork(1, back=3.0, loads=90.0)
    monkeypatch.setattr(rosters, "time", clock)
    roster = rosters.Roster(clock, b"", b"", 8, 8, 1, patience=60.0)  # type: ignore[arg-type]
    assert roster.ask({0: bytes(8)})() == {}
    assert clock.now == pytest.approx(60.0)
    assert list(roster.probes) == [0]
    clock.now = 94.0
    roster.poll()
    assert roster.all_present
    assert roster.late == 0  # it has said that it is there, and answered nothing


@pytest.mark.parametrize("instead", [b"", RayError("its process died")])
def test_who_is_there_but_never_answers_is_set_aside(monkeypatch, instead):
    """As one that is killed for want of memory whenever it is asked."""
    clock = Clockwork(1, back=0.0, loads=1.0)
    clock.missing = instead
    monkeypatch.setattr(rosters, "time", clock)
    roster = rosters.Roster(clock, b"", b"", 8, 8, 1, patience=60.0)  # type: ignore[arg-type]
    for time in range(rosters.MAX_MISSES):
        assert not roster.reasons
        assert roster.ask({0: bytes(8)})() == {}
        assert clock.now == pytest.approx(60.0 * (time + 1), abs=5.0)
        clock.look_until_all_are_back(roster)
    assert roster.reasons == {0: "no answer within 60 seconds, 3 times in a row"}
    assert not roster.probes


def test_one_good_answer_and_the_count_begins_anew(monkeypatch):
    clock = Clockwork(1, back=0.0, loads=1.0)
    monkeypatch.setattr(rosters, "time", clock)
    roster = rosters.Roster(clock, b"", b"", 8, 8, 1, patience=60.0)  # type: ignore[arg-type]
    for _ in range(2 * rosters.MAX_MISSES):
        clock.missing = RayError("its process died")
        assert roster.ask({0: bytes(8)})() == {}
        clock.look_until_all_are_back(roster)
        clock.missing = None
        assert roster.ask({0: bytes(8)})() == {0: bytes(8)}
    assert roster.all_present


def test_an_answer_that_is_an_array_is_a_wrong_one(monkeypatch):
    clock = Clockwork(1, back=0.0, loads=1.0)
    clock.missing = np.ones(2)
    monkeypatch.setattr(rosters, "time", clock)
    roster = rosters.Roster(clock, b"", b"", 8, 8, 1, patience=60.0)  # type: ignore[arg-type]
    assert roster.ask({0: bytes(8)})() == {}
    assert roster.reasons == {0: "it answered with ndarray, not with bytes"}
