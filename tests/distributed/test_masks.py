"""Secure aggregation: sums are exact, parts are noise, and nobody opens a question twice."""

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from test_actor import WALK, prepared, sent_spec, unsigned
from test_roster import Clockwork, Reply

import ergodrift as ed
from ergodrift import distributed as dd
from ergodrift.distributed import masks, replies
from ergodrift.distributed import roster as rosters
from ergodrift.distributed.actor import AgentActor
from ergodrift.distributed.faults import RefusalError
from ergodrift.distributed.gathering import Gathered
from ergodrift.distributed.groups import GroupRoster, MaskedRoster
from ergodrift.distributed.masks import ASK, OPEN, Member, Round, scale_for, total, unpacked
from ergodrift.distributed.wire import Layout
from walks import DIM, PROBLEM, ZERO, agents

pytest.importorskip("cryptography")
pytestmark = pytest.mark.x64("walks equal their simulation to float64's digits")


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    return [Member(folder / str(number)) for number in range(5)]


def asked_of(members, bound=1.0, nonce=bytes(16)):
    return Round(tuple(sorted(one.public for one in members)), nonce, scale_for(len(members), bound))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=6), st.integers(3, 5), st.binary(min_size=16, max_size=16))
def test_masks_cancel_exactly_and_sums_are_right_to_rounding(members, numbers, count, nonce):
    group, words = members[:count], b"question"
    asked = asked_of(group, nonce=nonce)
    own = [np.array(numbers) * (number + 1) / count for number in range(count)]
    masked = [one.masked(WALK, asked, words, mine) for one, mine in zip(group, own, strict=True)]
    seeds = [one.opening(WALK, asked, words, np.zeros((0, 1))) for one in group]
    exact = sum(np.rint(mine * asked.scale).astype(np.int64) for mine in own)
    assert np.array_equal(total(masked, seeds, asked.scale), exact / asked.scale)
    np.testing.assert_allclose(total(masked, seeds, asked.scale), sum(own), atol=count / asked.scale)


def test_what_is_masked_looks_like_noise_until_all_is_opened(members):
    """Any masked answer alone, and any sum without one member or without one opening, is uniform modulo 2^64."""
    asked, zeros = asked_of(members), np.zeros(4000)
    masked = [one.masked(WALK, asked, b"q", zeros) for one in members]
    seeds = [one.own_seed(masks._purpose(WALK, asked, b"q")) for one in members]
    assert (total(masked, seeds, 1.0) == 0).all()
    for missing in range(5):
        some = [one for number, one in enumerate(masked) if number != missing]
        few = [one for number, one in enumerate(seeds) if number != missing]
        for found in (total([masked[missing]], [seeds[missing]], 1.0), total(some, few, 1.0), total(masked, few, 1.0)):
            assert scipy.stats.kstest(found / 2.0**64 + 0.5, "uniform").pvalue > 1e-4
    for one, other in itertools.combinations(masked, 2):  # nor do two of them
        assert scipy.stats.kstest(total([one, other], [], 1.0) / 2.0**64 + 0.5, "uniform").pvalue > 1e-4


def test_no_mask_serves_two_questions(members):
    """The difference of two answers under one mask would be in clear."""
    one, zeros = members[0], np.zeros(3)
    rounds = [
        asked_of(members),
        asked_of(members[:4]),
        asked_of(members, nonce=b"n" * 16),
        asked_of(members, bound=2.0),
    ]
    found = {
        one.masked(walk, asked, words, zeros) for asked in rounds for words in (b"x", b"y") for walk in (WALK, b"w")
    }
    assert len(found) == 4 * 2 * 2
    assert one.masked(WALK, rounds[0], b"x", zeros) == one.masked(
        WALK, rounds[0], b"x", zeros
    )  # asked again after a crash


def test_a_member_opens_a_question_for_one_group_only(members):
    """Else the sum with somebody and the sum without would tell that one's answer."""
    one, rows = members[0], np.ones((1, 3))
    one.opening(WALK, asked_of(members), b"x", rows)
    one.opening(WALK, asked_of(members, nonce=b"n" * 16), b"x", rows)
    with pytest.raises(RefusalError, match="for another group"):
        one.opening(WALK, asked_of(members[:4]), b"x", rows)


def test_groups_that_are_small_strange_or_not_its_own_are_refused(members, tmp_path):
    one, others = members[0], members[1:]
    for group in (members[:2], others, [one, one, *others[:1]]):
        with pytest.raises(RefusalError, match="answers in groups"):
            one.check(asked_of(group))
    wary = Member(tmp_path / "key", fewest=4, peers=[other.public.hex() for other in others[:3]])
    wary.check(asked_of([wary, *others[:3]]))
    for group in ([wary, *others[:2]], [wary, *others]):
        with pytest.raises(RefusalError, match="answers in groups"):
            wary.check(asked_of(group))
    for numbers in ([np.nan], [5.0]):
        with pytest.raises(RefusalError, match="beyond the bounds"):
            one.masked(WALK, asked_of(members), b"", np.array(numbers))
    with pytest.raises(ValueError, match="peers must hold public keys"):
        dd.Secure(peers=["abc"])


