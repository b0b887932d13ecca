"""The page of the benchmark: what is in it, and what a browser that is offline makes of it."""

import pytest

import browsing
from ergodrift.report import peers
from ergodrift.report.peers import BEGIN, END, write_report

pytestmark = pytest.mark.x64("a page is the same in both precisions: once is enough")

ATTACK = "</script><script>document.title = 'broken'</script> & <b>bold</b>"
ABOUT = {
    "auto": ("ours", False), "DPP-t": ("ours", False), "Sinha-Vaze": ("research", False),
    "descent-ascent, tuned": ("baseline", True), "Cooper, default": ("library", False),
    "fairlearn": ("library", False), "absent": ("library", False), "broken": ("library", False),
    "shuffled: auto": ("control", False), "shuffled: descent-ascent, tuned": ("control", True),
}  # fmt: skip
GAPS = {
    "auto": 0.02, "DPP-t": 0.4, "Sinha-Vaze": 0.2, "descent-ascent, tuned": 0.01, "Cooper, default": 0.1,
    "shuffled: auto": 0.001, "shuffled: descent-ascent, tuned": 0.002,
}  # fmt: skip


def row(task, rival):
    if rival == "absent":
        return {"task": task, "rival": rival, "status": "missing", "why": "not installed: torch"}
    if rival == "broken":
        return {"task": task, "rival": rival, "status": "failed", "why": ATTACK}
    later = {"violation": 0.01, "lower": None if rival == "auto" else -0.01, "upper": 0.03, "verdict": "undecided"}
    found = {
        "task": task, "rival": rival, "status": "done", "why": "", "loss": [0.6, 0.7], "violation": [0.01, 0.03],
        "seconds": 0.25, "setting": None, "note": "", "later": later,
    }  # fmt: skip
    if rival not in GAPS:
        return {**found, "later": {}}
    gap = GAPS[rival]
    curve = {"samples": [10, 100, 1000], "gap": [gap * 4, gap * 2, gap]}
    return {**found, "gap": [gap * 0.9, gap * 1.1], "merit": [gap, gap], "curve": curve}


def made_up():
    task = {
        "about": "What is minimised, under what.", "data": "package (licence)", "num_samples": 1000, "order": "time",
        "dimension": 5, "constraints": 2, "x0": {"gap": 0.5, "merit": 0.5, "loss": 0.69, "violation": -0.1},
        "optimum": {"solver": "SLSQP", "gap": 0.0, "merit": 0.0, "loss": 0.6, "violation": 0.0},
    }  # fmt: skip
    known = {"tau_mix": 12.5, "interval": [10.0, 15.0], "integrated_time": 20.0, "ess": 50.0}
    return {
        "schema": "ergodrift peers v1",
        "config": {"tasks": ["one", "two"], "seeds": 2, "quick": True, "rivals": []},
        "versions": {"ergodrift": "0.0", "python": "3"},
        "rivals": {
            name: {"family": family, "tuned": tuned, "settings": 1, "about": f"`{name}`: what it is."}
            for name, (family, tuned) in ABOUT.items()
        },
        "tasks": {
            "one": {**task, "title": "Flights, late or not", "dependence": known},
            "two": {**task, "title": ATTACK, "dependence": {"note": "series too short"}},
        },
        "rows": [row(name, rival) for name in ("one", "two") for rival in ABOUT],
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("peers")
    (out / "docs.md").write_text(f"# Peers\n\n{BEGIN}\nlast time\n{END}\n\nafter\n")
    write_report(made_up(), out, out / "docs.md")
    return out


def test_the_page_names_who_won_who_is_missing_and_who_failed(folder):
    page = (folder / "index.html").read_text()
    assert "absent is missing (not installed: torch; pip install -r requirements-peers.txt)" in page
    assert "broken failed on one" in page
    assert "<code>auto</code> has the smallest gap of all on 0 of 2 tasks." in page
    assert "at most 1.5 times the gap of the best competitor, tuned in hindsight, on 0 of 2, and at most 3" in page
    assert "<script>document.title" not in page
    assert "{{" not in page


def test_docs_have_a_picture_before_a_table(folder):
    text = (folder / "docs.md").read_text()
    assert text.startswith("# Peers")
    assert text.endswith(f"{END}\n\nafter\n")
    assert "last time" not in text
    assert "<b>" not in text
    assert text.index("![") < text.index("| Task |")
    assert "| Flights, late or not | 1,000 | 12.5 | 50 | 5 | 20 | 0.25 | - |" in text
    assert (folder / "docs.svg").read_text().lstrip().startswith("<?xml")


def test_results_of_nobody_make_a_page_too(tmp_path):
    empty = {**made_up(), "rows": []}
    write_report(empty, tmp_path)
    assert "on 0 of 0 tasks" in (tmp_path / "index.html").read_text()


@pytest.fixture
def page(browser, folder):
    yield from browsing.Page.opened(browser, (folder / "index.html").as_uri())


def test_a_browser_shows_it(page):
    assert page.script("return document.title") == "Constrained optimisation on dependent data: who won where"
    assert page.count("figure svg") == 2
    assert page.count("details") == 2
    page.press("details summary", "\ue007")
    assert page.find("details").get_attribute("open") is not None
    assert page.count("details[open] .mine") == 1
    for width in (1200, 390):
        page.width(width)
        assert page.script("return document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read(page, scheme):
    page.scheme(scheme)
    low = [found for found in page.script(browsing.CONTRASTS) if found[1] < 4.5]
    assert not low


def test_marks_must_be_there(tmp_path):
    (tmp_path / "docs.md").write_text("no marks")
    with pytest.raises(ValueError, match="peers: begin"):
        peers.write_report(made_up(), tmp_path, tmp_path / "docs.md")
