"""Work on disk: full disks, two users of one file, killed writers, results that are saved without data."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from ergodrift._core import files
from ergodrift.engine import checkpoint as checkpoint_module
from ergodrift.engine.checkpoint import Checkpoint

SOURCE = ed.MarkovSource(ed.MarkovChain([[0.9, 0.1], [0.2, 0.8]]), np.eye(2))
PROBLEM = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] - 0.25, ed.Ball(2.0))


def run(**options):
    return ed.run(
        ed.edpp(3.0), PROBLEM, SOURCE, **{"x0": np.zeros(2), "num_samples": 3000, "record": 5, "seeds": 2, **options}
    )


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


# A full disk


def full(monkeypatch, times=10**9, code=errno.ENOSPC):
    """From here on the disk is full, for so many writes."""
    left, fsync = [times], os.fsync

    def fails(descriptor):
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(code, os.strerror(code))
        return fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fails)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_disk_that_is_full_at_the_end_costs_the_file_and_not_the_run(tmp_path, monkeypatch, code):
    path = tmp_path / "run.npz"
    full(monkeypatch, code=code)
    with pytest.warns(UserWarning, match=r"checkpoint .*run\.npz could not be written .*the result is returned"):
        found = run(checkpoint=path)
    same(found, run())
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_for_a_while_is_said_once_and_tried_again(tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    monkeypatch.setattr(checkpoint_module, "SAVE_SECONDS", 0.0)
    full(monkeypatch, times=2)
    with pytest.warns(UserWarning, match="the run goes on, and tries again later") as said:
        found = run(checkpoint=path, num_samples=8000)
    assert len(said) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.npz"]
    same(found, run(checkpoint=path, num_samples=8000))


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 64 kB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a disk")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], capture_output=True)
    if done.returncode:
        pytest.skip("a disk cannot be mounted here")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_really_full_disk(small_disk):
    found = run(checkpoint=small_disk / "run.npz", num_samples=1000)
    (small_disk / "ballast").write_bytes(b"x" * (64 * 1024 - 4096 * 6))
    with pytest.warns(UserWarning, match=r"No space left on device\); the result is returned"):
        more = run(checkpoint=small_disk / "other.npz", num_samples=3000, record=1000, seeds=20)
    same(more, run(num_samples=3000, record=1000, seeds=20))
    assert {entry.name for entry in small_disk.iterdir()} == {"run.npz", "ballast"}
    same(found, run(checkpoint=small_disk / "run.npz", num_samples=1000))
    with pytest.raises(OSError, match="No space left"):
        more.save(small_disk / "result.npz")
    assert {entry.name for entry in small_disk.iterdir()} == {"run.npz", "ballast"}


# Two users of one file


def test_threads_that_share_a_checkpoint_are_told_apart(tmp_path, monkeypatch):
    path, inside, go_on = tmp_path / "run.npz", threading.Event(), threading.Event()
    restore = Checkpoint.restore

    def waits(self, like):
        if threading.current_thread().name == "first":
            inside.set()
            assert go_on.wait(60)
        return restore(self, like)

    monkeypatch.setattr(Checkpoint, "restore", waits)
    found = []
    first = threading.Thread(target=lambda: found.append(run(checkpoint=path)), name="first")
    first.start()
    assert inside.wait(60)
    link = tmp_path / "link.npz"
    link.symlink_to(path)
    for spelling in (path, str(path), os.path.relpath(path), tmp_path / "." / "run.npz", link):
        with pytest.raises(ValueError, match=r"checkpoint .*run\.npz is in use by another run in this process"):
            run(checkpoint=spelling)
    go_on.set()
    first.join()
    same(found[0], run())
    same(found[0], run(checkpoint=path))  # free again
    link.unlink()
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.npz"]


HOLDS = """
import sys, time
from ergodrift._core.files import locked
with locked(sys.argv[1], "checkpoint"):
    print("held", flush=True)
    time.sleep(120)
