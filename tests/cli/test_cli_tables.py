"""fit, predict and audit as a user types them: what they write and say, and what they refuse in one line."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv as pyarrow_csv
from pyarrow import parquet

from ergodrift import cli
from ergodrift.tables import Model

N = 1200
FIT = ["--target", "hired", "--sensitive", "sex", "--time", "day", "--constraint", "demographic_parity <= 0.3"]


def people(count=N, seed=0):
    """Hired or not, by a skill and a town; sex shifts both. Dates go up by the hour, and rows are shuffled."""
    rng = np.random.default_rng(seed)
    sex = rng.choice(["f", "m"], count)
    skill = rng.normal(size=count) + 0.4 * (sex == "m")
    town = rng.choice(["Ulm", "Bonn", "Köln, am Rhein"], count, p=[0.5, 0.3, 0.2])
    hired = skill + 0.8 * (town == "Ulm") + rng.logistic(size=count) > 0.4
    hours = np.datetime64("2024-01-01T00:00:00") + np.arange(count).astype("timedelta64[h]")
    age = np.where(rng.random(count) < 0.1, np.nan, rng.integers(18, 60, count).astype(float))
    table = pa.table(
        {"day": hours, "sex": sex, "skill": skill, "town": town, "age": age, "id": [f"p{k}" for k in range(count)],
         "hired": np.where(hired, "yes", "no"), "pay": 10 * skill + rng.normal(size=count)}
    )  # fmt: skip
    return table.take(rng.permutation(count))


def as_csv(table, path, separator=","):
    names = table.column_names
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(names)
        for row in table.to_pylist():
            cells: list[Any] = ["" if row[name] is None or row[name] != row[name] else row[name] for name in names]
            writer.writerow([cell.isoformat(" ") if hasattr(cell, "isoformat") else cell for cell in cells])
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table, and a model of it."""
    out = tmp_path_factory.mktemp("tables")
    as_csv(people(), out / "people.csv")
    parquet.write_table(people(300, seed=1), out / "later.parquet")
    assert cli.main(["fit", str(out / "people.csv"), *FIT, "--out", str(out / "fit")]) == 0
    return out


def run(capsys, *arguments):
    """The exit code, and what was printed."""
    code = cli.main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


# What they do


def test_fit_writes_a_model_a_certificate_and_a_page(folder, capsys):
    code, out, _ = run(capsys, "fit", folder / "people.csv", *FIT, "--out", folder / "fit")
    assert code == 0  # the same configuration once more
    assert "target hired: no" in out
    assert "rates are of 'yes'" in out
    assert "rows are sorted by day" in out
    assert "town: category, 3 values (Ulm, Bonn, Köln, am Rhein)" in out
    assert "age: number; missing in" in out
    assert "id: left out, it has more than 1,000 different values" in out
    assert "sex: left out, it is sensitive; name it in --features to use it" in out
    assert "95% certificate from 300 held-out rows" in out
    found = json.loads((folder / "fit" / "certificate.json").read_text())
    assert found["settings"]["constraint"] == ["demographic_parity <= 0.3"]
    assert found["certificate"]["num_rows"] == 300
    assert found["data"]["learned"] == 900
    limits, losses = found["tradeoff"]["limits"], found["tradeoff"]["losses"]
    assert limits == sorted(limits)
    assert 0.3 in limits
    assert losses[0] > losses[-1] - 1e-3  # tighter limits cost
    assert "<script" not in (folder / "fit" / "index.html").read_text()


def test_the_model_is_the_one_that_was_fitted(folder):
    """Coefficients are in the units of the table: skill raises the odds, and Ulm more than the other towns."""
    model = Model.load(folder / "fit")
    effect = dict(zip(model.schema.names, model.coef[0], strict=True))
    assert 0.5 < effect["skill"] < 1.5
    assert effect["town = Ulm"] > 0 > effect["town = Bonn"]
    assert model.classes == ("no", "yes")
    assert model.constraints == ("demographic_parity <= 0.3",)


