"""The report page: what is in it, and what it does in a browser that is offline."""

import dataclasses
import json
import re
from importlib.resources import files

import numpy as np
import pytest

import browsing
from ergodrift.experiments.config import Config
from ergodrift.experiments.results import AlgorithmResults, JudgedResults
from ergodrift.report.page import page
from ergodrift.theory import theorem3

pytestmark = pytest.mark.x64("a page is the same in both precisions: once is enough")

NAMES = ("PD", "PD2", "DPP-T", "DPP-t", "EDPP-T", "EDPP-t", "MDPP", "ADPP")
POINT_METRICS = ("gap", "infeasibility_0", "infeasibility_1", "lagrangian_gap")
SUMS = ("regret", "violation_0", "violation_1")
SAMPLES = [10, 50, 200, 1000, 5000, 10_000, 20_000, 30_000, 40_000]
SEEDS = 3
ATTACK = "</script><script>document.title = 'broken'</script> {{claims}} & <b>bold</b>"
FIGURE = '<?xml version="1.0"?>\n<!DOCTYPE svg>\n<svg viewBox="0 0 9 9"><circle cx="4" cy="4" r="3"/></svg>'


def made_up(seeds=SEEDS, samples=SAMPLES) -> JudgedResults:
    """Results of the right shape: Lagrangian gaps are positive, the least is EDPP-t's; all else has both signs."""
    rng = np.random.default_rng(0)
    algorithms: dict[str, AlgorithmResults] = {}
    for place, name in enumerate(NAMES):
        curves = {}
        for metric in (*POINT_METRICS, *(f"{metric}_last" for metric in POINT_METRICS), *SUMS):
            values = rng.normal(size=(seeds, len(samples))) * (1000 if metric in SUMS else 0.3)
            if metric.startswith("lagrangian"):
                values = 0.001 + abs(values) + (name != "EDPP-t") * place
            curves[metric] = values.round(6)
        algorithms[name] = {
            "parameters": {"beta": 0.5},
            "seconds": 1.5,
            "rounds": [samples[-1]] * seeds,
            "samples_used": [samples[-1]] * seeds,
            "solution": [[0.25, 0.5, 0.0]] * seeds,
            "curves": {metric: values.tolist() for metric, values in curves.items()},
            "final": {metric: values[:, -1].tolist() for metric, values in curves.items()},
            "summary": {metric: summary(values) for metric, values in curves.items()},
        }
    config = Config(seeds=seeds, samples=samples[-1], records=len(samples))
    return {
        "schema": "ergodrift reproduce v1",
        "config": {**dataclasses.asdict(config), "tau_mix": config.tau_mix},
        "versions": {"ergodrift": "0.0", "python": "3"},
        "chain": {"stationary": [1 / 3] * 3, "mixing_time": 327},
        "reference": {
            "x": [0.25, 0.5, 0.0],
            "value": 0.125,
            "constraints": [0.0, -1.0],
            "multipliers": [0.25, 0.0],
            "kkt_residual": 1e-9,
        },
        "samples": list(samples),
        "path_seeds": list(range(seeds)),
        "algorithms": algorithms,
        "claims": [
            {"claim": "EDPP-t wins", "measured": "1 against 2", "verdict": "holds", "wins": 3, "seeds": 3},
            {"claim": "PD wins", "measured": "2 against 1", "verdict": "does not hold", "wins": 0, "seeds": 3},
            {"claim": "MDPP wins", "measured": ATTACK, "verdict": "depends", "wins": 1, "seeds": 3},
            {"claim": ATTACK, "measured": "as it happens", "verdict": "depends", "wins": 2, "seeds": 3},
        ],
        "table": [
            {"algorithm": name, "paper": None if name == "ADPP" else -0.0904, "mean": 0.1, "std": 0.02}
            for name in NAMES
        ],
    }


def summary(values):
    low, high = np.quantile(values, [0.1, 0.9], axis=0)
    parts = {"mean": values.mean(axis=0), "std": values.std(axis=0, ddof=1), "low": low, "high": high}
    return {part: numbers.tolist() for part, numbers in parts.items()}


