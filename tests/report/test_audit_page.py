"""The page of an audit: what is in it, and what it does in a browser that is offline."""

import re

import pytest

import browsing
from ergodrift.report.audit import audit_page, limit_lines

pytestmark = pytest.mark.x64("a page is the same in both precisions: once is enough")

ATTACK = "</script><script>document.title = 'broken'</script> {{style}} & <b>bold</b>"


def record(metric, group, middle, reason=""):
    ends = {"lower": None, "upper": None} if reason else {"lower": middle - 0.05, "upper": middle + 0.05}
    return {"town": group, "metric": metric, "estimate": middle, **ends, "rows": 1200.0, "effective_rows": 310.4,
            "reason": reason}  # fmt: skip


def limit(verdict, text="selection_rate_difference <= 0.1", **more):
    return {"limit_text": text, "verdict": verdict, "metric": "selection_rate", "estimate": 0.2, "lower": 0.1,
            "upper": None, "reason": "", "more_rows": 0, "of": "difference", "at_most": True, **more}  # fmt: skip


def made_up(*limits):
    metrics = ["selection_rate", "accuracy"]
    groups = ["Ulm", "Bonn", ATTACK, "Rome"]
    by_group = [
        record(m, g, 0.2 * k + 0.1, "one value" if g == "Rome" else "") for m in metrics for k, g in enumerate(groups)
    ]
    whole = [{key: value for key, value in record(m, "", 0.4).items() if key != "town"} for m in metrics]
    return {
        "settings": {"table": ATTACK, "target": "y", "prediction": "p", "sensitive": ["town"], "limit": []},
        "versions": {"ergodrift": "0.0", "python": "3"},
        "data": {"name": "log.csv", "rows": 4800, "said": [ATTACK], "groups": ["town"]},
        "audit": {"rows": 4800, "confidence": 0.95, "metrics": metrics, "by_group": by_group, "overall": whole,
                  "difference": whole, "ratio": whole, "warnings": [ATTACK]},
        "limits": list(limits),
    }  # fmt: skip


def text_of(html):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html[html.index("<body>") :]))


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ([], "No limit was asked about."),
        ([limit("satisfied")], "The limit is satisfied"),
        ([limit("satisfied"), limit("violated")], "1 of 2 limits is violated"),
        ([limit("satisfied"), limit("undecided")], "Whether the limits hold is undecided"),
    ],
)
def test_the_first_sentence_is_the_verdict(limits, said):
    text = text_of(audit_page(made_up(*limits)))
    assert "4,800 rows, 4 groups of town" in text
    assert said in text


def test_lines_for_the_terminal():
    (line,) = limit_lines([limit("undecided", reason="too short", more_rows=1500)])
    assert line == (
        "selection_rate_difference <= 0.1: undecided (selection_rate 0.2, interval 0.1 to none); too short; "
        "about 1,500 more rows would decide"
    )


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    file = tmp_path_factory.mktemp("audit") / "index.html"
    file.write_text(audit_page(made_up(limit("violated"), limit("undecided", more_rows=12))))
    return file.as_uri()


@pytest.fixture
def page(browser, address):
    yield from browsing.Page.opened(browser, address)


def test_a_browser_shows_it_at_any_width_and_in_the_dark(page):
    assert page.script("return document.title") == "p against y, in log.csv"
    assert page.count("figure svg") == 2
    assert page.count("b") == 0
    for width in (1200, 390):
        page.width(width)
        assert page.script("return document.documentElement.scrollWidth <= window.innerWidth")
    for scheme in ("light", "dark"):
        page.scheme(scheme)
        assert not [found for found in page.script(browsing.CONTRASTS.replace(", figure svg", "")) if found[1] < 4.5]
