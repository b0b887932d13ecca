"""Agents that leave, come back, or come late: the walk goes on, and its law on those who are there stays right."""

import time

import numpy as np
import pytest

import ergodrift as ed
from ergodrift import distributed as dd
from walks import EDPP, PROBLEM, ZERO, agents, at_hop, walk

pytestmark = [pytest.mark.slow, pytest.mark.x64("walks equal their simulation to float64's digits")]


def test_who_is_excluded_is_done_without_and_may_come_back(network, monkeypatch, tmp_path):
    """During a walk, and when one is resumed: the checkpoint of a walk with an agent goes on without it."""
    file, options = tmp_path / "walk.npz", {"num_samples": 300, "tokens": 4, "record": 1}
    at_hop(monkeypatch, {100: lambda: network.exclude("agent 1"), 200: lambda: network.readmit("agent 1")})
    done = walk(network, **options)
    assert not done.set_aside
    assert 0 < done.visits[1] < done.visits[0]
    with monkeypatch.context() as patch:
        at_hop(patch, {150: lambda: 1 / 0})
        with pytest.raises(ZeroDivisionError):
            walk(network, **options, checkpoint=file, checkpoint_every=10)
    resumed = walk(network, **options, checkpoint=file, exclude=["agent 1"], quorum=2)
    assert not network.excluded  # that was for one walk
    assert resumed.set_aside == {"agent 1": "excluded by its network's owner"}
    assert resumed.visits[1] < min(resumed.visits[0], resumed.visits[2])
    assert (np.asarray(resumed.result.rounds)[:, -1] == 300 - resumed.held).all()
    assert resumed.visits.sum() == 4 * 300 - resumed.held.sum()
    with pytest.raises(ValueError, match="there is no agent 'nobody'"):
        network.exclude("nobody")


def test_the_law_stays_right_while_agents_come_and_go(cluster, tmp_path):
    """On a path graph, whose Metropolis law is uniform: those who are there are visited alike, latecomers included."""
    late = tmp_path / "late"

    def slow():
        while not late.exists():
            time.sleep(0.05)
        return agents()[2].data

    line = np.diag(np.ones(2), 1) + np.diag(np.ones(2), -1)
    members = [*agents(2), dd.Agent(slow, name="late")]
    with dd.Network(members) as network, pytest.MonkeyPatch.context() as patch:
        at_hop(patch, {200: late.touch})
        patch.setattr("ergodrift.distributed.gathering.GRACE", 0.5)
        patch.setattr("ergodrift.distributed.gathering.GRACE_SHARE", 1.0)
        done = dd.walk(EDPP, PROBLEM, line, network, x0=ZERO, num_samples=3000, tokens=8, quorum=2)
    assert not done.set_aside
    assert done.visits[2] > 0
    share = done.visits[:2] / done.visits[:2].sum()
    # A lazy walk on two nodes forgets within a few hops: the share of 24,000 visits is off by a hundredth at most.
    np.testing.assert_allclose(share, 0.5, atol=0.02)
    chain = ed.MarkovChain.from_graph(line)
    np.testing.assert_allclose(chain.stationary, 1 / 3, rtol=1e-12)