def test_predictions_are_those_of_the_coefficients_in_the_file(folder, capsys):
    out = folder / "said.csv"
    code, said, _ = run(capsys, "predict", folder / "fit", folder / "later.parquet", "--keep", "id", "--out", out)
    assert code == 0
    assert "300 rows predicted: no" in said
    rows = list(csv.DictReader(out.read_text().splitlines()))
    table = people(300, seed=1).to_pylist()
    content = json.loads((folder / "fit" / "model.json").read_text())
    effect = dict(zip(content["columns"], content["coef"][0], strict=True))
    (filled,) = [f["fill"] for f in content["schema"]["features"] if f["name"] == "age"]
    for row, person in zip(rows, table, strict=True):
        missing = person["age"] != person["age"]
        score = content["intercept"][0] + effect["skill"] * person["skill"] + effect[f"town = {person['town']}"]
        score += effect["age"] * (filled if missing else person["age"]) + effect["age is missing"] * missing
        score += effect["pay"] * person["pay"]
        assert float(row["probability of yes"]) == pytest.approx(1 / (1 + np.exp(-score)), abs=1e-9)
        assert row["prediction"] == ("yes" if score > 0 else "no")
        assert row["id"] == person["id"]


def test_what_the_model_has_not_seen_is_counted(folder, capsys):
    later = people(300, seed=1)
    towns = pa.array(["Rome"] * 7 + later["town"].to_pylist()[7:])
    gaps = pa.array([None, None, *later["skill"].to_pylist()[2:]])
    changed = later.set_column(3, "town", towns).set_column(2, "skill", gaps)
    as_csv(changed, folder / "rome.csv", ";")
    code, said, _ = run(capsys, "predict", folder / "fit", folder / "rome.csv", "--out", folder / "rome.parquet")
    assert code == 0
    assert "town: 7 rows hold values the model has not seen ('Rome' 7); they are taken as the average" in said
    assert "skill: missing in 2 rows, never before" in said
    assert parquet.read_table(folder / "rome.parquet").num_rows == 300


def test_audit_prints_verdicts_and_writes_a_page(folder, capsys):
    log = folder / "log.csv"
    later = folder / "later.parquet"
    assert run(capsys, "predict", folder / "fit", later, "--keep", "hired", "sex", "day", "--out", log)[0] == 0
    asked = ["--target", "hired", "--prediction", "prediction", "--sensitive", "sex", "--time", "day"]
    code, said, _ = run(capsys, "audit", log, *asked, "--limit", "demographic_parity_difference <= 0.9",
                        "--limit", "accuracy >= 0.95", "--out", folder / "audit", "--check")  # fmt: skip
    assert code == 3
    assert "demographic_parity_difference <= 0.9: satisfied" in said
    assert "accuracy >= 0.95: violated" in said
    found = json.loads((folder / "audit" / "audit.json").read_text())
    assert {record["sex"] for record in found["audit"]["by_group"]} == {"f", "m"}
    rows = list(csv.DictReader(log.read_text().splitlines()))
    share = np.mean([row["prediction"] == "yes" for row in rows if row["sex"] == "f"])
    (rate,) = [r for r in found["audit"]["by_group"] if r["sex"] == "f" and r["metric"] == "selection_rate"]
    assert rate["estimate"] == pytest.approx(share)
    assert "2 groups of sex" in (folder / "audit" / "index.html").read_text()


def test_scores_and_other_spellings_of_true_are_audited(folder, capsys):
    rng = np.random.default_rng(2)
    truth, group = rng.random(400) < 0.5, rng.choice(["a", "b"], 400)
    score = np.where(truth, 0.7, 0.4) + 0.2 * rng.random(400)
    table = pa.table({"truth": truth, "score": score, "said": (score > 0.55).astype(int), "group": group})
    parquet.write_table(table, folder / "scores.parquet")
    base = ["audit", folder / "scores.parquet", "--target", "truth", "--sensitive", "group", "--force"]
    found = []
    for more in (["--prediction", "score", "--threshold", "0.55"], ["--prediction", "said"]):
        assert run(capsys, *base, *more, "--metric", "accuracy", "--out", folder / "scored")[0] == 0
        found.append(json.loads((folder / "scored" / "audit.json").read_text())["audit"]["overall"])
    assert found[0] == found[1]
    assert found[0][0]["estimate"] == pytest.approx(np.mean((score > 0.55) == truth))
    code, _, said = run(capsys, *base, "--prediction", "score", "--out", folder / "scored")
    assert code == 2
    assert "pass --threshold 0.5 to make decisions of the numbers" in said