RESULTS = made_up()


def embedded(html):
    found = re.search(r'<script type="application/json" id="results">(.*?)</script>', html, re.DOTALL)
    assert found
    return json.loads(found[1])


# Without a browser.


def test_the_embedded_json_holds_the_summaries():
    data = embedded(page(RESULTS, {}))
    assert data["samples"] == SAMPLES
    for name in NAMES:
        for metric, parts in RESULTS["algorithms"][name]["summary"].items():
            assert data["algorithms"][name][metric] == {part: parts[part] for part in ("mean", "low", "high")}


def test_rates_pass_through_where_edpp_ends_and_leave_the_last_point_alone():
    results = made_up()
    rates = embedded(page(results, {}))["theory"]
    assert set(rates) == {*POINT_METRICS, *SUMS}
    tau = results["config"]["tau_mix"]
    assert sum(count < tau for count in SAMPLES) == 3
    for metric in ("lagrangian_gap", "infeasibility_0", "violation_1", "regret"):
        rate = theorem3()["gap" if metric == "lagrangian_gap" else metric.split("_")[0]]
        end = abs(results["algorithms"]["EDPP-t"]["summary"][metric]["mean"][-1])
        by_hand = [end * rate(count, tau) / rate(SAMPLES[-1], tau) for count in SAMPLES[3:]]
        assert rates[metric]["values"][:3] == [None] * 3
        assert rates[metric]["values"][3:] == pytest.approx(by_hand)
    results["config"]["beta"] = 1 / 3
    assert embedded(page(results, {}))["theory"]["regret"]["theorem"] == "theorem 1"
    results["algorithms"]["EDPP-t"]["summary"]["gap"]["mean"][-1] = float("nan")
    assert "gap" not in embedded(page(results, {}))["theory"]
    del results["algorithms"]["EDPP-t"]
    assert embedded(page(results, {}))["theory"] == {}


def test_twenty_seeds_stay_under_a_megabyte():
    samples = np.unique(np.geomspace(10, 101_562, 121).round().astype(int)).tolist()
    results = made_up(20, samples)
    for found in results["algorithms"].values():
        for parts in found["summary"].values():
            parts.update({part: [float(f"{value:.7g}") for value in parts[part]] for part in parts})
    assert len(page(results, {"Data": FIGURE}).encode()) < 1_000_000


def test_the_summary_counts_claims_and_finds_the_best():
    text = re.sub(r"<[^>]+>|\s+", " ", page(RESULTS, {}))
    text = re.sub(r" +", " ", text)
    assert "All 8 algorithms saw the same samples: 3 paths of 40,000 samples each" in text
    assert "At the end EDPP-t had the smallest mean Lagrangian gap" in text
    assert "Of the 4 claims of the paper that can be measured, 1 hold , 1 do not , and 2 depend on the seed" in text


def test_values_that_are_not_finite_become_breaks():
    results = made_up()
    results["algorithms"]["PD"]["summary"]["gap"]["mean"][-1] = float("nan")
    results["algorithms"]["PD2"]["summary"]["lagrangian_gap"]["mean"][-1] = float("nan")
    html = page(results, {})
    assert embedded(html)["algorithms"]["PD"]["gap"]["mean"][-1] is None
    assert "not finite" in html
    assert "<strong>EDPP-t</strong> had the smallest" in html


def test_figures_are_set_in_without_their_prologue():
    html = page(RESULTS, {"States & labels": FIGURE})
    assert '<div role="img" aria-label="States &amp; labels"><svg viewBox="0 0 9 9">' in html
    assert "<?xml" not in html
    assert html.count("<!DOCTYPE") == 1


def test_every_field_of_the_configuration_is_explained():
    template = files("ergodrift.report").joinpath("page.html").read_text(encoding="utf-8")
    missing = [field.name for field in dataclasses.fields(Config) if f"{{{{config.{field.name}}}}}" not in template]
    assert not missing


