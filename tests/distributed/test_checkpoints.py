"""A walk is resumed from its file, and from no other."""

import os
import sys

import numpy as np
import pytest

import ergodrift as ed
from ergodrift import distributed as dd
from ergodrift.distributed import walk_loop as walk_loops
from ergodrift.distributed.replies import Ready
from ergodrift.engine.checkpoint import Checkpoint
from walks import EDPP, GRAPH, PROBLEM, ZERO, Visited, at_hop, same, walk

pytestmark = [pytest.mark.slow, pytest.mark.x64("walks equal their simulation to float64's digits")]


walks = sys.modules["ergodrift.distributed.walk"]  # the package exports the function under the same name


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
    monkeypatch.setattr(walk_loops, "SAVE_INTERVAL", 0.0)
    with monkeypatch.context() as patch:
        at_hop(patch, {70: lambda: 1 / 0})
        with pytest.raises(ZeroDivisionError):
            walk(network, checkpoint=file, **options)
    visited = Visited(monkeypatch)
    resumed = walk(network, checkpoint=file, **options)
    moved = sum(np.count_nonzero(hop >= 0) for hop in visited.hops)  # one token or both, as answers come
    assert 200 - 2 * 69 <= moved < 200
    assert same(resumed.result, walk(network, **options).result)


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
    with pytest.raises(ValueError, match=r"cannot be used: it holds Python objects"):
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
        return dd.walk(EDPP, problem, GRAPH, network, checkpoint=tmp_path / "walk.npz", **given)

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
    told = {"a": Ready(1, {"loss": "a", "constraints": "b"}), "b": Ready(1, {})}
    one, again, other = (walks._known(limited(limit), told) for limit in (0.5, 0.5, 0.1))
    assert one == again
    assert one["loss"] == other["loss"]
    assert one["constraints"]["a"] == other["constraints"]["a"] == "b"
    assert one["constraints"]["the hub"] != other["constraints"]["the hub"]


def test_what_an_absent_agent_computed_is_kept_and_compared_when_it_is_back(tmp_path):
    def file(**loss):
        return Checkpoint(tmp_path / "file", "run", known={"loss": loss})

    file(a="1", b="2").save(np.zeros(1))
    resumed = file(a="1")  # b is away
    resumed.restore(np.zeros(1))
    resumed.save(np.ones(1))
    assert file(b="2", c="3").restore(np.zeros(1)).tolist() == [1.0]
    with pytest.raises(ValueError, match="belongs to a run with other arguments: changed loss;"):
        file(b="other code").restore(np.zeros(1))