"""


def test_another_process_is_refused_until_the_first_ends_however_it_ends(tmp_path):
    path = tmp_path / "run.npz"
    holder = subprocess.Popen([sys.executable, "-c", HOLDS, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"  # type: ignore[union-attr]
        with pytest.raises(ValueError, match=rf"run\.npz is in use by process {holder.pid} on .*use another file"):
            run(checkpoint=path)
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.communicate()
    run(checkpoint=path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.npz"]


def test_a_lock_is_never_held_twice(tmp_path):
    """Sixteen threads take and leave the lock as fast as they can."""
    path, inside, most, refused = tmp_path / "file", [], [], []

    def user():
        for _ in range(200):
            try:
                with files.locked(path, "file"):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
            except ValueError:
                refused.append(1)

    threads = [threading.Thread(target=user) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert list(tmp_path.iterdir()) == []


def test_writers_of_one_file_at_once_leave_a_whole_one(tmp_path):
    path = tmp_path / "file"

    def writer(letter):
        for _ in range(30):
            with files.replacing(path) as file:
                file.write(letter * 10_000)

    threads = [threading.Thread(target=writer, args=(bytes([letter]),)) for letter in b"abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(path.read_bytes())) == 1
    assert list(tmp_path.iterdir()) == [path]


# Killed while writing

WRITES = """
import sys, time
from pathlib import Path
from ergodrift._core.files import replacing
with replacing(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    time.sleep(120)
"""


def killed_writer(path: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITES, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout.readline() == "writing\n"  # type: ignore[union-attr]
    assert len([entry for entry in path.parent.iterdir() if entry.suffix == ".tmp"]) == 1
    with files.replacing(path) as file:  # a living writer's scratch file is left alone
        file.write(b"whole")
    assert len([entry for entry in path.parent.iterdir() if entry.suffix == ".tmp"]) == 1
    os.kill(writer.pid, signal.SIGKILL)
    writer.communicate()


def test_what_a_killed_writer_left_is_removed_at_the_next_start(tmp_path):
    path = tmp_path / "run.npz"
    killed_writer(path)
    path.unlink()
    (tmp_path / ".run.npz.999999999.tmp").write_bytes(b"of an earlier version")
    (tmp_path / ".other.npz.999999999.tmp").write_bytes(b"somebody else's")
    far, old = tmp_path / ".run.npz.elsewhere.1-0.tmp", tmp_path / ".run.npz.elsewhere.2-0.tmp"
    far.write_bytes(b"of another machine")
    old.write_bytes(b"of another machine, long ago")
    os.utime(old, (time.time() - 1e6, time.time() - 1e6))
    with Checkpoint(path, "mine"):
        names = {entry.name for entry in tmp_path.iterdir()}
    assert names == {".run.npz.lock", ".other.npz.999999999.tmp", far.name}


def test_what_a_killed_writer_left_is_removed_by_the_next_writer(tmp_path):
    path = tmp_path / "results.json"
    killed_writer(path)
    with files.replacing(path) as file:
        file.write(b"new")
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"new"


def test_a_link_stays_a_link(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    with files.replacing(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


# Results


def test_a_saved_result_is_the_same_and_works_with_metrics(tmp_path):
    path = tmp_path / "result.npz"
    found = run(paths=SOURCE.paths([5, 6], 3000))
    found.save(path)
    loaded = ed.load_result(path)
    assert repr(loaded) == repr(found)
    assert jax.tree.structure(loaded) == jax.tree.structure(found)
    same(loaded, found)
    reference = ed.solve_reference(PROBLEM, SOURCE, np.zeros(2))
    for one, other in [(loaded, found)]:
        same(*(ed.metrics.evaluate(result, PROBLEM, SOURCE, reference) for result in (one, other)))
        same(*(ed.metrics.regret(result, PROBLEM, SOURCE) for result in (one, other)))
        same(*(ed.metrics.summarise(ed.metrics.violation(result)) for result in (one, other)))
    for ask in ("feasibility", "within_theory", "certify"):
        with pytest.raises(ValueError, match=r"does not know its run: it was loaded from a file"):
            getattr(loaded, ask)()


@pytest.mark.parametrize(
    "algorithm",
    [
        *[ed.pd2(1.0), ed.mdpp(), ed.rdpp(), ed.srdpp(), ed.edpp("auto")],
        *(pytest.param(algorithm, marks=pytest.mark.slow) for algorithm in (ed.wdpp(), ed.sdpp())),
    ],
    ids=str,
)
def test_the_weights_of_every_algorithm_come_back_as_what_they_were(tmp_path, algorithm):
    found = ed.run(algorithm, PROBLEM, SOURCE, x0=np.zeros(2), num_samples=200, record=3)
    found.save(tmp_path / "r")
    loaded = ed.load_result(tmp_path / "r")
    assert type(loaded.weights) is type(found.weights)
    same(loaded, found)


def test_a_result_takes_no_data_into_files_nor_into_pickles_without_functions(tmp_path):
    secret = np.random.default_rng(0).normal(size=(2000, 2))
    problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] - xi[:1], ed.Ball(2.0))
    found = ed.run(ed.edpp(3.0), problem, ed.SeriesSource(secret), x0=np.zeros(2), record=5)
    found.save(tmp_path / "r")
    pickled = pickle.dumps(found)  # the problem holds lambdas, which do not pickle: without them, data are of no use
    for content in (pickled, (tmp_path / "r").read_bytes()):
        assert len(content) < 8000
        assert all(row.tobytes() not in content for row in secret)
    again = pickle.loads(pickled)
    same(again, found)
    with pytest.raises(ValueError, match="pickled with functions that cannot be"):
        again.certify()
    assert found.certify(ed.SeriesSource(secret[::-1] + 1.0)).num_samples == 2000  # the one at hand still knows


def test_other_files_are_refused_by_name(tmp_path):
    path = tmp_path / "result.npz"
    with pytest.raises(FileNotFoundError, match=r"result\.npz"):
        ed.load_result(path)
    run(checkpoint=path)
    with pytest.raises(ValueError, match=r"result\.npz is not a file of 'ergodrift result v1' .*no header"):
        ed.load_result(path)
    found = run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ergodrift.engine.result.FORMAT", "ergodrift result v2")
        found.save(path)
    with pytest.raises(ValueError, match=r"it has format 'ergodrift result v2', this version reads .*v1"):
        ed.load_result(path)
    np.save(tmp_path / "pickle.npy", np.array([found.name, None], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"pickle\.npy is not a file of .* it is not an \.npz file"):
        ed.load_result(tmp_path / "pickle.npy")
    np.savez(path, header=np.array([found.name, None], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="it holds Python objects, which are not loaded"):
        ed.load_result(path)
    with pytest.raises(ValueError, match="cannot be saved while run is traced"):
        jax.vmap(lambda tau: ed.run(ed.edpp(tau), PROBLEM, SOURCE, x0=np.zeros(2), num_samples=5).save(path))(
            jnp.ones(2)
        )


def test_where_nothing_can_be_written_the_path_is_named(tmp_path):
    result = run(num_samples=100)
    with pytest.raises(FileNotFoundError, match=r"x\.npz cannot be written: there is no folder .*/none; make it first"):
        result.save(tmp_path / "none" / "x.npz")
    with pytest.raises(IsADirectoryError, match="is a folder; name a file in it"):
        result.save(tmp_path)


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "result.npz"
    run().save(path)
    before = path.read_bytes()
    full(monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        run(seeds=3).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
