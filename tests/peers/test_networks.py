"""The section of networks: how settings are chosen, what oscillation is, who is missing, and the parts of the page."""

import importlib.util
import json
import math

import numpy as np
import pytest

from ergodrift import cli
from ergodrift.peers.bench import Config, compare
from ergodrift.peers.networks.bench import MEASURES, SLACK, chosen, oscillation
from ergodrift.peers.networks.trainers import TRAINERS
from ergodrift.report.networks import NETWORKS
from ergodrift.report.peers import write_report

pytestmark = pytest.mark.x64("the command sets the precision itself")


def run_of(loss, violation):
    return dict.fromkeys(MEASURES, 0.5) | {"loss": loss, "violation": violation}


def test_hindsight_takes_the_smallest_loss_of_those_that_keep_the_limits():
    settings = ({"lr": 0.1}, {"lr": 1.0}, {"lr": 10.0}, {"lr": 100.0})
    found = [
        [run_of(0.1, 3 * SLACK), run_of(0.1, 0.0)],  # 1.5 times the slack on average
        [run_of(0.4, 0.0), run_of(0.4, SLACK)],
        [run_of(0.3, 1.8 * SLACK), run_of(0.5, 0.0)],  # the same loss, later
        [run_of(math.nan, 0.0), run_of(0.1, 0.0)],
    ]
    best = chosen(settings, found)
    assert best["setting"] == {"lr": 1.0}
    assert best["loss"] == [0.4, 0.4]
    assert best["tried"][0]["violation"] == pytest.approx(1.5 * SLACK)
    assert chosen(settings[:1], found[:1])["setting"] == {"lr": 0.1}  # nobody keeps them: the least violation
    assert chosen(settings[3:], found[3:])["status"] == "failed"


def test_oscillation_by_hand():
    seen = [np.array([9.0, 9.0])] * 12 + [np.array([1.0, 0.0]), np.array([3.0, 0.0])] * 2
    assert oscillation(seen) == pytest.approx(0.5 / 2)  # deviations 1 and 0; the larger mean is 2
    assert oscillation([np.zeros(2)] * 4) == 0
    assert math.isnan(oscillation([]))


@pytest.fixture
def bare(monkeypatch):
    """A machine that has none of the packages."""
    found = importlib.util.find_spec
    absent = ("torch", "cooper", "humancompatible")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name in absent else found(name, *a))


def test_who_is_not_installed_is_named_everywhere(bare, tmp_path):
    lines = []
    results = compare(Config((), networks=("norm", "digits")), tmp_path / "parts", lines.append)
    rows = results["networks"]["rows"]
    assert [row["rival"] for row in rows] == [trainer.name for trainer in TRAINERS] * 2
    assert {row["status"] for row in rows} == {"missing"}
    assert rows[5]["why"] == "not installed: torch, humancompatible"
    assert "not installed: torch, cooper" in "\n".join(lines)
    assert not (tmp_path / "parts").exists()  # tomorrow they may be there
    docs = tmp_path / "docs.md"
    docs.write_text(f"before\n{NETWORKS[0]}\nlast time\n{NETWORKS[1]}\nafter\n")
    write_report(results, tmp_path, docs)
    page = (tmp_path / "index.html").read_text()
    assert "SPBM, tuned is missing (not installed: torch, humancompatible; pip install" in page
    text = docs.read_text()
    assert "| SPBM, tuned | missing: not installed: torch, humancompatible |" in text
    assert text.startswith("before\n")
    assert text.endswith(f"{NETWORKS[1]}\nafter\n")
    assert "last time" not in text


def test_numbers_reach_the_tables_and_the_picture(tmp_path):
    numbers = {name: [0.25, 0.75] for name in MEASURES}
    done = {"task": "norm", "status": "done", "why": "", **numbers}
    rows = [
        {**done, "rival": "ours", "setting": {}, "tried": [{}]},
        {**done, "rival": "Cooper, tuned", "setting": {"lr": 0.01}, "tried": [{}] * 7, "oscillation": [None, None]},
    ]
    trained = {
        "seeds": 2, "slack": SLACK, "tasks": {"norm": {"about": "a <norm>"}}, "rows": rows,
        "trainers": {"ours": {}, "Cooper, tuned": {}},
    }  # fmt: skip
    results = compare(Config(()), tmp_path / "parts", lambda line: None) | {"networks": trained}
    docs = tmp_path / "docs.md"
    docs.write_text("\n".join(NETWORKS))
    write_report(results, tmp_path, docs)
    text = docs.read_text()
    assert "| ours | 0.5000 | 0.5000 | 0.5000 | 0.5000 | 0.500 | 0 |" in text
    assert "| Cooper, tuned | 0.5000 | 0.5000 | 0.5000 | 0.5000 | - | 1 (lr 0.01; of 7) |" in text
    assert "a &lt;norm&gt;" in (tmp_path / "index.html").read_text()
    assert (tmp_path / "docs-networks.svg").read_text() == (tmp_path / "figures" / "networks.svg").read_text()


def test_wrong_names_are_refused(tmp_path, capsys):
    assert cli.main(["peers", "--networks", "nonsense", "--out", str(tmp_path / "out")]) == 2
    assert "networks: there is no 'nonsense'; there are adult, flights, digits, norm" in capsys.readouterr().err
    (tmp_path / "docs.md").write_text("no marks")
    asked = ["peers", "--networks", "norm", "--write-docs", str(tmp_path / "docs.md"), "--out", str(tmp_path / "out")]
    assert cli.main(asked) == 2
    assert "networks: begin" in capsys.readouterr().err


@pytest.mark.torch
@pytest.mark.slow
def test_networks_as_a_user_types_it(tmp_path):
    assert cli.main(["peers", "--networks", "norm", "--seeds", "1", "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    rows = {row["rival"]: row for row in results["networks"]["rows"]}
    assert list(results["tasks"]) == []
    assert {name for name, row in rows.items() if row["status"] == "failed"} == set()
    # The constraint is on the weights alone, so that its limit is kept or not; without it they grow a hundredfold.
    assert rows["ours"]["violation"][0] < SLACK
    assert rows["unconstrained"]["violation"][0] > 100
