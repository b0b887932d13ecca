"""The benchmark: what a row says, who is missing, what is kept, and the command as a user types it."""

import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from ergodrift import cli
from ergodrift.peers import bench
from ergodrift.peers.bench import Config, compare, judged, line
from ergodrift.peers.measure import FLOOR, Judge, blind
from ergodrift.peers.rival import Found, NotForThisError, Rival, Trial
from small_task import small

pytestmark = pytest.mark.x64("the command sets the precision itself")


def rival(name, run, **fields):
    return Rival(**{"name": name, "family": "ours", "tuned": False, "settings": 0, "about": name, "run": run, **fields})


def at(*point):
    return lambda trial: Found(
        np.tile(point, (trial.seeds, 1)), 0.5, np.tile(point, (trial.seeds, len(trial.stops), 1))
    )


def endless(trial):
    return {"loss": [0.6], "violation": [0.1], "seconds": 1.0, "later": {"lower": -np.inf, "upper": np.nan}}


def absent(trial):
    raise NotForThisError("no states come back")


def broken(trial):
    raise ArithmeticError("it diverged")


RIVALS = (
    rival("auto", at(0.3, 0.4), certified=True),
    rival("best", at(0.3, 0.5), family="baseline", tuned=True, settings=2),
    rival("default", at(0.0, 0.1), family="library"),
    rival("not finite", at(np.nan, 0.0)),
    rival("absent", absent),
    rival("broken", broken),
    rival("not installed", at(0.0, 0.0), needs=("no_such_package",), family="library"),
    rival("rates", endless, family="library"),
)


@pytest.fixture
def bench_of_two(monkeypatch):
    tasks = {"one": small, "two": functools.partial(small, num_samples=300, title="two states, longer")}
    monkeypatch.setattr(bench, "TASKS", tasks)
    monkeypatch.setattr(bench, "RIVALS", RIVALS)
    return Config(("one", "two"), seeds=3)


def test_values_by_hand():
    """f(x) = |x|^2 - x.1 + 1, g = x_0 - 0.3, l* = 0.4: L(x, l*) - L* is |x - x*|^2 here."""
    judge = Judge(small())
    assert judge.start.gap[0] == pytest.approx(0.34)
    found = judge(np.array([[0.3, 0.5], [0.5, 0.5], [0.0, 0.5], [np.inf, 0.0]]))
    np.testing.assert_allclose(found.gap, [0, 0.04, 0.09, np.nan], atol=1e-12)
    np.testing.assert_allclose(found.loss, [0.54, 0.5, 0.75, np.nan], atol=1e-12)
    np.testing.assert_allclose(found.merit, [0, 0.5 - 0.54 + 2 * 0.4 * 0.2, 0.21, np.nan], atol=1e-12)
    np.testing.assert_allclose(found.violation, [0, 0.2, -0.3, np.nan], atol=1e-12)
    later = judge.later(np.array([0.2, 0.5]))
    assert later["verdict"] == "satisfied"
    endless = dataclasses.replace(small(), later=small().source)
    assert Judge(endless).later(np.array([0.2, 0.5]))["verdict"] == "satisfied"
    assert later["lower"] <= later["violation"] <= later["upper"] <= 0


def test_settings_are_chosen_by_the_gap_and_where_that_is_blind_by_merit():
    judge = Judge(small())
    points = np.array([[[0.3, 0.5]], [[0.5, 0.5]], [[np.nan, 0.5]]])  # (settings, seeds, d)
    scores, by = judge.scores(points)
    assert by == "gap"
    np.testing.assert_allclose(scores, [FLOOR, 0.04 / 0.34, np.inf], rtol=1e-6)
    assert judge.scores(points, "merit")[0][1] == pytest.approx(0.12 / judge.start.merit[0])
    assert blind(np.array([0.3, 0.0]), np.array([0.3, 0.2]))
    assert not blind(np.array([0.3, 0.0]), np.array([0.3, 0.001]))


def test_shuffling_keeps_the_samples_of_each_seed():
    trial = Trial.of(small(), 3)
    assert not np.array_equal(trial.paths, trial.shuffled)
    np.testing.assert_array_equal(np.sort(trial.paths, axis=1), np.sort(trial.shuffled, axis=1))


