"""What goes wrong at an agent: its name is said within seconds, a quorum goes on, and no row leaves in a message."""

import functools
import json
import logging
import os
import threading
import time
import types
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_actor import WALK, sent_spec, unsigned

import cases
import ergodrift as ed
from ergodrift import distributed as dd
from ergodrift.distributed import gathering, replies
from ergodrift.distributed.actor import AgentActor
from ergodrift.distributed.agent import guards_of
from ergodrift.distributed.faults import plain
from ergodrift.distributed.privacy import PARTS
from walks import AGENTS, DIM, EDPP, GRAPH, PROBLEM, ZERO, agents

pytestmark = pytest.mark.x64("walks equal their simulation to float64's digits")

SECRET = 0.123456789  # an entry of a row


class RowError(Exception):
    """Cannot be unpickled: it is made of two things, and its state has one."""

    def __init__(self, row, why):
        super().__init__(f"bad {row}")


def rows():
    return jax.tree.map(lambda leaf: np.where(leaf == leaf.flat[0], SECRET, leaf), agents()[0].data)


def told_by_loader():
    raise ValueError(f"bad {SECRET}")


def told_by_its_type():
    raise type(f"Row{SECRET}", (ValueError,), {})


def not_to_be_unpickled():
    raise RowError(SECRET, "two arguments")


class RowExit(BaseException):
    """Beyond what `except Exception` sees, and it says more than it is asked for."""

    def __repr__(self):
        return f"RowExit(row={SECRET})"

    __str__ = __repr__


def exits():
    raise SystemExit(f"bad {SECRET}")


def beyond_exceptions():
    raise RowExit({"row": SECRET})


def told_by_chain():
    try:
        raise KeyError(SECRET)
    except KeyError as error:
        raise RuntimeError(f"bad {SECRET}") from error


def told_by_a_circle():
    first, second = ValueError(f"bad {SECRET}"), OSError(SECRET)
    try:
        raise second
    except OSError:
        first.__cause__, second.__cause__ = second, first
    raise first


def told_by_many():
    raise ExceptionGroup(f"bad {SECRET}", [ValueError(SECRET), OSError(SECRET)])


def told_by_nobody():
    raise ValueError(f"bad {SECRET}") from KeyError(SECRET)  # which was never raised


def told_by_loss(x, xi):
    raise ValueError(f"bad {jax.tree.leaves(xi)[0].ravel()[0]} or {SECRET}")


@pytest.mark.parametrize(
    ("loader", "loss", "kind"),
    [
        (told_by_loader, PROBLEM.loss, "ValueError"),
        (told_by_its_type, PROBLEM.loss, "ValueError"),
        (not_to_be_unpickled, PROBLEM.loss, "RowError"),
        (exits, PROBLEM.loss, "SystemExit"),
        (beyond_exceptions, PROBLEM.loss, "RowExit"),
        (told_by_chain, PROBLEM.loss, "KeyError"),
        (told_by_a_circle, PROBLEM.loss, "OSError"),
        (told_by_many, PROBLEM.loss, "ExceptionGroup"),
        (told_by_nobody, PROBLEM.loss, "ValueError"),
        (rows, told_by_loss, "ValueError"),
    ],
)
@pytest.mark.parametrize("privacy", [None, dd.Privacy(1.0, noise=1.0)])
def test_only_type_and_place_of_an_exception_leave(tmp_path, loader, loss, kind, privacy):
    """The text stays in the agent's own log, which nobody else can read."""
    file = tmp_path / "log"
    actor = AgentActor(unsigned(dd.Agent(loader, privacy=privacy, log=file)), 0)
    reply = actor.prepare(WALK, sent_spec(ed.Problem(loss, PROBLEM.constraints, ed.Ball(1.5))))
    said = replies.parsed(reply)
    assert isinstance(said, replies.Fault)
    name = loader.__name__ if loss is PROBLEM.loss else "told_by_loss"
    assert said.text.startswith(f"it failed with {kind} at test_faults.py:")
    assert said.text.endswith(f" in {name}; its own log has the text")
    assert str(SECRET).encode() not in reply
    assert str(SECRET) in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("data", "refused"),
    [
        ({"a": np.zeros((0, 3))}, "its data have no rows"),
        ({}, "its data hold no arrays"),
        (np.array([np.nan]), "its data are not finite"),
    ],
)
def test_data_that_cannot_be_used_are_said_in_words_that_stand_in_the_hub(tmp_path, data, refused):
    actor = AgentActor(unsigned(dd.Agent(data, log=tmp_path / "log")), 0)
    assert replies.parsed(actor.prepare(WALK, sent_spec(PROBLEM))) == replies.Fault(refused)