# In a browser.


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page(RESULTS, {"The rows": FIGURE}), encoding="utf-8")
    return path.as_uri()


class Report(browsing.Page):
    """The open page in the words of its reader."""

    def pressed(self, selector):
        return self.find(selector).get_attribute("aria-pressed")

    def choose(self, metric, point=None):
        self.find(f"#metric option[value={metric}]").click()
        if point is not None:
            self.script("arguments[0].click()", self.find(f"[name=point][value={point}]"))

    def readout(self):
        """Name -> (mean as held, text as shown)."""
        rows = self.script(
            "return [...document.querySelectorAll('#readout tbody tr')].map(({ cells }) => "
            "[cells[0].innerText.trim(), cells[1].dataset.value, cells[1].innerText])"
        )
        return {name: (float(value), text) for name, value, text in rows}

    def heights(self, name):
        """The y pixels of a curve."""
        path = self.find(f'g[data-algorithm="{name}"] .line').get_attribute("d") or ""
        return [float(pair.split(" ")[1]) for pair in re.split("[ML]", path)[1:]]


@pytest.fixture
def report(browser, address):
    yield from Report.opened(browser, address)


def as_shown(text):
    return float(text.replace("\N{MINUS SIGN}", "-").replace(",", ""))


def final_means(metric):
    return {name: RESULTS["algorithms"][name]["summary"][metric]["mean"][-1] for name in NAMES}


def test_it_opens_offline_and_asks_the_network_for_nothing(report):
    fetched = report.script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert not [name for name in fetched if name.startswith("http")]
    assert report.script("return performance.getEntriesByType('navigation')[0].name").startswith("file://")
    assert report.count("g[data-algorithm][data-metric=gap]") == len(NAMES)


def test_text_of_the_results_stays_text(report):
    assert report.driver.title != "broken"
    shown = report.script("return document.querySelector('#claims').textContent")
    assert shown.count(ATTACK) == 2
    assert report.count("#claims b") == 0


def test_verdicts_are_told_by_words_and_signs(report):
    badges = [badge.text for badge in report.driver.find_elements("css selector", ".badge")]
    assert badges == ["✓ holds", "✕ does not hold", "◐ depends", "◐ depends"]


@pytest.mark.parametrize("how", ["mouse", "space", "enter"])
def test_a_toggle_hides_and_shows_its_curve(report, how):
    toggle, curve = '[data-toggle="DPP-t"]', 'g[data-algorithm="DPP-t"]'

    def flip():
        if how == "mouse":
            report.find(toggle).click()
        else:
            report.press(toggle, {"space": " ", "enter": "\n"}[how])

    assert (report.pressed(toggle), report.count(curve)) == ("true", 1)
    flip()
    assert (report.pressed(toggle), report.count(curve)) == ("false", 0)
    assert "DPP-t" not in report.readout()
    assert report.count('g[data-algorithm="DPP-T"]') == 1  # the names differ in case alone
    flip()
    assert (report.pressed(toggle), report.count(curve)) == ("true", 1)


def test_hiding_every_curve_leaves_a_chart_that_says_so(report):
    for name in NAMES:
        report.find(f'[data-toggle="{name}"]').click()
    assert report.count("g[data-algorithm]") == 0
    assert report.count("path.rate") == 0
    assert "No algorithm is chosen." in report.find("#chart").text


VIEWS = [
    *((metric, point) for metric in POINT_METRICS for point in ("mean", "last")),
    *((metric, None) for metric in SUMS),
]


