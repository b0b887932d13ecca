"""Agents who are visited together: the numbers are those of the pooled groups, masked or not; liars steer nothing."""

import os
import signal
from pathlib import Path

import jax
import numpy as np
import pytest
from test_wrong_answers import acting

import cases
import ergodrift as ed
from ergodrift import distributed as dd
from ergodrift.distributed import robust
from ergodrift.distributed.actor import AgentActor
from ergodrift.distributed.faults import plain
from walks import DIM, EDPP, ZERO, at_hop, close

pytestmark = pytest.mark.x64("walks equal their simulation to float64's digits")

SIZE, GROUPS = 5, 3  # members of a group, and groups
COMMON, OWN = (cases.random_data(np.random.default_rng(seed), SIZE * GROUPS, DIM, 1) for seed in (6, 4))
EVERYBODY = jax.tree.map(lambda common, own: common[:1] + 0.3 * own, COMMON, OWN)  # alike, but not the same
LIMITED = ed.Problem(cases.loss, lambda x, xi: cases.constraints(x, xi) - 1.0, ed.Ball(1.5))
GROUPED = jax.tree.map(lambda leaf: leaf.reshape(GROUPS, SIZE, *leaf.shape[1:]), EVERYBODY)
TRIANGLE = np.ones((GROUPS, GROUPS)) - np.eye(GROUPS)
TOGETHER = [list(range(group * SIZE, (group + 1) * SIZE)) for group in range(GROUPS)]


def members(count=SIZE * GROUPS, **options):
    return [dd.Agent(jax.tree.map(lambda leaf, i=i: leaf[i], EVERYBODY), **options) for i in range(count)]


def mean_of(function):
    return lambda x, xi: jax.numpy.mean(jax.vmap(function, (None, 0))(x, xi), axis=0)


POOLED = ed.Problem(mean_of(LIMITED.loss), mean_of(LIMITED.constraints), ed.Ball(1.5))
SOURCE = ed.MarkovSource(ed.MarkovChain.from_graph(TRIANGLE), GROUPED)
OPTIONS = {"x0": ZERO, "num_samples": 60, "record": [20, 60]}


LIARS = (1, 7, 13)  # one in each group
LIES = {"huge": 1e300, "large": 1e12, "against": -100.0, "opposite": -1.0}


class Liar(AgentActor):
    """Some lie in the way that a file says, as long as it says something."""

    @plain
    def answer(self, sent):  # type: ignore[override]
        good = super().answer(sent)
        kind = Path(self.agent.log).with_name("lie").read_text()  # type: ignore[arg-type]
        if self.number not in LIARS or good[-1:] != b"A" or not kind:
            return good
        return (np.frombuffer(good[:-1], float) * LIES[kind]).tobytes() + good[-1:]


@pytest.fixture(scope="module")
def crowd(cluster, tmp_path_factory):
    """All agents in processes of their own, and the file by which some are told to lie."""
    lie = tmp_path_factory.mktemp("crowd") / "lie"
    lie.write_text("")
    with acting(Liar, members(log=lie.with_name("log"))) as network:
        yield network, lie


@pytest.mark.slow
def test_a_walk_over_groups_is_the_run_on_their_pooled_data(crowd, monkeypatch):
    """Masked answers give the same sums, to the fixed point's 1e-9, also when members are killed on the way."""
    run, network = ed.run(EDPP, POOLED, SOURCE, **OPTIONS, seeds=2), crowd[0]
    plainly = dd.walk(EDPP, LIMITED, TRIANGLE, network, groups=TOGETHER, tokens=2, **OPTIONS)
    close(plainly.result, run, 1e-12)
    secure = dd.walk(EDPP, LIMITED, TRIANGLE, network, groups=TOGETHER, aggregate="secure", tokens=2, **OPTIONS)
    close(secure.result, run, 1e-9)
    assert not secure.held.any()
    victims = network.processes()
    at_hop(monkeypatch, {10: lambda: os.kill(victims[1], signal.SIGKILL), 30: lambda: network.exclude("agent 7")})
    again = dd.walk(EDPP, LIMITED, TRIANGLE, network, groups=TOGETHER, aggregate="secure", tokens=2, **OPTIONS)
    network.readmit("agent 7")
    assert again.restarts.sum() == 1
    np.testing.assert_allclose(again.result.x[:, 0], run.x[:, 0], atol=1e-9)
    assert list(again.set_aside) == ["agent 7"]
    assert not again.held.any()  # the four who are left go on as a group of four
    assert np.isfinite(again.x).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", LIES)
