"""Learners on disk: saved and gone on with, refused, killed; algorithms in plain data; long lives."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from ergodrift._core import saved
from ergodrift.engine import learner as module
from ergodrift.engine.recipe import KNOWN, described, made
from learning import ALGORITHMS, DATA, MORE, PROBLEM, ROWS, X0, certificate, fed, loss, one, part


@pytest.mark.parametrize("name", [*ALGORITHMS, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_a_saved_learner_goes_on_bit_for_bit(name, tmp_path):
    algorithm = {**ALGORITHMS, **MORE}[name]
    learner = fed(ed.Learner(algorithm, PROBLEM, X0, seed=3, history=7), [300, 301], 0, 1000)
    learner.note = {"offset": 12, "file": "a.csv"}
    learner.save(tmp_path / "learner")
    again = ed.Learner.load(tmp_path / "learner", PROBLEM)
    assert again.samples_seen == 1000
    assert again.note == {"offset": 12, "file": "a.csv"}
    for one_of in (learner, again):
        fed(one_of, [1500], 1000, ROWS)
        one_of.learn(one(0))
    np.testing.assert_array_equal(again.solution, learner.solution)
    jax.tree.map(np.testing.assert_array_equal, again.history, learner.history)


def test_points_that_are_trees_and_averages_are_kept(tmp_path):
    problem = ed.Problem(
        lambda x, xi: (xi["a"] @ x["w"] + x["c"] - xi["b"]) ** 2,
        lambda x, xi: x["w"][:1] - 0.1,
        ed.Product({"w": ed.Ball(2.0), "c": ed.Box(-1.0, 1.0)}),
    )
    learner = ed.Learner(ed.sdpp(), problem, {"w": np.zeros(3), "c": np.zeros(())}, average="suffix")
    learner.learn(part(0, 500))
    learner.save(tmp_path / "learner")
    again = ed.Learner.load(tmp_path / "learner", problem)
    for one_of in (learner, again):
        one_of.learn(part(500, 900))
    jax.tree.map(np.testing.assert_array_equal, again.solution, learner.solution)
    assert again.average == learner.average or again.average.suffix


def test_rows_of_a_linear_model_are_known_again(tmp_path):
    model = ed.LinearModel("logistic", ed.Ball(5.0))
    features = DATA["a"][:600].reshape(60, 10, 3)
    means = features.mean(axis=1, keepdims=True)
    rows = model.data(features, np.sign(DATA["b"][:600].reshape(60, 10)), normals=means, limits=[0.1])
    learner = ed.Learner(ed.sdpp(), model, X0)
    learner.watch()
    learner.learn(rows)
    learner.save(tmp_path / "learner")
    again = ed.Learner.load(tmp_path / "learner", model)
    for each in (learner, again):
        each.learn(rows)
        assert certificate(each).num_samples == 120
    np.testing.assert_array_equal(again.solution, learner.solution)
    alone = ed.Monitor(model, X0)
    alone.update(rows)
    alone.save(tmp_path / "monitor")
    assert ed.Monitor.load(tmp_path / "monitor", model).update(rows).num_samples == 120


class Pair(NamedTuple):
    """A sample of a user's own class."""

    a: np.ndarray
    b: np.ndarray

    def error(self, x):
        return self.a @ x - self.b


def test_named_tuples_of_ones_own_are_passed_in_again(tmp_path):
    problem = ed.Problem(lambda x, xi: xi.error(x) ** 2, lambda x, xi: x[:1] - 0.1, ed.Ball(2.0))
    learner = ed.Learner(ed.edpp(2.0), problem, X0)
    learner.watch()
    learner.learn(Pair(DATA["a"], DATA["b"]))
    learner.save(tmp_path / "learner")
    with pytest.raises(ValueError, match="no attribute 'error'"):
        ed.Learner.load(tmp_path / "learner", problem)
    again = ed.Learner.load(tmp_path / "learner", problem, example=Pair(DATA["a"][0], DATA["b"][0]))
    for each in (learner, again):
        each.learn(Pair(DATA["a"][:99], DATA["b"][:99]))
        assert certificate(each).num_samples == ROWS + 99
    np.testing.assert_array_equal(again.solution, learner.solution)