def test_an_agent_that_guards_its_answers_does_not_hand_them_on(tmp_path):
    """Whatever the hub knows: a token of RDPP holds the last answers of all."""
    rdpp = ed.rdpp(law=np.full(AGENTS, 1 / AGENTS))
    for privacy, refused in [(dd.Privacy(1.0, noise=1.0), True), (None, False)]:
        actor = AgentActor(unsigned(dd.Agent(agents()[0].data, privacy=privacy, log=tmp_path / "log")), 0)
        said = replies.parsed(actor.prepare(WALK, sent_spec(PROBLEM, local_rounds=2, algorithm=rdpp)))
        assert isinstance(said, replies.Fault if refused else replies.Ready), said
        if isinstance(said, replies.Fault):
            assert said.text == "it guards its answers, and this walk would hand them on from agent to agent"


def test_replies_are_parsed_and_checked():
    ready = replies.Ready(2, {"loss": "ab", "constraints": "cd"}, (dict.fromkeys(PARTS, 1.0), 2.0, 1e-5), "ff" * 32)
    assert replies.parsed(replies.ready(ready)) == ready
    assert replies.parsed(replies.here(17)) == 17
    assert replies.parsed(b"\x00" * 8 + replies.ANSWER) == b"\x00" * 8
    evil: list[object] = [
        {}, [], 7, {"refusal": "my row is 3.5"}, {"type": "V 3.5", "place": "a"}, {"type": "V", "place": "a" * 999},
        {"type": ["V"], "place": "a"},
    ]  # fmt: skip
    for said in [*(json.dumps(one).encode() for one in evil), b"\x80\x04.", b"[" * 10**5, b""]:
        with pytest.raises(replies.NotPlainError):
            replies.parsed(said + replies.FAULT)
    clip = dict.fromkeys(PARTS, 1.0)
    privacy = [
        ({"loss": 1.0}, 1.0, 0.1), (clip, -1.0, 0.1), (clip, np.nan, 0.1), (clip, 1.0, 0), (clip, 10**400, 0.1),
        (clip | {"loss": 0.0}, 1.0, 0.1), (clip | {"loss": np.inf}, 1.0, 0.1), (clip, "1", 0.1), (clip, 1.0),
    ]  # fmt: skip
    for changed in (
        {"constraints": -1}, {"constraints": True}, {"functions": {"loss": "rows!"}}, {"key": 5}, {"key": "abc"},
        {"key": "AB" * 32}, {"fewest": "5"}, {"fewest": -1}, *({"privacy": guard} for guard in privacy),
    ):  # fmt: skip
        with pytest.raises(replies.NotPlainError):
            replies.parsed(json.dumps(ready._asdict() | changed).encode() + replies.READY)
    for said in (b"Infinity", b"1e999", b"NaN", b"{}"):
        with pytest.raises(replies.NotPlainError):
            replies.parsed(said + b"H")


def test_what_an_agent_says_of_its_privacy_can_always_be_accounted_for():
    pytest.importorskip("dp_accounting")
    for noise in (5e-324, 1e-200, 1e308):
        said = replies.ready(replies.Ready(1, {}, (dict.fromkeys(PARTS, 1.0), noise, 1e-5)))
        told = replies.parsed(said)
        assert isinstance(told, replies.Ready)
        (guard,) = guards_of([dd.Agent(np.zeros(1))], {0: told})
        assert guard is not None
        assert guard.epsilon(10) == (0.0 if noise > 1 else np.inf)


