"""The paper's experiment as a library and from the command line."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

from ergodrift import cli
from ergodrift.cli.reproduce import write_report
from ergodrift.experiments import Config, Experiment, configure, reproduce
from ergodrift.experiments.claims import PAPER_TABLE, claims, table
from ergodrift.experiments.reproduce import METRICS, grid
from ergodrift.methods.estimator import mean_samples

pytestmark = pytest.mark.x64("golden numbers")

TINY = configure(seeds=2, samples=1_500, records=20, points=48)


@pytest.fixture(scope="module")
def results():
    return reproduce(TINY)


def test_the_reference_agrees_with_an_independent_convex_solver():
    experiment = Experiment.prepare(configure())
    rows = experiment.rows
    features = np.hstack([rows.X, np.ones((len(rows.X), 1))])
    x: Any = cp.Variable(3)
    loss: Any = cp.sum(cp.logistic(cp.multiply(-rows.y, features @ x))) / len(rows.y)
    covariance = ((rows.z - rows.z.mean()) @ features / len(rows.y)) @ x
    cp.Problem(cp.Minimize(loss), [cp.abs(covariance) <= 0.5, cp.norm(x, 2) <= 5]).solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(experiment.reference.x, x.value, atol=1e-6)
    np.testing.assert_allclose(experiment.reference.value, loss.value, atol=1e-8)
    assert experiment.reference.kkt_residual < 1e-7


def test_results_have_every_metric_for_every_algorithm(results):
    assert list(results["algorithms"]) == ["PD", "PD2", "DPP-T", "DPP-t", "EDPP-T", "EDPP-t", "MDPP", "ADPP"]
    records = len(results["samples"])
    assert results["samples"][-1] == TINY.samples
    for found in results["algorithms"].values():
        assert set(found["curves"]) == set(found["final"]) == set(found["summary"]) == set(METRICS)
        for metric in METRICS:
            curve = np.array(found["curves"][metric])
            assert curve.shape == (2, records)
            np.testing.assert_array_equal(curve[:, -1], found["final"][metric])
            # Curves are kept to seven digits: their mean is as good as that, but for what cancels between seeds.
            digits = 1e-6 * np.abs(curve).max()
            np.testing.assert_allclose(curve.mean(axis=0), found["summary"][metric]["mean"], rtol=1e-5, atol=digits)
    assert min(results["algorithms"]["EDPP-t"]["final"]["lagrangian_gap"]) >= 0
    json.dumps(results)


def test_the_configuration_is_in_the_results(results):
    assert results["config"]["samples"] == 1_500
    assert results["config"]["tau_mix"] == pytest.approx(1000 / 3)
    assert results["chain"]["mixing_time"] == 327


def test_the_same_seed_gives_the_same_numbers_and_another_does_not(results):
    again = reproduce(TINY)
    other = reproduce(dataclasses.replace(TINY, seed=1))
    for name in ("EDPP-t", "MDPP"):
        assert again["algorithms"][name]["curves"] == results["algorithms"][name]["curves"]
        assert other["algorithms"][name]["curves"] != results["algorithms"][name]["curves"]


@pytest.mark.slow
def test_mdpp_takes_as_many_samples_a_round_as_its_law_says():
    experiment = Experiment.prepare(configure(seeds=8, samples=20_000, points=16))
    rounds = np.array(experiment.run("MDPP")["rounds"])
    # N has mean 4.0625 and standard deviation 3.68: about 4,923 rounds, each count with a deviation of 64
    deviation = np.sqrt(20_000 / mean_samples(16)) * 3.68 / mean_samples(16)
    assert np.abs(rounds - 20_000 / mean_samples(16)).max() < 4 * deviation


def test_the_grid_serves_both_kinds_of_axis():
    points = grid(configure())
    assert points[0] == 10
    assert points[-1] == 101_562
    assert (np.diff(points) > 0).all()
    assert np.count_nonzero(points < 1000) > 20


@pytest.mark.parametrize(
    ("design", "field", "value"),
    [
        ("wide", "angles", (-45.0, 0.0, 45.0)),
        ("infeasible-start", "x0", (3.0, 3.0, 0.0)),
        ("literal", "scale", 1.0),
        ("default", "angles", (-30.0, 0.0, 30.0)),
    ],
)
def test_designs(design, field, value):
    assert getattr(configure(design), field) == value


def test_a_file_overrides_a_design_and_an_option_overrides_the_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("p = 0.01\nseeds = 7\nangles = [0, 10]\n")
    config = configure("wide", file=file, seeds=3)
    assert (config.p, config.seeds, config.angles, config.design) == (0.01, 3, (0.0, 10.0), "wide")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sed = 3", "unknown field sed; the fields are angles, beta, cap"),
        ("p = 0.9", "p must be > 0 and < 0.5, got 0.9"),
        ("seeds = 'many'", "seeds must be a whole number, got 'many'"),
        ("angles = 30", "angles must be a list of numbers, got 30"),
        ("x0 = [1, 2]", "x0 must have three entries"),
        ("p = ", "is not TOML"),
    ],
)
def test_wrong_fields_are_refused_by_name(tmp_path, capsys, text, message):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    assert cli.main(["reproduce", "--config", str(file), "--out", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    assert not (tmp_path / "out").exists()


def test_claims_are_decided_seed_by_seed(results):
    changed = json.loads(json.dumps(results))
    for name, values in {"EDPP-T": [0.1, 0.1], "EDPP-t": [1.0, 1.0], "DPP-T": [2.0, 0.5], "DPP-t": [3.0, 3.0]}.items():
        changed["algorithms"][name]["final"]["gap"] = values
    entry = {e["claim"]: e for e in claims(changed)}["EDPP-T and EDPP-t have a smaller gap than DPP-T and DPP-t"]
    assert (entry["verdict"], entry["wins"], entry["seeds"]) == ("depends", 1, 2)
    changed["algorithms"]["DPP-T"]["final"]["gap"] = [2.0, 2.0]
    entry = {e["claim"]: e for e in claims(changed)}["EDPP-T and EDPP-t have a smaller gap than DPP-T and DPP-t"]
    assert entry["verdict"] == "holds"


def test_the_table_stands_beside_the_papers(results):
    rows = {row["algorithm"]: row for row in table(results)}
    assert rows["EDPP-T"]["paper"] == PAPER_TABLE["EDPP-T"] == 0.2042
    assert rows["ADPP"]["paper"] is None
    finals = results["algorithms"]["PD"]["final"]["infeasibility_0"]
    assert rows["PD"]["mean"] == pytest.approx(np.mean(finals))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    config = out / "tiny.toml"
    config.write_text("points = 48\nrecords = 20\n")
    command = [sys.executable, "-m", "ergodrift.cli", "reproduce", "--config", str(config), "--seeds", "2"]
    command += ["--samples", "1500", "--out", str(out / "made")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return out / "made", done, command


def test_the_command_writes_everything(written):
    out, done, _ = written
    results = json.loads((out / "results.json").read_text())
    assert results["schema"] == "ergodrift reproduce v1"
    assert len(results["claims"]) == 14
    names = {"data", "gap", "lagrangian_gap", "infeasibility", "violation", "regret"}
    assert {path.name for path in (out / "figures").iterdir()} == {f"{n}.{s}" for n in names for s in ("png", "svg")}
    page = (out / "index.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert len(page) < 2**20
    assert "\r" not in done.stdout + done.stderr  # plain lines where there is no terminal
    assert "EDPP-t" in done.stdout


@pytest.mark.slow
def test_a_rerun_keeps_finished_algorithms_and_gives_the_same_results(written):
    out, _, command = written
    before = json.loads((out / "results.json").read_text())
    (lost,) = (out / ".finished").glob("ADPP-*.json")
    lost.write_text("{cut short")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("kept from before") == 7
    after = json.loads((out / "results.json").read_text())
    for results in (before, after):
        for found in results["algorithms"].values():
            found.pop("seconds")
    assert after == before


def test_an_interrupted_run_says_how_to_go_on(tmp_path):
    # A shell's background jobs, and their children, ignore Ctrl-C unless they ask for it.
    ask = "import signal, ergodrift.cli as cli; signal.signal(signal.SIGINT, signal.default_int_handler); cli.entry()"
    command = [sys.executable, "-c", ask, "reproduce", "--out", str(tmp_path), "--samples", "2000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "data and chain ready" in line:
                break
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        try:
            _, shown = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "interrupted; run the same command again to go on" in shown
    assert "Traceback" not in shown
    assert not (tmp_path / "results.json").exists()


def test_a_full_disk_takes_away_neither_the_table_nor_what_was_found(results, tmp_path, monkeypatch):
    def fails(descriptor):
        raise OSError(28, "No space left on device")

    said: list[str] = []
    monkeypatch.setattr(Experiment, "run", lambda self, name: results["algorithms"][name])
    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="No space left on device"):
        write_report(TINY, tmp_path, log=said.append)
    assert "MDPP cannot be kept for another time: [Errno 28] No space left on device" in said
    assert any("constraint 1" in line for line in said)  # the table
    assert not list(tmp_path.rglob("*.json"))
    assert not list(tmp_path.rglob("*.tmp"))


def test_an_unwritable_folder_is_said_before_the_work_starts(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["reproduce", "--out", str(tmp_path / "file" / "out")]) == 2
    assert "cannot be written to" in capsys.readouterr().err


def test_a_full_disk_is_said_before_the_work_starts(tmp_path, capsys, monkeypatch):
    real = os.statvfs(tmp_path)
    full = os.statvfs_result([*real[:3], 0, 0, *real[5:]])
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    assert cli.main(["reproduce", "--out", str(tmp_path)]) == 2
    assert "has less than 50 MB free" in capsys.readouterr().err


def test_help_version_and_exit_codes(capsys):
    assert cli.main([]) == 0
    assert "usage: ergodrift" in capsys.readouterr().out
    for arguments, code, text in [(["--version"], 0, "ergodrift 0.1.0"), (["reproduce", "--help"], 0, "examples:")]:
        with pytest.raises(SystemExit) as stop:
            cli.main(arguments)
        assert stop.value.code == code
        assert text in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        cli.main(["reproduce", "--design", "narrow"])
    assert stop.value.code == 2


def test_debug_shows_the_traceback(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(cli.UsageError):
        cli.main(["reproduce", "--debug", "--out", str(tmp_path / "file" / "out")])


def test_a_configuration_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().seeds = 3  # type: ignore[misc]


def test_figures_and_page_use_the_same_colours_and_dashes():
    import re
    from importlib.resources import files

    from ergodrift.report.figures import STYLES

    css = (files("ergodrift.report") / "page.html").read_text()
    for name, (colour, dashes) in STYLES.items():
        rule = re.search(rf'\[data-key="{name}"\]\) {{ --colour: (\S+); --dash: ([\d ]+|none); }}', css)
        assert rule is not None, name
        assert rule[1] == colour or name == "ADPP"  # black in light, white in dark
        assert rule[2] == ("none" if dashes == "-" else " ".join(map(str, dashes[1])))