def test_another_problem_or_algorithm_is_refused(tmp_path):
    learner = fed(ed.Learner(ed.sdpp(), PROBLEM, X0), [])
    path = tmp_path / "learner"
    learner.save(path)
    others = {
        "changed loss": ed.Problem(lambda x, xi: 2 * loss(x, xi), PROBLEM.constraints, PROBLEM.geometry),
        "changed constraints": ed.Problem(loss, lambda x, xi: x[:2] * xi["b"] - 0.2, PROBLEM.geometry),
        "changed domain": ed.Problem(loss, PROBLEM.constraints, ed.Ball(3.0)),
    }
    for message, other in others.items():
        with pytest.raises(ValueError, match=message):
            ed.Learner.load(path, other)
    with pytest.raises(ValueError, match="changed algorithm"):
        ed.Learner.load(path, PROBLEM, ed.edpp(2.0))
    same = ed.Problem(lambda y, s: (s["a"] @ y - s["b"]) ** 2 + jnp.where(s["n"] > 2, y[0], 0),
                      lambda y, s: y[:2] * s["b"] - 0.1, ed.Ball(2.0))  # fmt: skip
    assert ed.Learner.load(path, same).samples_seen == ROWS  # functions go by what they compute


def limited(limit, size=3):
    """A problem with a number that only its closure holds."""
    return ed.Problem(lambda x, xi: (xi["a"][:size] @ x - xi["b"]) ** 2, lambda x, xi: x - limit, ed.Ball(2.0))


def test_a_number_in_a_closure_a_shape_and_a_version_are_told(tmp_path, monkeypatch):
    path = tmp_path / "learner"
    learner = ed.Learner(ed.edpp(2.0), limited(0.1), X0)
    learner.learn(part(0, 100))
    learner.save(path)
    assert ed.Learner.load(path, limited(0.1)).samples_seen == 100
    with pytest.raises(ValueError, match=r"learner .*learner cannot be used: .*changed constraints"):
        ed.Learner.load(path, limited(0.2))
    with pytest.raises(ValueError, match=r"learner .*learner cannot be used"):
        ed.Learner.load(path, limited(0.1, size=2))
    with monkeypatch.context() as patch:  # to another JAX prints may differ, but not what the functions say
        patch.setattr(jax, "__version__", "9.9.9")
        assert ed.Learner.load(path, limited(0.1)).samples_seen == 100
        with pytest.raises(ValueError, match="loss or constraints say something else of its first sample"):
            ed.Learner.load(path, limited(0.2))
        scaled = ed.Problem(lambda x, xi: (2 * xi["a"] @ x - xi["b"]) ** 2, limited(0.1).constraints, ed.Ball(2.0))
        with pytest.raises(ValueError, match="loss or constraints say something else of its first sample"):
            ed.Learner.load(path, scaled)  # at x0 = 0 only the slope tells
    with monkeypatch.context() as patch:
        patch.setattr(module, "FORMAT", "ergodrift learner v2")
        with pytest.raises(ValueError, match=r"it has format 'ergodrift learner v1', this version reads .*v2"):
            ed.Learner.load(path, limited(0.1))


def test_damaged_files_are_refused_by_name(tmp_path):
    learner = fed(ed.Learner(ed.sdpp(), PROBLEM, X0), [], 0, 100)
    path = tmp_path / "learner"
    learner.save(path)
    whole = path.read_bytes()
    with pytest.raises(FileNotFoundError):
        ed.Learner.load(tmp_path / "other", PROBLEM)
    for content in (b"", whole[:500], whole[:-100], os.urandom(2000)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="learner"):
            ed.Learner.load(path, PROBLEM)


class Mine(ed.PresetSchedule):
    """A schedule of a user's own."""

    def at(self, t):
        return ed.Weights(jnp.sqrt(t), t)


def test_an_algorithm_of_ones_own_is_passed_in_again(tmp_path):
    algorithm = ed.Algorithm("mine", ed.DriftPlusPenalty, Mine())
    learner = fed(ed.Learner(algorithm, PROBLEM, X0), [], 0, 100)
    learner.save(tmp_path / "learner")
    with pytest.raises(ValueError, match=r"parts of your own.*pass algorithm="):
        ed.Learner.load(tmp_path / "learner", PROBLEM)
    again = ed.Learner.load(tmp_path / "learner", PROBLEM, algorithm)
    np.testing.assert_array_equal(again.solution, learner.solution)


