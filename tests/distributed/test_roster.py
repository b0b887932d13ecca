"""Who is asked again, away, back, or set aside, on a clock of our own."""

import dataclasses
import math
import re
import types
from typing import Any

import pytest

from ergodrift.distributed import replies
from ergodrift.distributed import roster as rosters
from ergodrift.distributed.gathering import Gathered
from ergodrift.distributed.replies import LostError, NotPlainError

pytestmark = pytest.mark.x64("walks equal their simulation to float64's digits")


READY = replies.Ready(1, {})


class GetTimeoutError(Exception):
    pass


class Clockwork:
    """A Ray whose time is a number: agents that are silent for ever, and the last one, whose process has just died."""

    exceptions = types.SimpleNamespace(GetTimeoutError=GetTimeoutError)

    def __init__(self, agents, back, loads):
        self.now, self.back, self.loads, self.prepared = 0.0, back, loads, False
        self.ray, self.agents, self.names = self, [None] * agents, [f"agent {i}" for i in range(agents)]
        self.excluded, self.changes = set(), 0
        self.missing: Any = None  # what it answers, if not what it should
        self.ask = [*[lambda sent: Reply(math.inf, b"")] * (agents - 1), self.answer]
        methods = {"prepare": self.prepare, "process_id": lambda: Reply(self.now, replies.here(7))}
        actor = types.SimpleNamespace(**{k: types.SimpleNamespace(remote=method) for k, method in methods.items()})
        self.actors = [None] * (agents - 1) + [actor]

    def answer(self, sent):
        if self.missing is not None:
            return Reply(self.now + 0.01, self.missing)
        if self.now < self.back:
            return Reply(self.now, LostError("actor died"))
        return Reply(self.now, bytes(8) + replies.ANSWER if self.prepared else b"")

    def prepare(self, walk, spec):
        self.prepared = True
        return Reply(self.now + self.loads, replies.ready(READY))

    def read(self, ray, ref, timeout, most):
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
    value: Any


@pytest.fixture
def begin(monkeypatch):
    """A roster whose Ray is a clockwork."""

    def begin(agents, **options):
        clock: Any = Clockwork(agents, **options)
        monkeypatch.setattr(rosters, "time", clock)
        monkeypatch.setattr(rosters, "read", clock.read)
        came = Gathered(dict.fromkeys(range(agents), READY), {}, {})
        return clock, rosters.Roster(clock, b"", b"", 8, 8, 1, patience=60.0, gathered=came)

    return begin


@pytest.mark.parametrize("silent", [0, 1, 40, 100])
def test_who_is_restarted_waits_for_nobody_who_is_silent(begin, silent):
    clock, roster = begin(silent + 1, back=3.0, loads=25.0)
    found = roster.ask(dict.fromkeys(range(silent + 1), bytes(8)))()
    assert list(found) == [silent]
    assert roster.present.tolist() == [False] * silent + [True]
    assert sum(roster.restarts) == 1
    assert clock.now == pytest.approx(60.0 if silent else 28.0, abs=0.1)
    assert not roster.preparing


def test_what_takes_longer_to_load_than_patience_lasts_is_away(begin):
    clock, roster = begin(1, back=3.0, loads=90.0)
    assert roster.ask({0: bytes(8)})() == {}
    assert clock.now == pytest.approx(60.0)
    assert list(roster.probes) == [0]
    clock.now = 94.0
    roster.poll()
    assert roster.all_present
    assert roster.late == 0  # it has said that it is there, and answered nothing


def test_who_is_there_but_never_answers_is_set_aside(begin):
    """As one that is killed for want of memory whenever it is asked."""
    clock, roster = begin(1, back=0.0, loads=1.0)
    clock.missing = LostError("actor died")
    for time in range(rosters.MAX_MISSES):
        assert not roster.reasons
        assert roster.ask({0: bytes(8)})() == {}
        assert clock.now == pytest.approx(60.0 * (time + 1), abs=5.0)
        clock.look_until_all_are_back(roster)
    assert roster.reasons == {0: "no answer within 60 seconds, 3 times in a row"}
    assert not roster.probes


def test_one_good_answer_and_the_count_begins_anew(begin):
    clock, roster = begin(1, back=0.0, loads=1.0)
    for _ in range(2 * rosters.MAX_MISSES):
        clock.missing = LostError("actor died")
        assert roster.ask({0: bytes(8)})() == {}
        clock.look_until_all_are_back(roster)
        clock.missing = None
        assert roster.ask({0: bytes(8)})() == {0: bytes(8)}
    assert roster.all_present