@pytest.mark.slow
def test_a_number_is_predicted_and_audited_too(folder, capsys):
    out = folder / "pay"
    code, said, _ = run(capsys, "fit", folder / "people.csv", "--target", "pay", "--features", "skill", "town",
                        "--sensitive", "sex", "--constraint", "bounded_group_loss <= 4", "--out", out)  # fmt: skip
    assert code == 0
    assert "pay: a number from" in said
    assert "(squared loss)" in said
    model = Model.load(out)
    assert dict(zip(model.schema.names, model.coef[0], strict=True))["skill"] == pytest.approx(10, abs=0.3)
    log = folder / "pay.csv"
    assert run(capsys, "predict", out, folder / "later.parquet", "--keep", "pay", "sex", "--out", log)[0] == 0
    code, said, _ = run(capsys, "audit", log, "--target", "pay", "--prediction", "prediction", "--sensitive", "sex",
                        "--limit", "mean_absolute_error <= 2", "--out", folder / "pay-audit", "--check")  # fmt: skip
    assert code == 0
    assert "mean_absolute_error <= 2: satisfied" in said


def test_without_a_constraint_the_last_rows_still_judge_the_loss(folder, capsys):
    code, said, _ = run(capsys, "fit", folder / "people.csv", "--target", "hired", "--out", folder / "plain")
    assert code == 0
    assert "rows are taken in the order of the file" in said
    found = json.loads((folder / "plain" / "certificate.json").read_text())
    assert found["certificate"]["name"] == []
    assert 0.3 < found["certificate"]["loss_lower"] < found["certificate"]["loss_upper"] < 0.9
    assert found["tradeoff"] is None


@pytest.mark.slow
def test_three_classes_are_named_in_the_certificate(folder, capsys):
    asked = [
        "--target",
        "town",
        "--features",
        "skill",
        "--sensitive",
        "sex",
        "--constraint",
        "demographic_parity <= 0.9",
    ]
    code, said, _ = run(capsys, "fit", folder / "people.csv", *asked, "--out", folder / "town")
    assert code == 0
    assert "rate of class Bonn: " in said
    assert Model.load(folder / "town").coef.shape == (3, 1)


@pytest.mark.slow
def test_a_group_that_only_the_last_rows_show_is_no_failure(folder, capsys, tmp_path):
    table = people()
    late = np.where(np.argsort(np.argsort(table["day"].to_numpy())) < 1000, "f", table["sex"].to_numpy())
    path = as_csv(table.set_column(1, "sex", pa.array(late.astype(str))), tmp_path / "late.csv")
    code, said, _ = run(capsys, "fit", path, *FIT, "--out", tmp_path / "out")
    assert code == 0
    assert json.loads((tmp_path / "out" / "certificate.json").read_text())["tradeoff"] is None
    assert "rate: " in said


# What they refuse


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--target", "hire"], "--target 'hire' is no column of .*; did you mean 'hired'"),
        (["--target", "hired", "--features", "skil"], "--features 'skil' is no column"),
        (["--target", "hired", "--hold-out", "1.5"], "--hold-out must be between"),
        (["--target", "hired", "--constraint", "parity <= 0.1"], "'parity' is not known; names are"),
        (["--target", "hired", "--constraint", "demographic_parity"], "is not of the form"),
        (["--target", "hired", "--constraint", "demographic_parity <= 0.1"], "name their column by --sensitive"),
        (["--target", "hired", "--sensitive", "skill", "--constraint", "equalized_odds <= 0.1"], "values; groups of"),
        (["--target", "hired", "--loss", "squared"], "'hired' holds .* no numbers; pass --loss logistic"),
        (["--target", "pay", "--loss", "logistic"], "too many for classes; pass --loss squared"),
        (["--target", "pay", "--sensitive", "sex", "--constraint", "demographic_parity <= 0.1"], "is about classes"),
        (["--target", "hired", "--features", "id"], "no column to predict 'hired' from"),
        (["--target", "hired", "--time", "town"], "--time 'town' holds .* neither a number nor a date"),
        (["--target", "hired", "--time", "age"], "--time 'age' is missing in"),
        (["--target", "hired", "--positive", "maybe"], "--positive 'maybe' is no value of 'hired', which has no, yes"),
        (["--target", "hired", "--constraint", "mean(town) <= 1"], "means can be taken of .*skill"),
        (["--target", "hired", "--stream", "--time", "day"], "sort it first"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)  # fmt: skip