class Endless:
    """What Ray has of an object that is larger than memory: its size."""

    size = 2**50

    def to_pybytes(self):
        raise MemoryError


def test_a_reply_without_end_is_not_heard_out():
    core = types.SimpleNamespace(get_objects=lambda refs, timeout: [(Endless(), replies.PLAIN, None)])
    worker = types.SimpleNamespace(core_worker=core)
    ray: Any = types.SimpleNamespace(_private=types.SimpleNamespace(worker=types.SimpleNamespace(global_worker=worker)))
    with pytest.raises(replies.NotPlainError, match=f"{2**50} bytes, more than 1048576"):
        replies.read(ray, cast("Any", None), 1.0)


def test_nothing_is_lost_on_the_way_to_the_log_and_interrupts_pass(tmp_path):
    class Actor:
        log = tmp_path / "no" / "such" / "place" / "log"

        @plain
        def exits(self):
            raise SystemExit(3)

        @plain
        def interrupted(self):
            raise KeyboardInterrupt

    assert b"SystemExit" in Actor().exits()
    assert "SystemExit: 3" in Actor.log.read_text()
    with pytest.raises(KeyboardInterrupt):
        Actor().interrupted()


def ends():
    os._exit(3)


def sleeps():
    time.sleep(1000)


def empty():
    return jax.tree.map(lambda leaf: leaf[:0], rows())


def other_shape():
    return jax.tree.map(lambda leaf: leaf[0], cases.random_data(np.random.default_rng(0), 1, DIM, 2))


@pytest.mark.slow
def test_a_quorum_begins_without_those_who_cannot_and_names_them(cluster, monkeypatch, caplog):
    """Whatever is wrong with an agent, its name and the reason are said within seconds, and the others walk."""
    monkeypatch.setattr(gathering, "GRACE", 4.0)
    loaders = {
        "raises": told_by_loader, "odd": not_to_be_unpickled, "ends": ends, "empty": empty, "slow": sleeps,
        "other": other_shape, "generator": lambda: (number for number in range(3)),
    }  # fmt: skip
    good = [dd.Agent(agents()[i % AGENTS].data, name=f"good {i}") for i in range(3)]
    bad = [dd.Agent(loader, name=name) for name, loader in loaders.items()]
    nowhere = dd.Agent(agents()[0].data, name="nowhere", resources={"site:mars": 1})
    members = [*good, *bad, nowhere]
    graph = np.ones((len(members), len(members))) - np.eye(len(members))
    options = {"x0": ZERO, "num_samples": 200, "tokens": 4, "record": 1}
    with dd.Network(members) as network, caplog.at_level(logging.WARNING, logger="ergodrift.distributed"):
        done = dd.walk(EDPP, PROBLEM, graph, network, quorum=3, **options)
    assert set(done.set_aside) == {*loaders, "nowhere"}
    wanted = {
        "raises": "it failed with ValueError at test_faults.py", "odd": "it failed with Exception at test_faults.py",
        "ends": "its process ended 2 times before it was ready", "empty": "its data have no rows",
        "slow": "away", "nowhere": "away", "other": "it has 4 constraints, but good 0 has 2",
        "generator": "it failed with ValueError at arrays",
    }  # fmt: skip
    for name, reason in wanted.items():
        assert done.set_aside[name].startswith(reason), done.set_aside[name]
        assert name in caplog.text
    assert "nowhere: no machine of the cluster has {'site:mars': 1}" in caplog.text
    assert str(SECRET) not in caplog.text + str(done)
    assert (done.visits[:3] > 20).all()
    assert not done.visits[3:].any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (not_to_be_unpickled, "is set aside: it failed with Exception at test_faults.py"),
        (ends, "its process ended before it was ready"),
        (empty, "is set aside: its data have no rows"),
    ],
)
def test_what_is_wrong_at_the_start_is_said_within_five_seconds(cluster, caplog, loader, reason):
    """Counted from when processes are there, which import Python and JAX first; the others begin in seconds, too."""
    with dd.Network([*agents(2), dd.Agent(loader, name="bad")]) as network:
        network.processes()
        began = time.time()
        done = dd.walk(EDPP, PROBLEM, GRAPH, network, x0=ZERO, num_samples=6, quorum=2)
    said = [record for record in caplog.records if record.getMessage().startswith("bad") and reason in record.message]
    assert said, caplog.text
    assert said[0].created - began < 5
    assert time.time() - began < 20
    assert list(done.set_aside) == ["bad"]
    assert done.visits[2] == 0


