"""The service of examples/: it follows a file that grows, is killed, goes on; and its page in a browser."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import browsing
import ergodrift as ed
from ergodrift._core import saved
from ergodrift.engine.learner import FORMAT
from ergodrift.engine.recipe import KNOWN

EXAMPLES = Path(__file__).parents[1] / "examples"
HEADER = "cold,calm,demand"


@pytest.fixture
def service(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("service")


def hours(count, seed=0, shift=0.0):
    """Lines of a CSV file."""
    rng, level, lines = np.random.default_rng(seed), np.zeros(3), []
    for _ in range(count):
        level = 0.9 * level + 0.4 * rng.normal(size=3)
        lines.append(f"{level[0]:.4f},{level[1]:.4f},{3 + shift + level @ [1.0, 0.5, 0.5]:.4f}")
    return lines


def new(service):
    return ed.Learner(ed.sdpp(), service.PROBLEM, np.zeros(3, np.float32))


def caught_up(service, learner, path):
    while True:
        lines, names, note = service.read_on(path, learner.note)
        if not lines:
            return learner
        service.learn(learner, lines, names, note)


def test_a_half_written_line_waits(service, tmp_path):
    path, text = tmp_path / "data.csv", "\n".join([HEADER, *hours(30)]) + "\n"
    whole = new(service)
    path.write_text(text)
    caught_up(service, whole, path)
    pieces = new(service)
    path.write_text("")
    for at in range(0, len(text), 37):
        with path.open("a") as file:
            file.write(text[at : at + 37])
        caught_up(service, pieces, path)
    assert pieces.samples_seen == whole.samples_seen == 30
    assert pieces.note["offset"] == len(text)
    np.testing.assert_array_equal(pieces.solution, whole.solution)


def test_json_lines_carriage_returns_and_other_columns_are_the_same_hours(service, tmp_path):
    plain = hours(30)
    rows = [dict(zip(HEADER.split(","), map(float, line.split(",")), strict=True)) for line in plain]
    odd = [f'"a, b",{row["demand"]}, {row["calm"]},{row["cold"]}' for row in rows]
    texts = {
        "plain.csv": "\n".join([HEADER, *plain, ""]),
        "more.csv": "\r\n".join(["\ufeffwhere, demand,calm,cold", *odd, ""]),
        "data.jsonl": "".join(json.dumps({"id": n, **row}) + "\n" for n, row in enumerate(rows)),
    }
    found = []
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text.encode())
        found.append(caught_up(service, new(service), tmp_path / name))
    for learner in found:
        assert learner.samples_seen == 30
        assert not learner.note.get("left_out")
        np.testing.assert_array_equal(learner.solution, found[0].solution)


def test_lines_without_the_numbers_are_left_out_and_counted(service, tmp_path, capsys):
    lines, bad = hours(30), ["1,2", "a,b,c", "nan,1,2", "1e300,1,2", "1,2,3,4", "", '{"cold": 1}']
    mixed = [*lines[:10], *bad, *lines[10:]]
    for name, content in {"good": lines, "mixed": mixed}.items():
        (tmp_path / name).write_text("\n".join([HEADER, *content, ""]))
    good, found = (caught_up(service, new(service), tmp_path / name) for name in ("good", "mixed"))
    assert found.samples_seen == 30
    assert found.note["left_out"] == 6  # an empty line is nothing at all
    assert capsys.readouterr().err.count("left out") == 6
    np.testing.assert_array_equal(found.solution, good.solution)


def test_a_file_that_was_cut_or_replaced_is_told(service, tmp_path):
    path, lines = tmp_path / "data.csv", hours(30)
    path.write_text("\n".join([HEADER, *lines, ""]))
    learner = caught_up(service, new(service), path)
    other = [*hours(60, seed=1)]
    for text in (HEADER, f"{HEADER}\n", "\n".join([HEADER, *lines[:20], ""]), "\n".join([HEADER, *other, ""])):
        path.write_text(text)
        if text == HEADER:  # the first line is not whole yet, so nothing can be said of the file
            assert service.read_on(path, learner.note)[0] == []
            continue
        with pytest.raises(SystemExit, match=r"does not hold what was learned from it.*cut, or another file"):
            service.read_on(path, learner.note)
    path.write_text("\n".join([HEADER, *lines, *other, ""]))
    assert caught_up(service, learner, path).samples_seen == 90


def test_other_files_are_told(service, tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("cold,calm\n1,2\n")
    with pytest.raises(SystemExit, match="has no column demand"):
        service.read_on(path, {})
    path.write_text(HEADER + "\n" + "x" * service.MOST)
    with pytest.raises(SystemExit, match="no end of a line within"):
        service.read_on(path, {})


def command(folder, name, *more):
    files = ["--follow", folder / "data.csv", "--state", folder / f"{name}.npz", "--page", folder / f"{name}.html"]
    return [sys.executable, EXAMPLES / "service.py", *files, "--every", "0", *more]


@pytest.mark.slow
def test_killed_at_random_moments_it_learns_every_hour_once(tmp_path):
    """The file grows by pieces of lines while the service is killed again and again; at the end it knows, bit for bit,
    what a service knows that read the file in peace."""
    rng = np.random.default_rng(0)
    text = ("\n".join([HEADER, *hours(15_000), *hours(3000, 1, shift=2.0)]) + "\n").encode()
    path = tmp_path / "data.csv"
    path.write_bytes(b"")
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    at, began, state = 0, [], tmp_path / "killed.npz"
    while at < len(text) or len(began) < 8:
        before = state.stat().st_mtime_ns if state.exists() else 0
        process = subprocess.Popen(
            command(tmp_path, "killed"), stdout=subprocess.PIPE, text=True, env=os.environ | cache
        )
        assert process.stdout is not None
        began.append(int(process.stdout.readline().split()[3].replace(",", "")))
        early, until = (
            len(began) % 3 == 0,
            time.monotonic() + rng.uniform(0.0, 2.0),
        )  # some die before they did anything
        while time.monotonic() < until:
            size = int(rng.integers(1, 1000))
            with path.open("ab") as file:
                file.write(text[at : at + size])
            at += size
            time.sleep(0.02)
            if not (early or (state.exists() and state.stat().st_mtime_ns > before)):
                until = time.monotonic() + rng.uniform(0.0, 1.0)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert path.read_bytes() == text
    assert began == sorted(began)
    assert len(set(began)) >= 4  # several of the lives have learned something
    for name in ("killed", "quiet"):
        subprocess.run(command(tmp_path, name, "--once"), check=True, env=os.environ | cache, capture_output=True)
    killed, quiet = (saved.read(tmp_path / f"{name}.npz", FORMAT, KNOWN) for name in ("killed", "quiet"))
    assert killed["samples_seen"] == quiet["samples_seen"] == 18_000
    assert killed["note"] == quiet["note"]
    assert quiet["note"]["offset"] == len(text)
    for one, other in zip(killed["packed"], quiet["packed"], strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(killed["watched"]["x"], quiet["watched"]["x"])
    pages = [(tmp_path / f"{name}.html").read_text() for name in ("killed", "quiet")]
    tables = [page.split("</h1>")[1].split(">Written<")[0] for page in pages]
    assert tables[0] == tables[1]  # certificate and drift as well
    assert ">18,000<" in tables[0]
    assert "yes: " in tables[0]


@pytest.mark.slow
def test_two_services_of_one_state(tmp_path):
    (tmp_path / "data.csv").write_text(HEADER + "\n")
    first = subprocess.Popen(command(tmp_path, "same"), stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    assert "goes on" in first.stdout.readline()
    second = subprocess.run(command(tmp_path, "same"), capture_output=True, text=True)
    first.kill()
    first.wait()
    first.stdout.close()
    assert second.returncode == 1
    assert "in use by another service" in second.stderr


# The page


@pytest.fixture
def page(service, browser, tmp_path):
    path, lines = tmp_path / "data.csv", [*hours(4000), "no numbers"]
    path.write_text("\n".join([HEADER, *lines, ""]))
    learner = caught_up(service, new(service), path)
    service.status.write(tmp_path / "status.html", learner)
    yield from browsing.Page.opened(browser, (tmp_path / "status.html").as_uri())


def test_the_page_says_where_things_stand(page, service, tmp_path):
    def row(name):
        return page.find(f"//tr[th='{name}']/td").text

    page.find = lambda xpath: page.driver.find_element("xpath", xpath)
    assert row("Hours learned from") == "4,000"
    assert row("Lines left out") == "1"
    assert row("Rule of now").startswith("r = ")
    assert row("Rule on trial").startswith("r = ")
    assert row("Has the law changed?") == "no sign of it"
    assert "missing in 2,000 hours on trial" in row("Does it keep the limit?")
    assert page.count("figure svg[role=img] polyline") == 2
    inside = "const b = document.querySelectorAll('svg')[1], f = b.getBoundingClientRect();"
    inside += "return [...b.children].every(c => { const r = c.getBoundingClientRect();"
    inside += (
        "return r.left >= f.left - 1 && r.right <= f.right + 1 && r.top >= f.top - 2 && r.bottom <= f.bottom + 2 })"
    )
    assert page.script(inside)  # nothing is drawn outside the picture
    with (tmp_path / "data.csv").open("a") as file:
        file.write("\n".join([*hours(200, 5), ""]))
    learner = caught_up(service, new(service), tmp_path / "data.csv")
    service.status.write(tmp_path / "status.html", learner)
    page.driver.refresh()
    assert row("Hours learned from") == "4,200"
    assert page.script("return document.querySelector('meta[http-equiv=refresh]').content") == "5"


def test_the_page_can_be_read_in_the_dark_and_on_a_telephone(page):
    for scheme in ("light", "dark"):
        page.scheme(scheme)
        assert not [(text, ratio) for text, ratio in page.script(browsing.CONTRASTS) if ratio < 4.5]
    page.width(360)
    assert page.script("return document.documentElement.scrollWidth") <= 360