@pytest.mark.parametrize("name", [*ALGORITHMS, *MORE])
def test_algorithms_are_described_in_plain_data(name):
    algorithm = {**ALGORITHMS, **MORE}[name]
    again = made(described(algorithm))
    assert (again.name, again.average) == (algorithm.name, algorithm.average)
    assert jax.tree.structure(again.schedule) == jax.tree.structure(algorithm.schedule)
    assert jax.tree.leaves((again.schedule, again.estimator)) == jax.tree.leaves(
        (algorithm.schedule, algorithm.estimator)
    )


def test_it_saves_itself_as_often_as_asked(tmp_path):
    path = tmp_path / "learner"
    learner = ed.Learner(ed.edpp(2.0), PROBLEM, X0, save_to=path, save_every=1000)
    learner.learn(part(0, 900))
    assert not path.exists()
    learner.learn(part(900, 1100))
    assert ed.Learner.load(path, PROBLEM).samples_seen == 1100
    learner.learn(part(1100, 2000))
    assert ed.Learner.load(path, PROBLEM).samples_seen == 1100
    again = ed.Learner.load(path, PROBLEM, save_to=path)
    again.learn(part(1100, 2200))
    assert ed.Learner.load(path, PROBLEM).samples_seen == 2200


def test_note_and_samples_are_saved_together(tmp_path):
    path = tmp_path / "learner"
    learner = ed.Learner(ed.edpp(2.0), PROBLEM, X0, save_to=path, save_every=100)
    for first in range(0, 1000, 100):
        learner.learn(part(first, first + 100), note={"offset": first + 100})
        again = ed.Learner.load(path, PROBLEM)
        assert again.note == {"offset": again.samples_seen}
    with pytest.raises(ValueError, match="nan"):
        learner.learn({**part(0, 9), "b": np.full(9, np.nan)}, note={"offset": 1009})
    assert learner.note == {"offset": 1000}


def test_how_often_it_saves_is_asked_again_and_other_files_do_not_count(tmp_path):
    path = tmp_path / "learner"
    learner = ed.Learner(ed.edpp(2.0), PROBLEM, X0, save_to=path, save_every=1000)
    learner.learn(part(0, 900))
    learner.save(tmp_path / "other")
    learner.learn(part(900, 1000))
    assert ed.Learner.load(path, PROBLEM).samples_seen == 1000
    again = ed.Learner.load(path, PROBLEM, save_to=path, save_every=10)
    again.learn(part(1000, 1010))
    assert ed.Learner.load(path, PROBLEM).samples_seen == 1010
    with pytest.raises(ValueError, match=r"save_to: the folder of .*nowhere.*does not exist"):
        ed.Learner(ed.edpp(2.0), PROBLEM, X0, save_to=tmp_path / "nowhere" / "learner")


def test_a_full_disk_does_not_end_it(tmp_path, monkeypatch):
    path = tmp_path / "learner"
    learner = ed.Learner(ed.edpp(2.0), PROBLEM, X0, save_to=path, save_every=100)
    learner.learn(part(0, 100))

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.warns(
            UserWarning, match=r"learner could not be written \(.*No space left.*goes on, and tries again"
        ):
            learner.learn(part(100, 200))
        with pytest.raises(OSError, match="No space left"):
            learner.save(path)
        learner.learn(part(200, 250))
    assert ed.Learner.load(path, PROBLEM).samples_seen == 100
    learner.learn(part(250, 300))
    assert ed.Learner.load(path, PROBLEM).samples_seen == 300
    assert list(tmp_path.iterdir()) == [path]


LONG = """
    import numpy as np, ergodrift as ed

    rows = np.random.default_rng(0).normal(size=(10_000, 2)).astype(np.float32)
    problem = ed.Problem(lambda x, xi: (x[0] - xi[0]) ** 2, lambda x, xi: x - xi[1] - 2, ed.Ball(2.0))
    learner = ed.Learner(ed.sdpp(), problem, np.zeros(1, np.float32), example=rows[0])
    learner.watch(np.array([0.1], np.float32))

    def megabytes():
        return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20

    for chunk in range(1000):
        learner.learn(rows)
        if chunk in (99, 999):
            print(learner.samples_seen, len(learner.history.samples), megabytes(), learner.certificate.num_samples)
"""


@pytest.mark.slow
def test_memory_does_not_grow_over_ten_million_samples():
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(LONG)], check=True, capture_output=True, text=True)
    (early, late) = ([float(number) for number in line.split()] for line in done.stdout.splitlines())
    assert (early[0], late[0], late[3]) == (10**6, 10**7, 10**7)
    assert late[1] <= 201
    assert late[2] < early[2] + 20  # megabytes