@pytest.mark.parametrize(("metric", "point"), VIEWS)
def test_each_metric_shows_the_means_of_the_results(report, metric, point):
    report.choose(metric, point)
    key = metric + ("_last" if point == "last" else "")
    assert report.count(f'g[data-metric="{key}"]') == len(NAMES)
    assert report.script("return document.querySelector('[name=point]').disabled") == (point is None)
    held, expected = report.readout(), final_means(key)
    assert {name: value for name, (value, _) in held.items()} == expected
    for name, (_, text) in held.items():
        assert as_shown(text) == pytest.approx(expected[name], rel=0.01, abs=1e-4)
    # The ends of the curves stand in the right proportion: linear in the means. Heights are in pixels of a chart some
    # hundreds high, and the page rounds coordinates to a tenth: 0.2 is two such roundings.
    means, ends = np.array([expected[name] for name in NAMES]), np.array([report.heights(name)[-1] for name in NAMES])
    slope, intercept = np.polyfit(means, ends, 1)
    assert slope < 0
    np.testing.assert_allclose(ends, slope * means + intercept, atol=0.2)


def test_the_zero_line_is_where_zero_is(report):
    """With the heights of two means, which are known, the place of zero follows."""
    for metric in ("gap", "infeasibility_0", "regret"):
        report.choose(metric)
        means = final_means(metric)
        (a, b), (p, q) = (means["PD"], means["PD2"]), (report.heights("PD")[-1], report.heights("PD2")[-1])
        zero = float(report.find(".zero").get_attribute("y1") or "nan")
        assert zero == pytest.approx(p - a * (q - p) / (b - a), abs=0.5)


def test_bands_come_and_go(report):
    assert report.count("path.band") == 0
    report.find("#bands").click()
    assert report.pressed("#bands") == "true"
    assert report.count("path.band") == len(NAMES)
    assert all(band.get_attribute("d") for band in report.driver.find_elements("css selector", "path.band"))
    report.press("#bands", " ")
    assert report.count("path.band") == 0


def test_log_axes(report):
    report.choose("lagrangian_gap")
    xs = "return [...arguments[0].getAttribute('d').matchAll(/[ML]([\\d.]+)/g)].map((match) => Number(match[1]))"
    line = 'g[data-algorithm="PD"] .line'
    before = report.heights("PD")
    report.find("#log-x").click()
    report.find("#log-y").click()
    places = np.array(report.script(xs, report.find(line)))
    slopes = np.diff(places) / np.diff(np.log(SAMPLES))
    np.testing.assert_allclose(slopes, slopes.mean(), rtol=0.02)
    means = np.log(RESULTS["algorithms"]["PD"]["summary"]["lagrangian_gap"]["mean"])
    slope, intercept = np.polyfit(means, report.heights("PD"), 1)
    # As above: pixels, of which the page keeps a tenth.
    np.testing.assert_allclose(report.heights("PD"), slope * means + intercept, atol=0.2)
    assert report.count(".zero") == 0
    report.find("#log-y").click()
    report.find("#log-x").click()
    assert report.heights("PD") == before


def test_a_log_axis_of_signed_values_keeps_zero_and_says_how(report):
    report.find("#log-y").click()
    assert "logarithmic in both directions" in report.find("#about").text
    assert report.count(".zero") == 1
    heights = report.heights("PD")
    means = np.array(RESULTS["algorithms"]["PD"]["summary"]["gap"]["mean"])
    assert np.isfinite(heights).all()
    assert (np.argsort(heights) == np.argsort(-means)).all()


def test_the_rate_can_be_seen_hidden_and_read(report):
    from selenium.webdriver import Keys

    rates = embedded(page(RESULTS, {}))["theory"]
    report.choose("lagrangian_gap")
    assert report.find("#theory").text == "theorem 3: rate only"
    formula = str(theorem3()["gap"]).replace("-", "\N{MINUS SIGN}")
    assert f"the rate of theorem 3, {formula}, through the size that EDPP-t ends with" in report.find("#about").text
    foot = "return [...document.querySelectorAll('#readout tfoot td')].map((cell) => cell.innerText)"
    assert as_shown(report.script(foot)[0]) == pytest.approx(rates["lagrangian_gap"]["values"][-1], rel=0.01, abs=1e-4)
    report.press("#chart", Keys.ARROW_LEFT)
    assert as_shown(report.script(foot)[0]) == pytest.approx(rates["lagrangian_gap"]["values"][-2], rel=0.01, abs=1e-4)
    assert report.count("#crosshair .rate-dot") == 1
    assert "theorem 3: rate only " in (report.find("#chart").get_attribute("aria-valuetext") or "")
    report.press("#chart", Keys.HOME)
    assert report.script(foot)[0] == "none yet"
    assert report.count("#crosshair .rate-dot") == 0
    before = report.heights("PD")
    report.find("#theory").click()
    assert (report.pressed("#theory"), report.count("path.rate")) == ("false", 0)
    assert report.script(foot) == []
    assert report.heights("PD") == before  # the scale is made for the curves
    report.press("#theory", " ")
    assert (report.pressed("#theory"), report.count("path.rate")) == ("true", 1)