def test_a_fifth_of_the_agents_may_lie(crowd, kind):
    """One in each group of five, in four ways: the error is at most twice that of the walk on the honest ones."""
    network, lie = crowd
    honest = [i for i in range(SIZE * GROUPS) if i not in LIARS]
    data = jax.tree.map(lambda leaf: leaf[honest].reshape(GROUPS, SIZE - 1, *leaf.shape[1:]), EVERYBODY)
    source = ed.MarkovSource(ed.MarkovChain.from_graph(TRIANGLE), data)
    reference = ed.solve_reference(POOLED, source, ZERO)
    options = {"x0": ZERO, "num_samples": 600, "record": 1}
    run = ed.run(EDPP, POOLED, source, seeds=2, **options)
    lie.write_text(kind)
    try:
        found = dd.walk(
            EDPP, LIMITED, TRIANGLE, network, groups=TOGETHER, aggregate="clipped", bounds="auto", tokens=2, **options
        )
    finally:
        lie.write_text("")
    gaps = [ed.metrics.evaluate(one, POOLED, source, reference).lagrangian_gap[:, -1] for one in (found.result, run)]
    assert np.mean(gaps[0]) <= 2 * np.mean(gaps[1]), (kind, gaps, found.set_aside)
    assert set(found.set_aside) == ({f"agent {number}" for number in LIARS} if kind != "opposite" else set())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["huge", "large", "against"])
def test_liars_are_named_by_default_and_done_without_where_bounds_are_asked_for(crowd, kind, caplog):
    """Agents visited one by one: a fifth lie loudly. With "auto" the error is at most twice that of the honest."""
    network, lie = crowd
    count = SIZE * GROUPS
    liars, honest = {f"agent {i}" for i in LIARS}, [i for i in range(count) if i not in LIARS]
    full, data = np.ones((count, count)) - np.eye(count), jax.tree.map(lambda leaf: leaf[honest], EVERYBODY)
    source = ed.MarkovSource(ed.MarkovChain.from_graph(np.ones((12, 12)) - np.eye(12)), data)
    reference = ed.solve_reference(LIMITED, source, ZERO)
    options = {"x0": ZERO, "num_samples": 600, "record": 1}
    run = ed.run(EDPP, LIMITED, source, seeds=2, **options)
    lie.write_text(kind)
    try:
        found = dd.walk(EDPP, LIMITED, full, network, bounds="auto", tokens=2, **options)
        if kind != "huge":  # which ends in a token that is not finite, or in an agent set aside for it
            believed = dd.walk(EDPP, LIMITED, full, network, tokens=2, **options)
            assert set(believed.loud) == liars
            assert not believed.set_aside
            assert all(f"{name} is loud: its " in caplog.text for name in liars)
    finally:
        lie.write_text("")
    assert set(found.set_aside) == liars
    assert not found.loud
    gaps = [ed.metrics.evaluate(one, LIMITED, source, reference).lagrangian_gap[:, -1] for one in (found.result, run)]
    assert np.mean(gaps[0]) <= 2 * np.mean(gaps[1]), (kind, gaps)


@pytest.mark.parametrize("name", robust.AGGREGATES)
def test_aggregates_withstand_a_fifth_and_the_mean_does_not(name):
    rng = np.random.default_rng(0)
    honest = rng.normal(size=(8, 2, 7)) + 3
    for lie in (np.full((2, 2, 7), 1e300), np.full((2, 2, 7), -1e12), -100 * honest[:2], -honest[:2]):
        with np.errstate(over="ignore"):
            found = robust.aggregated(name, np.concatenate([honest, lie]), [1, 3, 0, 3])
        off = np.abs(found - honest.mean(axis=0)).max()
        # A fifth of liars on one side moves a median by the distance of its quantiles, 0.32 deviations, and by chance.
        assert (off > 1.0) == (name == "mean") or (name == "clipped" and off < 2.0), (name, off)