LIVING = """
    import mmap, sys, threading
    import numpy as np
    import jax
    jax.config.update("jax_enable_x64", True)
    import ergodrift as ed

    folder, learners, total, often = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    rows = np.random.default_rng(0).normal(size=(learners, 100_000, 2))
    problem = ed.Problem(lambda x, xi: (x[0] * xi[0] - xi[1]) ** 2, lambda x, xi: x - 0.2, ed.Ball(2.0))
    with open(f"{folder}/doing", "r+b") as file:
        doing = mmap.mmap(file.fileno(), learners)  # what each does; it is there when the process is not any more
    all_busy = threading.Barrier(learners + 1)

    class Marked(ed.Learner):
        def save(self, path):
            doing[self.number] = 2
            super().save(path)
            doing[self.number] = 1

    def live(number):
        path, mine = f"{folder}/learner {number}", rows[number]
        try:
            learner = Marked.load(path, problem, save_to=path)
        except FileNotFoundError:
            learner = Marked(ed.mdpp(), problem, np.zeros(1), example=mine[0], save_to=path, save_every=often)
        learner.number, at = number, learner.samples_seen
        if at == 0:
            learner.watch(np.array([0.1]))
        busy_from = at + 100
        while at < total:
            if at >= busy_from:
                all_busy.wait()  # all is loaded and compiled: from here on it may be killed
                busy_from = total
            doing[number] = 1
            learner.learn(mine[at] if at % 3 else mine[at : min(at + 37, total)])
            at = learner.samples_seen
        doing[number] = 0
        learner.save_to = None
        numbers = learner.solution[0], learner.x[0], learner.queue[0], learner.certificate.num_samples
        said[number] = " ".join(float(each).hex() for each in (at, *numbers))

    said = [""] * learners
    threads = [threading.Thread(target=live, args=(number,), daemon=True) for number in range(learners)]
    [thread.start() for thread in threads]
    all_busy.wait()
    print("begin", flush=True)
    [thread.join() for thread in threads]
    print(*said, sep="\\n", flush=True)
"""


def living(folder, cache, *numbers):
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    command = [sys.executable, "-c", textwrap.dedent(LIVING), folder, *map(str, numbers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.slow
def test_killed_at_a_thousand_points_it_goes_on_bit_for_bit(tmp_path):
    """Processes with 40 learners each are killed by SIGKILL, again and again: each time every learner is at some point
    of its own, in the midst of learning or of writing its file. All end where those end whom nobody disturbed."""
    rng, learners, forever, often = np.random.default_rng(1), 40, 90_000, 300
    points, left, processes = [], 0, 0
    for name in ("killed", "quiet"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "doing").write_bytes(bytes(learners))
    paths = [tmp_path / "killed" / f"learner {number}" for number in range(learners)]

    def enough():
        caught = len(points) >= 1000 and min(points.count(1), points.count(2)) >= 50 and left >= 5
        return caught and any(path.exists() for path in paths)

    # How much of its time a learner spends saving is the disk's affair: it goes on until enough were caught at each,
    # and longer and longer, until a file was whole.
    while not enough():
        processes += 1
        assert processes <= 80, (points.count(1), points.count(2), left)
        (tmp_path / "killed" / "doing").write_bytes(bytes(learners))
        process = living(tmp_path / "killed", tmp_path / "cache", learners, forever, often)
        assert process.stdout is not None
        assert process.stdout.readline() == "begin\n"
        time.sleep(rng.uniform(0.05, 0.8 + processes / 40))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        points += [doing for doing in (tmp_path / "killed" / "doing").read_bytes() if doing]  # 1: learning, 2: saving
        left += len(list((tmp_path / "killed").glob(".*.tmp")))  # files that were half written
    reached = max(saved.read(path, module.FORMAT, KNOWN)["samples_seen"] for path in paths if path.exists())
    assert often <= reached < forever  # what was saved was gone on from
    ends = []
    for name, every in (("killed", often), ("quiet", 10**9)):
        process = living(tmp_path / name, tmp_path / "cache", learners, reached + 500, every)
        ends.append(process.communicate()[0].splitlines()[1:])
    assert len(ends[0]) == learners
    assert ends[0] == ends[1]
    assert not list((tmp_path / "killed").glob(".*.tmp"))