@pytest.mark.parametrize("metric", [*POINT_METRICS, *SUMS])
def test_the_rate_lies_on_the_axes_of_the_curves_and_ends_on_edpp(report, metric):
    """On any axes: it ends at the size of EDPP-t's end, and on log axes its last part has the slope of the rate."""
    values = embedded(page(RESULTS, {}))["theory"][metric]["values"]
    corner = r"return [...document.querySelector('path.rate').getAttribute('d').matchAll(/[ML]([-\d.]+) ([-\d.]+)/g)]"
    corner += ".map((match) => [Number(match[1]), Number(match[2])])"
    scale = "return arguments[0].map((value) => view.y.at(value))"
    report.choose(metric)
    for log in (False, True):
        if log:
            report.find("#log-x").click()
            report.find("#log-y").click()
        drawn = np.array(report.script(corner))
        assert len(drawn) == len(values) - 3  # a mixing time is 333 samples here
        np.testing.assert_allclose(drawn[:, 1], report.script(scale, values[3:]), atol=0.06)  # a tenth is kept
        end = RESULTS["algorithms"]["EDPP-t"]["summary"][metric]["mean"][-1]
        assert drawn[-1, 1] == pytest.approx(report.script(scale, [abs(end)])[0], abs=0.06)
    if metric == "lagrangian_gap":  # all positive, so both axes are logarithms
        per_log = np.array(report.script("return [view.x.at(1000) - view.x.at(100), view.y.at(100) - view.y.at(1000)]"))
        (x0, y0), (x1, y1) = drawn[-2:]
        slope = -(y1 - y0) / per_log[1] / ((x1 - x0) / per_log[0])
        expected = np.log(values[-1] / values[-2]) / np.log(SAMPLES[-1] / SAMPLES[-2])
        assert slope == pytest.approx(expected, abs=0.02)


def test_the_last_point_has_no_rate(report):
    report.choose("gap", "last")
    assert report.find("#theory").get_attribute("disabled") is not None
    assert report.count("path.rate") == 0
    assert "about the mean point, not the last" in report.find("#about").text
    report.choose("gap", "mean")
    assert report.count("path.rate") == 1


def test_the_enlarged_part(report):
    report.find("#zoom").click()
    shown = report.script("return view.records.map((k) => SAMPLES[k])")
    assert shown == [5000, 10_000, 20_000, 30_000]
    assert "30,000 samples" in report.find("#readout caption").text


def test_the_crosshair_follows_the_mouse(report):
    from selenium.webdriver import ActionChains

    report.script("document.querySelector('#chart').scrollIntoView({ block: 'center' })")
    ActionChains(report.driver).move_to_element(report.find("#chart")).perform()
    middle = report.script("return record")
    assert 0 < middle < len(SAMPLES) - 1
    assert report.count("#crosshair .crosshair") == 1
    assert report.count("#crosshair .dot") == len(NAMES)
    assert f"{SAMPLES[middle]:,} samples" in report.find("#readout caption").text
    expected = {name: RESULTS["algorithms"][name]["summary"]["gap"]["mean"][middle] for name in NAMES}
    assert {name: value for name, (value, _) in report.readout().items()} == expected
    ActionChains(report.driver).move_to_element(report.find("#metric")).perform()
    assert report.count("#crosshair .crosshair") == 0