def test_all_aggregates_of_equal_answers_are_these_answers():
    same = np.broadcast_to(np.array([[1.0, -2.0, 3e-9, 0.0]]), (5, 1, 4))
    for name in robust.AGGREGATES:
        np.testing.assert_allclose(robust.aggregated(name, same, [1, 1, 1, 1]), same[0], rtol=1e-12)


def test_bounds_are_those_given_or_what_others_answer(caplog):
    layout = robust.Layout((1, 2, 1, 0), np.dtype(float))

    def answer(size):
        return np.array([[size, 3 * size, 4 * size, 0.5]]).tobytes()

    fixed = robust.Bounds({"loss_grad": 5.0}, layout, ["a"])
    assert fixed.complaint(0, answer(1.0)) is None
    assert fixed.complaint(0, answer(1.01)) == "its loss_grad has the norm 5.05, beyond 5"
    names = ["a", "b", "c", "d"]
    auto, loud = robust.Bounds("auto", layout, names), robust.Bounds(None, layout, names)
    for bounds in (auto, loud):
        for agent, size in enumerate((1.0, 2.0, 0.5, 1.0)):
            assert bounds.complaint(agent, answer(size)) is None
    assert auto.complaint(1, answer(np.nan)) is None  # which is somebody else's business
    for size in (1e300, 1e12, -100.0):
        assert auto.complaint(3, answer(size)) is not None
        assert loud.complaint(3, answer(size)) is None
    assert auto.complaint(3, answer(29.0)) is None
    assert loud.is_loud(3)
    assert caplog.text.count("d is loud: its loss has the norm") == 1


def test_honest_agents_are_not_taken_for_loud_where_values_grow_from_zero():
    """At x = 0 linear losses and constraints are zero; they are judged by their slopes and the size of the domain."""
    layout, slopes = robust.Layout((1, 2, 1, 2), np.dtype(float)), [3.0, 4.0, 0.6, 0.8]

    def answer(value):
        return np.array([[value, *slopes[:2], value, *slopes[2:]]]).tobytes()

    auto = robust.Bounds("auto", layout, list("abcd"), across=2.0)
    for agent, value in enumerate((0.0, 1e-9, 1e-9, 1e-9)):
        assert auto.complaint(agent, answer(value)) is None
    assert auto.complaint(0, answer(2.0)) is None
    assert auto.complaint(0, answer(70.0)) == "its constraints has the norm 70, beyond 60, 30 times what others answer"


def test_many_answers_are_judged_as_one_by_one():
    layout, rng = robust.Layout((1, 2, 0, 0), np.dtype(float)), np.random.default_rng(0)
    together, alone = (robust.Bounds("auto", layout, [f"{i}" for i in range(9)]) for _ in range(2))
    answers = rng.normal(size=(9, 3))
    assert not together.complaints(np.arange(9), answers)
    assert not any(alone.complaint(i, answers[i : i + 1].tobytes()) for i in range(9))
    lie = answers * np.where(np.isin(np.arange(9), [2, 5]), -100, 1)[:, None]
    one_by_one = {i: said for i in range(9) if (said := alone.complaint(i, lie[i : i + 1].tobytes()))}
    assert together.complaints(np.arange(9), lie) == one_by_one
    assert list(one_by_one) == [2, 5]


def test_groups_are_checked_before_any_process_starts():
    def refused(match, **options):
        given = {"groups": TOGETHER, **OPTIONS} | options
        with pytest.raises(ValueError, match=match):
            dd.walk(EDPP, LIMITED, TRIANGLE, members(), **given)

    refused(r"groups must have each of the 15 agents in one group", groups=[[0, 1], [2], [3]])
    refused(r"there is no agent 'x'", groups=[["x"], [1], [2]])
    refused(r"aggregate must be one of 'mean', .*'secure', got 'max'", aggregate="max")
    refused(r"graph has 3 nodes, but there are 2 groups", groups=[list(range(7)), list(range(7, 15))])
    refused(
        r"secure aggregation needs 3 members",
        groups=[[0, 1], list(range(2, 9)), list(range(9, 15))],
        aggregate="secure",
    )
    refused(r"bounds and groups look at feedback", local_rounds=2)
    refused(r"bounds must be a number where answers are masked", aggregate="secure", bounds="auto")
    refused(r"bounds must be a number, 'auto' or have keys among", bounds={"gradient": 1.0})
    refused(r"aggregate='median' is for agents who are visited together", groups=None, aggregate="median")