@pytest.mark.parametrize(
    "said", [NotPlainError("an object, not with plain bytes"), b"[[[", b"cos\nsystem\n(S'ls'\ntR.", b"1e999H"]
)
def test_what_is_no_reply_is_a_wrong_one(begin, said):
    clock, roster = begin(1, back=0.0, loads=1.0)
    clock.missing = said
    assert roster.ask({0: bytes(8)})() == {}
    assert re.fullmatch(
        r"it answered with (an object, not with plain bytes|something that is no reply)", roster.reasons[0]
    )


def test_a_process_that_ends_after_every_few_answers_is_done_without(begin):
    """It would be restarted for ever, and all others would wait for it every time."""
    clock, roster = begin(1, back=0.0, loads=1.0)
    for number in range(400):
        if number % 10 == 0:
            clock.prepared = False
        roster.ask({0: bytes(8)})()
        if roster.reasons:
            break
    assert roster.reasons == {0: "its process ended within 20 answers of its start, 5 times in a row"}
    assert roster.restarts == [rosters.MAX_RELAPSES + 1]
    clock, roster = begin(1, back=0.0, loads=1.0)
    for number in range(400):  # killed now and then, which is nobody's fault
        if number % 25 == 0:
            clock.prepared = False
        assert roster.ask({0: bytes(8)})() == {0: bytes(8)}
    assert roster.restarts == [16]


def test_a_process_that_ends_whenever_it_loads_is_done_without(begin):
    clock, roster = begin(1, back=0.0, loads=1.0)
    clock.prepare = lambda walk, spec: Reply(clock.now + 0.5, LostError("actor died"))
    clock.actors[0].prepare.remote = clock.prepare
    assert roster.ask({0: bytes(8)})() == {}
    assert roster.reasons == {0: "its process ended 10 times in a row before it was ready"}
    assert clock.now < 10


def begun_without_the_second(monkeypatch, said):
    """A walk that has begun with the first of two agents; what is said of the second is about to be heard."""
    clock: Any = Clockwork(2, back=0.0, loads=1.0)
    monkeypatch.setattr(rosters, "time", clock)
    monkeypatch.setattr(rosters, "read", clock.read)
    came = Gathered({0: READY}, {}, {1: Reply(clock.now, said)})  # type: ignore[dict-item]
    return clock, rosters.Roster(clock, b"", b"", 8, 8, 1, patience=60.0, gathered=came)


def test_who_died_before_it_was_ever_ready_is_there_only_once_it_is(monkeypatch):
    """Its key for secure aggregation is not known before; a group that it were in could not answer."""
    clock, roster = begun_without_the_second(monkeypatch, LostError("actor died"))
    clock.look_until_all_are_back(roster)
    assert clock.prepared
    assert roster.ready[1] == READY
    assert roster.all_present
    clock, roster = begun_without_the_second(monkeypatch, LostError("actor died"))
    clock.actors[1].prepare.remote = lambda walk, spec: Reply(clock.now, LostError("actor died"))
    clock.look_until_all_are_back(roster)
    assert roster.reasons == {1: "its process ended 10 times in a row before it was ready"}
    assert not roster.preparing


def test_who_says_something_else_than_that_it_is_ready_is_done_without(monkeypatch):
    clock, roster = begun_without_the_second(monkeypatch, bytes(8) + replies.ANSWER)
    clock.look_until_all_are_back(roster)
    assert roster.reasons == {1: "it answered what it was not asked"}


def test_who_comes_later_is_asked_once_it_is_ready(monkeypatch):
    clock: Any = Clockwork(2, back=0.0, loads=1.0)
    clock.prepared = True
    monkeypatch.setattr(rosters, "time", clock)
    monkeypatch.setattr(rosters, "read", clock.read)
    for said, present in [(READY, True), (READY._replace(constraints=2), False)]:
        came = Gathered({0: READY}, {}, {1: Reply(clock.now + 3.0, replies.ready(said))})  # type: ignore[dict-item]
        roster = rosters.Roster(clock, b"", b"", 8, 8, 1, patience=60.0, gathered=came)
        assert roster.present.tolist() == [True, False]
        clock.look_until_all_are_back(roster)
        assert roster.present.tolist() == [True, present]
        assert (roster.reasons == {}) == present
