"""Who won where, from made-up rows."""

import pytest

from ergodrift.peers.measure import FLOOR
from ergodrift.peers.verdict import counts, sentences, verdicts

pytestmark = pytest.mark.x64("no arrays: once is enough")

ABOUT = {
    "auto": ("ours", False),
    "EDPP-t, told tau": ("ours", False),
    "tuned": ("baseline", True),
    "default": ("library", False),
    "theirs": ("research", False),
    "shuffled: auto": ("control", False),
}


def results(**gaps):
    """One task for each name, with the gaps of all competitors in units of x0's; x0 has 2."""
    rows = [
        {"task": task, "rival": rival, "status": "done", "gap": [2 * value, 2 * value], "merit": [2 * value] * 2,
         "seconds": 3.0 if rival == "auto" else 2.0, "later": {"verdict": "satisfied"}}
        for task, each in gaps.items()
        for rival, value in zip(ABOUT, each, strict=True)
        if value is not None
    ]  # fmt: skip
    return {
        "rivals": {name: {"family": family, "tuned": tuned} for name, (family, tuned) in ABOUT.items()},
        "tasks": {task: {"x0": {"gap": 2.0, "merit": 2.0}} for task in gaps},
        "rows": rows,
    }


def test_the_best_is_anybody_but_a_control():
    found = verdicts(results(one=(0.03, 0.5, 0.02, 0.1, 0.015, 0.001)))["one"]
    assert found["best"] == "theirs"
    assert found["ratio"] == pytest.approx(2)
    assert found["best_default"] == "default"
    assert found["default_ratio"] == pytest.approx(0.3)
    assert found["cost"] == pytest.approx(1.5)
    assert found["above_x0"] == 0
    assert found["kept"] is None
    assert found["ratios"]["auto"] == pytest.approx(2)


def test_gaps_below_what_references_know_are_equal():
    found = verdicts(results(one=(FLOOR / 2, 0.5, -1e-9, 0.1, 0.2, None)))["one"]
    assert found["ratio"] == 1


def test_counts():
    found = verdicts(
        results(
            won=(0.01, 0.5, 0.02, 0.1, 0.3, None),
            near=(0.03, 0.5, 0.02, 0.1, 0.3, None),
            far=(0.06, 0.5, 0.02, 0.05, 0.3, None),
            lost=(1.2, 0.5, 0.02, 0.1, 0.3, None),
            alone=(0.5, 0.25, None, None, None, None),
        )
    )
    number = counts(found)
    assert number == {
        "tasks": 5, "near": 2, "far": 4, "below_defaults": 2, "with_defaults": 4, "never_above_x0": 4, "won": 1,
    }  # fmt: skip
    assert found["lost"]["above_x0"] == 2
    assert found["alone"]["best_default"] is None
    text = " ".join(sentences(number))
    assert "on 2 of 5, and at most 3 times on 4" in text
    assert "below the default setting of every peer on 2 of 4" in text


def test_a_task_without_auto_has_no_verdict():
    assert verdicts(results(one=(None, 0.5, 0.02, 0.1, 0.3, None))) == {}
    assert counts({})["tasks"] == 0


def test_a_task_on_which_the_gap_is_blind_is_judged_by_merit():
    made = results(one=(0.03, 0.5, 0.0, 0.1, 0.2, None))
    assert verdicts(made)["one"]["measure"] == "gap"
    made["rows"][2]["setting"] = {"chosen by": "merit"}
    assert verdicts(made)["one"]["measure"] == "merit"
    made["rows"][2]["setting"] = {"chosen by": "gap"}
    for row in made["rows"]:
        row["merit"] = [2 * 0.2 if row["rival"] == "tuned" else row["merit"][0]] * 2
    found = verdicts(made)["one"]
    assert found["measure"] == "merit"
    assert found["ratio"] == pytest.approx(0.3)  # of the default's 0.1: the tuned one has 0.2 now, and so have theirs


def test_certified_points_are_counted():
    made = results(one=(0.03, 0.5, 0.02, 0.1, 0.2, None))
    made["rows"][0]["kept"] = ["satisfied", "undecided"]
    assert verdicts(made)["one"]["kept"] == 1


def test_what_a_margin_costs_is_told_in_units_of_the_gap():
    made = results(one=(0.03, 0.5, 0.02, 0.1, 0.2, None))
    made["rivals"]["auto, margin"] = {"family": "ours", "tuned": False}
    made["rows"].append({**made["rows"][0], "rival": "auto, margin", "kept": ["satisfied"] * 2, "loss": [1.4, 1.6]})
    made["rows"][0]["loss"] = [1.1, 1.3]
    found = verdicts(made)["one"]
    assert found["kept_with_margin"] == 2
    assert found["margin_cost"] == pytest.approx(0.3 / 2)