def test_rows_say_who_is_missing_who_failed_and_why(bench_of_two, tmp_path):
    lines = []
    results = compare(bench_of_two, tmp_path, lines.append)
    assert json.loads(json.dumps(results, allow_nan=False))["config"]["seeds"] == 3
    rows = {row["rival"]: row for row in results["rows"] if row["task"] == "one"}
    assert [rows[name]["status"] for name in rows] == [
        "done", "done", "done", "failed", "not for this", "failed", "missing", "done",
    ]  # fmt: skip
    assert rows["auto"]["gap"] == pytest.approx([0.01] * 3)
    assert rows["auto"]["curve"]["samples"][-1] == 200
    assert rows["best"]["later"]["verdict"] == "satisfied"  # the constraint does not depend on the sample
    assert "not finite" in rows["not finite"]["why"]
    assert "it diverged (test_bench.py:" in rows["broken"]["why"]
    assert rows["not installed"]["why"] == "not installed: no_such_package"
    assert rows["auto"]["kept"] == ["satisfied"] * 3
    assert "kept" not in rows["best"]
    assert rows["rates"]["later"] == {"lower": None, "upper": None}
    task = results["tasks"]["one"]
    assert task["optimum"]["gap"] == pytest.approx(0, abs=1e-12)
    assert task["x0"]["gap"] == pytest.approx(0.34)
    assert task["dependence"]["tau_mix"] > 1 or "note" in task["dependence"]
    text = "\n".join(lines)
    assert "not installed: no_such_package" in text
    assert "no gap; loss 0.6000" in text
    assert line(rows["auto"], task).startswith("gap 2.94e-02 of x0's")


def test_what_is_finished_is_kept_and_what_is_missing_is_not(bench_of_two, tmp_path, monkeypatch):
    first = compare(bench_of_two, tmp_path, lambda line: None)
    asked = []

    def again(one, trial):
        asked.append(one.name)
        return judged(one, trial)

    monkeypatch.setattr(bench, "judged", again)
    assert compare(bench_of_two, tmp_path, lambda line: None) == first
    assert asked == ["not installed"] * 2
    (kept,) = tmp_path.glob("two-best-*.json")
    kept.write_text(kept.read_text()[:20])  # cut short, as a full disk leaves it
    assert compare(bench_of_two, tmp_path, lambda line: None) == first
    assert asked[2:] == ["not installed", "best", "not installed"]
    compare(Config(("one",), seeds=2), tmp_path, lambda line: None)  # another configuration has results of its own
    assert len(asked) == 5 + len(RIVALS)


def test_wrong_names_are_refused(tmp_path, capsys):
    assert cli.main(["peers", "--tasks", "nonsense", "--out", str(tmp_path / "out")]) == 2
    assert "there is no 'nonsense'; there are flights, compas" in capsys.readouterr().err
    assert cli.main(["peers", "--seeds", "0", "--out", str(tmp_path / "out")]) == 2
    assert cli.main(["peers", "--write-docs", str(tmp_path / "no.md"), "--out", str(tmp_path / "out")]) == 2
    assert "--write-docs: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


COMMAND = [sys.executable, "-m", "ergodrift.cli", "peers", "--quick", "--seeds", "2"]


def environment():
    return {**os.environ, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
def test_as_a_user_types_it(tmp_path):
    command = [*COMMAND, "--tasks", "compas,adult", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=600)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results["tasks"]) == ["compas", "adult"]
    names = [rival.name for rival in bench.RIVALS]
    assert [row["rival"] for row in results["rows"]] == names * 2
    failed = [row for row in results["rows"] if row["status"] == "failed"]
    assert not failed
    page = (tmp_path / "index.html").read_text()
    for row in results["rows"]:
        if row["status"] == "missing":
            assert f"{row['rival']} is missing" in page
    assert (tmp_path / "figures" / "overview.svg").exists()


@pytest.mark.slow
def test_killed_it_goes_on(tmp_path):
    command = [*COMMAND, "--tasks", "compas", "--rivals", "DPP-t;ADPP;WDPP;PD2", "--out", str(tmp_path)]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment())
    try:
        while not list((tmp_path / ".finished").glob("compas-DPP-t-*.json")):
            assert started.poll() is None
            time.sleep(0.05)
    finally:
        started.send_signal(signal.SIGKILL)
        started.wait()
    (kept,) = (tmp_path / ".finished").glob("compas-DPP-t-*.json")
    before = kept.stat().st_mtime_ns
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=600)
    assert done.returncode == 0, done.stderr
    assert kept.stat().st_mtime_ns == before
    assert len(json.loads((tmp_path / "results.json").read_text())["rows"]) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["auto", "auto, margin", "EDPP-t, told tau", "RDPP", "PD2", "Sinha-Vaze", "CSA, tuned", "descent-ascent, tuned"],
)
def test_competitors_on_a_task_that_is_known_by_hand(name):
    (chosen,) = [rival for rival in bench.RIVALS if rival.name == name]
    trial = Trial.of(dataclasses.replace(small(num_samples=3000), later=small().source), 2)  # later paths never end
    row = judged(chosen, lambda: trial)
    assert row["status"] == "done", row["why"]
    assert np.mean(row["gap"]) < 0.5 * trial.judge.start.gap[0]
    assert row["curve"]["gap"][-1] == pytest.approx(np.mean(row["gap"]), rel=1e-5)
    assert 0 < row["seconds"] < 60
    assert (row["setting"] is not None) == chosen.tuned
