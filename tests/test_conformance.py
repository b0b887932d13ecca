import json
from pathlib import Path

import pytest

import conformance

pytestmark = pytest.mark.x64("golden vectors")

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", ["golden.json", "cases.json"])
def test_golden_files_are_matched(name, capsys):
    assert conformance.main([str(GOLDEN / name)]) == 0, capsys.readouterr().out


def test_a_difference_is_named_by_case_algorithm_and_step(tmp_path, capsys):
    content = json.loads((GOLDEN / "cases.json").read_text())
    case = content["cases"][0]
    case["algorithms"] = {"ADPP": case["algorithms"]["ADPP"]}
    case["algorithms"]["ADPP"]["Q"][7][1] += 1e-9
    path = tmp_path / "changed.json"
    path.write_text(json.dumps({"cases": [case]}))
    assert conformance.main([str(path)]) == 1
    assert "changed.json: box[0] ADPP: Q: step 7, index (7, 1)" in capsys.readouterr().out


def test_a_case_that_cannot_run_fails_by_name(tmp_path, capsys):
    content = json.loads((GOLDEN / "cases.json").read_text())
    case = content["cases"][1]
    case["algorithms"] = {"EDPP-t": case["algorithms"]["EDPP-t"]}
    case["algorithms"]["EDPP-t"]["params"]["beta"] = 0.7
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({"cases": [case]}))
    assert conformance.main([str(path)]) == 1
    assert "ball[0] EDPP-t: ValueError: beta must be" in capsys.readouterr().out