def test_a_group_goes_on_without_those_who_have_no_key_of_their_own(monkeypatch):
    """With such a key among theirs the others would refuse to answer, and be set aside for it."""
    clock: Any = Clockwork(5, back=0.0, loads=1.0)
    monkeypatch.setattr(rosters, "time", clock)
    monkeypatch.setattr(rosters, "read", clock.read)
    keys = ["aa" * 32, "bb" * 32, "", "bb" * 32]
    ready = {number: replies.Ready(1, {}, None, key) for number, key in enumerate(keys)}
    last = Reply(0.0, replies.ready(replies.Ready(1, {}, None, "aa" * 32)))
    came = Gathered(ready, {}, {4: last})  # type: ignore[dict-item]
    roster = MaskedRoster(clock, b"", b"", 8, 8, 1, patience=60.0, gathered=came)
    twin = "its key is another's, too"
    assert roster.reasons == {1: twin, 2: "it has no key", 3: twin}
    clock.look_until_all_are_back(roster)  # who comes later has a key that somebody has
    assert roster.reasons == {0: twin, 1: twin, 2: "it has no key", 3: twin, 4: twin}


def test_members_are_not_asked_in_groups_that_are_too_small_for_them(monkeypatch):
    """They would refuse, and be set aside for good though those who are missing come back."""
    monkeypatch.setattr(rosters, "time", Clockwork(5, back=0.0, loads=1.0))

    def asked(fewest, away):
        clock: Any = Clockwork(5, back=0.0, loads=1.0)
        ready = {i: replies.Ready(1, {}, None, f"{i:064}", least) for i, least in enumerate(fewest)}
        roster = MaskedRoster(clock, b"", b"", 8, 8, 1, patience=60.0, gathered=Gathered(ready, {}, {}))
        roster.present[away] = False
        groups = GroupRoster(roster, [[0, 1, 2, 3, 4]], "secure", Layout((1, 1, 1, 1), np.dtype(float)))
        rounds = groups._rounds({0: b"question"})
        assert groups.present.tolist() == [0 in rounds]
        return [int(key.hex()) for key in rounds[0].keys] if rounds else []

    assert asked([3, 3, 3, 3, 5], []) == [0, 1, 2, 3, 4]
    assert asked([3, 3, 3, 3, 5], [0]) == [1, 2, 3]  # four are too few for the last one
    assert asked([5, 5, 5, 5, 5], [0]) == []
    assert asked([3, 3, 3, 4, 2**31], []) == [0, 1, 2, 3]  # whatever one of them asks for
    assert asked([3, 3, 4, 5, 2**31], []) == []


def test_rounds_travel_whole(members):
    asked = asked_of(members, bound=3.7)
    assert unpacked(asked.packed(OPEN) + b"words") == (OPEN, asked, b"words")
    assert len(asked.packed(ASK)) == asked.num_bytes


def test_an_agent_that_wants_company_never_answers_alone(tmp_path):
    """The sum over three actors, opened, is that of their answers; asked in any other way, they say nothing."""
    data = [one.data for one in agents()]
    actors = []
    for number, own in enumerate(data):
        agent = dd.Agent(own, secure=dd.Secure(key=tmp_path / str(number)), log=tmp_path / "log")
        alone = AgentActor(unsigned(agent), number)
        assert "answers in groups" in replies.parsed(alone.prepare(WALK, sent_spec(PROBLEM))).text  # type: ignore[union-attr]
        actors.append(prepared(agent, PROBLEM, number=number, secure=True))
    x = np.full(DIM, 0.1)
    asked = Round(tuple(sorted(actor.member.public for actor in actors)), bytes(16), scale_for(3, 100.0))
    masked = [replies.parsed(actor.answer(WALK + asked.packed(ASK) + x.tobytes())) for actor in actors]
    seeds = [replies.parsed(actor.answer(WALK + asked.packed(OPEN) + x.tobytes())) for actor in actors]
    plain = [prepared(dd.Agent(own), PROBLEM, number=number) for number, own in enumerate(data)]
    answers = [np.frombuffer(replies.parsed(actor.answer(WALK + x.tobytes())), float) for actor in plain]  # type: ignore[arg-type]
    np.testing.assert_allclose(total(masked, seeds, asked.scale), sum(answers), atol=1e-12)  # type: ignore[arg-type]
    other = ed.Problem(lambda x, xi: 0.0 * jnp.sum(x), lambda x, xi: jnp.zeros(2), ed.Ball(1.5))
    actors[0].prepare(WALK, sent_spec(other, secure=True))  # a hub that asks for nothing, to see the masks alone
    bare = replies.parsed(actors[0].answer(WALK + asked.packed(ASK) + x.tobytes()))
    words = [np.frombuffer(one, np.int64) for one in (masked[0], bare)]  # type: ignore[arg-type]
    assert not np.isclose((words[0] - words[1]) / asked.scale, answers[0], atol=1e-6).any()
    pair = Round(asked.keys[:2], bytes(16), asked.scale)
    for actor in actors:
        assert isinstance(replies.parsed(actor.answer(WALK + pair.packed(ASK) + ZERO.tobytes())), replies.Fault)