def test_fit_refuses_in_one_line(folder, capsys, arguments, said):
    out = folder / "refused"
    code, _, shown = run(capsys, "fit", folder / "people.csv", *arguments, "--out", out)
    assert code == 2
    assert shown.count("\n") == 1
    assert "Traceback" not in shown
    assert re.search(said, shown), shown
    assert not list(out.glob("*")) if out.exists() else True


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("y,x\n", "has names of columns and no rows"),
        ("y,y\n1,2\n", "more than one column 'y'"),
        ("y,x\n" + "1,2\n" * 50, "is always '1': there is nothing to tell apart"),
        ("y,x\n" + ",2\n,3\n" * 50, "--target 'y' is empty"),
        ("y,x\n" + "1,2\n0,3\n" * 5, "at least 40 are needed"),
        ("y,x\n1,2,3\n", "CSV parse error: Expected 2 columns"),
    ],
)
def test_tables_that_cannot_be_learned_from(tmp_path, capsys, text, said):
    (tmp_path / "t.csv").write_text(text)
    code, _, shown = run(capsys, "fit", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "out")
    assert code == 2
    assert said in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--limit", "parity"], "is not of the form"),
        (["--limit", "demographic_parity <= 0.1"], "write demographic_parity_difference <="),
        (["--limit", "selection_rate_ratio <= 0.8"], "a ratio is limited from below"),
        (["--limit", "selection_rate_difference <= x"], "'x' is no number"),
        (["--metric", "fairness"], "got 'fairness'"),
        (["--check"], "--check has nothing to check"),
        (["--confidence", "95"], "--confidence must be between 0.5 and 1"),
        (["--prediction", "town"], "they have no value in common"),
        (["--prediction", "town", "--threshold", "0"], "--prediction 'town' holds 'Ulm', "),
        (["--target", "pay", "--prediction", "skill", "--threshold", "0"], "--threshold is for a target with two"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_audit_refuses_in_one_line(folder, capsys, arguments, said):
    base = ["audit", folder / "people.csv", "--target", "hired", "--prediction", "hired", "--sensitive", "sex"]
    code, _, shown = run(capsys, *base, *arguments, "--out", folder / "no-audit")
    assert code == 2
    assert said in shown
    assert shown.count("\n") == 1


def test_predict_refuses_and_leaves_what_is_there(folder, capsys, tmp_path):
    model, later = folder / "fit", folder / "later.parquet"
    kept = tmp_path / "kept.csv"
    kept.write_text("mine")
    (tmp_path / "few.csv").write_text("skill,twn\n1,Ulm\n")
    (tmp_path / "text.csv").write_text("skill,town,age,pay\n1,Ulm,9,1\nmany,Ulm,3,1\n")
    for arguments, said in [
        ([model, later, "--out", kept], "is there already; pass another --out, or --force"),
        ([model, tmp_path / "few.csv", "--out", tmp_path / "x.csv"], "the model's column 'town' is no column of"),
        ([model, tmp_path / "text.csv", "--out", tmp_path / "x.csv"], "column 'skill' held numbers"),
        ([model, tmp_path / "text.csv", "--out", tmp_path / "text.csv", "--force"], "is the table itself"),
        ([model, later, "--out", tmp_path / "x.txt"], "must end in .csv or .parquet"),
        ([tmp_path / "none.json", later], "`ergodrift fit` writes such files"),
        ([later, later], "is no model file"),
    ]:
        code, _, shown = run(capsys, "predict", *arguments)
        assert code == 2, arguments
        assert said in shown
    assert kept.read_text() == "mine"
    assert not (tmp_path / "x.csv").exists()


def test_results_of_another_configuration_are_kept(folder, capsys):
    before = (folder / "fit" / "model.json").read_text()
    code, _, said = run(capsys, "fit", folder / "people.csv", *FIT, "--seed", "3", "--out", folder / "fit")
    assert code == 2
    assert "seed=0 there, 3 here" in said
    assert (folder / "fit" / "model.json").read_text() == before


@pytest.mark.slow
def test_commands_in_a_shell_without_the_extra(folder, tmp_path):
    """Without pyarrow there is one line; with it the commands run as processes of their own."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'pyarrow':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    for command in (["fit", "t.csv", "--target", "y"], ["predict", "m", "t.csv"],
                    ["audit", "t.csv", "--target", "y", "--prediction", "p", "--sensitive", "g"]):  # fmt: skip
        path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, "-m", "ergodrift.cli", *command], capture_output=True, text=True, timeout=120,
            env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 2, done.stderr
        assert "pip install 'ergodrift[sklearn]'" in done.stderr
        assert "Traceback" not in done.stderr
    table = str(folder / "people.csv")
    done = subprocess.run(
        [sys.executable, "-m", "ergodrift.cli", "fit", table, *FIT, "--out", "mine"], capture_output=True, text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"}, cwd=tmp_path, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine" / "index.html").exists()
    assert done.stderr == ""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_table(folder, tmp_path):
    """Four times the rows, and a million of them, take no more memory to look over and to predict."""
    code = (
        "import resource, sys\n"
        "from ergodrift import cli\n"
        "from ergodrift.tables import Table, survey\n"
        "assert survey(Table(sys.argv[2]))['skill'].rows == int(sys.argv[4])\n"
        "assert cli.main(['predict', *sys.argv[1:3], '--out', sys.argv[3]]) == 0\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)\n"
    )
    peaks = []
    for rows in (250_000, 1_000_000):
        rng = np.random.default_rng(0)
        table = pa.table(
            {"skill": rng.normal(size=rows), "town": rng.choice(["Ulm", "Bonn"], rows),
             "age": rng.integers(18, 60, rows), "pay": rng.normal(size=rows), "more": rng.normal(size=rows)}
        )  # fmt: skip
        pyarrow_csv.write_csv(table, tmp_path / "t.csv")
        command = [sys.executable, "-c", code, folder / "fit", tmp_path / "t.csv", tmp_path / f"{rows}.csv", str(rows)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout.splitlines()[-1]))
    assert peaks[1] < peaks[0] + 60  # MB; the table alone takes 40 more for each copy


@pytest.mark.slow
def test_a_stream_of_rows_is_learned_from_once(folder, capsys):
    """In one pass, in the order of the file: the loss is near that of the fit in memory."""
    ordered = people(6000).sort_by("day")
    parquet.write_table(ordered, folder / "ordered.parquet")
    found = {}
    for name, more in (("memory", []), ("stream", ["--stream"])):
        code, said, _ = run(capsys, "fit", folder / "ordered.parquet", *FIT, *more, "--out", folder / name)
        assert code == 0
        assert "certificate from 1,500 held-out rows" in said
        found[name] = json.loads((folder / name / "certificate.json").read_text())["certificate"]["loss"]
    assert found["stream"] < 1.1 * found["memory"]


def test_of_a_table_that_memory_does_not_hold_one_row_in_so_many_is_used(folder, capsys, monkeypatch):
    from ergodrift.tables import fitting

    monkeypatch.setattr(fitting, "MOST_CELLS", 2000)
    code, said, _ = run(
        capsys, "fit", folder / "people.csv", *FIT, "--features", "skill", "pay", "--out", folder / "thin"
    )
    assert code == 0
    assert "1,200 rows in 2 columns are more than is held in memory: one row in 2 is used" in said
    assert "certificate from 150 held-out rows" in said
