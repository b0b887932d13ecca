"""The page of a fitted table: what is in it, and what it does in a browser that is offline."""

import re

import pytest

import browsing
from ergodrift.report.fit import fit_page

pytestmark = pytest.mark.x64("a page is the same in both precisions: once is enough")

ATTACK = "</script><script>document.title = 'broken'</script> {{style}} & <b>bold</b>"


def certificate(verdicts=("satisfied", "undecided", "violated"), carriers=("UA", "B6", "EV", ATTACK)):
    """Differences between groups, two-sided, and a rate with a limit from above."""
    names = [f"rate: {a} - {b}" for a in carriers for b in carriers if a < b] + ["false positive rate"]
    n = len(names)
    middle = [0.02 * (k - 2) for k in range(n)]
    return {
        "satisfied": set(verdicts) <= {"satisfied"},
        "name": names,
        "limit": [0.05] * (n - 1) + [0.1],
        "two_sided": [True] * (n - 1) + [False],
        "estimate": middle,
        "lower": [None, *(value - 0.02 for value in middle[1:])],
        "upper": [None, *(value + 0.02 for value in middle[1:])],
        "verdict": [verdicts[k % len(verdicts)] for k in range(n)],
        "more_rows": [None] + [1200] * (n - 1),
        "reason": ["no rows of one of its groups"] + [""] * (n - 1),
        "loss": 0.4215,
        "loss_lower": 0.41,
        "loss_upper": 0.43,
        "confidence": 0.95,
        "num_rows": 81_836,
        "notes": [f"Held-out rows were looked at 3 times. {ATTACK}"],
    }


def made_up(**more):
    rows = [
        {"name": f"carrier = {ATTACK}" if k == 3 else f"column {k}", "coefficient": 3.0 / (k + 1) * (-1) ** k,
         "mean": 0.5, "std": 0.3, "effect": 0.9 / (k + 1) * (-1) ** k}
        for k in range(20)
    ]  # fmt: skip
    diagnosis = {
        "num_samples": 245_510, "tau_mix": 812.4, "tau_mix_interval": [650.0, None], "ess": 512.0, "factor": 21.9,
        "quantities": [{"name": "loss", "time": 480.0, "ess": 512.0}], "notes": ["read once"], "warnings": [ATTACK],
    }  # fmt: skip
    return {
        "settings": {"table": ATTACK, "target": "late", "loss": None, "constraint": ["a <= 0.05"],
                     "time": None, "sensitive": ["carrier"], "stream": False, "seed": 0},
        "versions": {"ergodrift": "0.0", "python": "3"},
        "data": {"name": "flights.csv", "loss": "logistic", "learned": 245_510, "said": [f"left out {ATTACK}"],
                 "columns": [["carrier", "category, 16 values"], ["", f"left out, {ATTACK}"]]},
        "certificate": certificate(),
        "diagnosis": diagnosis,
        "tradeoff": {"limits": [0.01, 0.02, 0.05, 0.1], "losses": [0.45, 0.44, 0.42, 0.41], "at": [0.05, 0.42],
                     "xlabel": "demographic parity", "ylabel": "mean loss", "said": "Said.", "caption": ATTACK},
        "coefficients": [{"of": "the log-odds of late", "unit": "log-odds", "middle": -1.2, "rows": rows}],
        **more,
    }  # fmt: skip


def text_of(html):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html[html.index("<body>") :]))


def test_the_page_says_what_was_found():
    text = text_of(fit_page(made_up()))
    assert "learned from 245,510 rows" in text
    assert "2 of 7 quantities are violated" in text
    assert "245,510 rows are worth about 512 independent ones" in text
    assert "about 1,200 more rows would decide" in text
    assert "no rows of one of its groups" in text
    assert "{{" not in text.replace("{{style}}", "")


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        (["satisfied"], "All constraints are certified to hold on the last 81,836 rows"),
        (["satisfied", "undecided"], "Whether the constraints hold is undecided for 3 of 7"),
        (["violated", *["satisfied"] * 6], "1 of 7 quantities is violated"),
    ],
)
def test_the_first_sentence_is_the_verdict(verdicts, said):
    assert said in text_of(fit_page(made_up(certificate=certificate(verdicts))))


def test_without_constraints_a_sweep_or_a_diagnosis_there_is_a_page_too():
    empty = {key: [] if isinstance(value, list) else value for key, value in certificate().items()}
    page = fit_page(made_up(certificate=empty, tradeoff=None, diagnosis={"why": "series too short"}))
    assert "without constraints" in page
    assert "series too short" in page


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    file = tmp_path_factory.mktemp("fit") / "index.html"
    file.write_text(fit_page(made_up()))
    return file.as_uri()


@pytest.fixture
def page(browser, address):
    yield from browsing.Page.opened(browser, address)


def test_a_browser_shows_it_at_any_width(page):
    assert page.script("return document.title") == "late, from flights.csv"
    assert page.count("figure svg") == 4
    assert page.count("b") == 0
    for width in (1200, 390, 320):
        page.width(width)
        assert page.script("return document.documentElement.scrollWidth <= window.innerWidth")
        small = page.script(
            "return [...document.querySelectorAll('figure svg text')].map((t) => t.getBoundingClientRect().height)"
        )
        assert min(small) > 7
        outside = page.script(OUTSIDE)
        assert outside == []


OUTSIDE = """
const found = [];
for (const svg of document.querySelectorAll("figure svg")) {
  const box = svg.getBoundingClientRect();
  for (const text of svg.querySelectorAll("text")) {
    const own = text.getBoundingClientRect();
    if (own.left < box.left - 1 || own.right > box.right + 1) found.push(text.textContent);
  }
}
return found;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read(page, scheme):
    page.scheme(scheme)
    low = [found for found in page.script(browsing.CONTRASTS.replace(", figure svg", "")) if found[1] < 4.5]
    assert not low