def test_the_crosshair_follows_the_keys(report):
    from selenium.webdriver import Keys

    report.press("#chart", Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    chart = report.find("#chart")
    assert chart.get_attribute("aria-valuenow") == str(len(SAMPLES) - 3)
    spoken = chart.get_attribute("aria-valuetext") or ""
    assert "20,000 samples" in spoken
    assert all(f"{name} " in spoken for name in NAMES)
    assert report.count("#crosshair .dot") == len(NAMES)
    report.press("#chart", Keys.HOME)
    assert "at 10 samples" in report.find("#readout caption").text
    report.press("#chart", Keys.ESCAPE)
    assert report.count("#crosshair .crosshair") == 0


def test_every_control_is_reached_by_tab_and_shows_its_focus(report):
    from selenium.webdriver import Keys

    controls = {"metric", "mean", "bands", "log-x", "log-y", "zoom", "theory", "chart"}
    wanted = controls | {f"toggle:{name}" for name in NAMES}
    seen, outlined = set(), []
    report.script("document.querySelector('#curves').scrollIntoView()")
    report.press("#finals .frame:last-child", Keys.TAB)
    for _ in wanted:
        name, outline = report.script(
            "const now = document.activeElement; const shown = now.type === 'radio' ? now.parentElement : now;"
            "return [now.dataset.toggle ? 'toggle:' + now.dataset.toggle : now.type === 'radio' ? now.value : now.id,"
            "getComputedStyle(shown).outlineStyle]"
        )
        seen.add(name)
        outlined.append(outline)
        report.driver.switch_to.active_element.send_keys(Keys.TAB)
    assert seen == wanted
    assert set(outlined) == {"solid"}


def test_a_phone_scrolls_no_page_sideways(report):
    report.width(360)
    for metric in ("gap", "regret"):
        report.choose(metric)
        assert report.script("return innerWidth") == 360
        assert report.script("return document.documentElement.scrollWidth") <= 360
        assert report.script("return document.querySelector('#chart svg').getBoundingClientRect().right") <= 360
        assert report.script("return view.width") < 360  # drawn anew for the width, not shrunk


def test_dark_and_light_differ_and_both_can_be_read(report):
    colours = {}
    for scheme in ("light", "dark"):
        report.scheme(scheme)
        colours[scheme] = [report.find("body").value_of_css_property(name) for name in ("background-color", "color")]
        poor = [(text, ratio) for text, ratio in report.script(browsing.CONTRASTS) if ratio < 4.5]
        assert not poor
    assert colours["light"][0] != colours["dark"][0]
    assert colours["light"][1] != colours["dark"][1]


def test_a_curve_that_diverged_is_broken_off(report, tmp_path):
    results = made_up()
    for part in ("mean", "low", "high"):
        results["algorithms"]["PD"]["summary"]["gap"][part][-2:] = [float("inf"), float("nan")]
    path = tmp_path / "diverged.html"
    path.write_text(page(results, {}), encoding="utf-8")
    report.driver.get(path.as_uri())
    for button in ("#bands", "#log-y"):
        report.find(button).click()
    assert len(report.heights("PD")) == len(SAMPLES) - 2
    assert "not finite" in report.find("#readout").text


def test_colours_follow_the_algorithm(report):
    colour = "return getComputedStyle(document.querySelector(arguments[0])).stroke"
    for where in ('[data-key="MDPP"] .swatch path', '[data-toggle="MDPP"] .swatch path', 'g[data-algorithm="MDPP"]'):
        assert report.script(colour, where) == "rgb(0, 158, 115)"
    dashes = "return [...document.querySelectorAll('.line')].map((line) => getComputedStyle(line).strokeDasharray)"
    assert len(set(report.script(dashes))) == len(NAMES)


def test_headings_and_tables_are_marked_as_such(report):
    assert report.count("h1") == 1
    assert report.script("return document.documentElement.lang") == "en"
    assert report.count("th:not([scope])") == 0
    assert report.count("table:not(:has(caption))") == 0