@pytest.mark.slow
def test_without_a_quorum_the_error_names_who_is_missing(cluster, monkeypatch):
    one, options = ed.MarkovChain([[1.0]]), {"x0": ZERO, "num_samples": 4}
    with pytest.raises(dd.AgentError, match=r"b cannot take part: it failed with ValueError at test_faults.py:\d+ in"):
        dd.walk(EDPP, PROBLEM, one, [dd.Agent(told_by_loader, name="b")], **options)
    with pytest.raises(dd.AgentError, match=r"b cannot take part: it has 4 constraints, but agent 0 has 2"):
        dd.walk(EDPP, PROBLEM, 1 - np.eye(2), [agents()[0], dd.Agent(other_shape, name="b")], quorum=2, **options)
    monkeypatch.setattr(gathering, "START_TIMEOUT", 1.0)
    far = [dd.Agent(agents()[1].data, name="b", resources={"site:mars": 1})]
    with pytest.raises(dd.AgentError, match=r"b was not ready in time, \d+ seconds; is there a node with {'site:mars"):
        dd.walk(EDPP, PROBLEM, one, far, patience=1, **options)


def test_what_cannot_be_sent_is_said_before_any_process_starts(cluster):
    began = time.monotonic()
    with pytest.raises(dd.AgentError, match=r"b cannot be sent where it is to run: .*lock.*; give a file, or a func"):
        dd.Network([agents()[0], dd.Agent(functools.partial(dict, a=threading.Lock()), name="b")])
    assert time.monotonic() - began < 5


def test_one_of_many_that_cannot_be_sent_is_named(cluster):
    with pytest.raises(dd.AgentError, match=r"b cannot be sent where it is to run: .*lock"):
        dd.Network([*agents(), dd.Agent(functools.partial(dict, a=threading.Lock()), name="b")], processes=2)


def test_a_key_that_cannot_be_used_is_no_agents_fault(tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(FileNotFoundError, match=r"hub\.key"):
        dd.Network(agents(), key=tmp_path / "hub.key")


@pytest.mark.slow
def test_a_rows_text_in_a_loss_never_reaches_the_hub(cluster, caplog):
    """Not when it is traced, and not when it is called back to by what was compiled."""

    def late(x, xi):
        row = jax.tree.leaves(xi)[0].ravel()[0]

        def told(x, row):
            if np.abs(x).max() > 0:
                raise ValueError(f"bad {row}")
            return np.float64(0)

        shape = jax.ShapeDtypeStruct((), jnp.float64)
        return PROBLEM.loss(x, xi) + jax.pure_callback(told, shape, x, row, vmap_method="sequential")

    @jax.custom_jvp
    def loss(x, xi):
        return late(x, xi)

    loss.defjvp(lambda primals, tangents: (late(*primals), jax.jvp(PROBLEM.loss, primals, tangents)[1]))
    problem = ed.Problem(loss, PROBLEM.constraints, ed.Ball(1.5))
    row = jax.tree.leaves(agents()[0].data)[0].ravel()[0]
    with pytest.raises(dd.QuorumError, match=r"it failed with \w+ at ") as stopped:
        dd.walk(EDPP, problem, GRAPH, agents(log=None), x0=ZERO, num_samples=30, quorum=3)
    assert str(row)[:8] not in str(stopped.value) + caplog.text
