"""The page of a walk: what is in it, and what it does in a browser that is offline."""

import json
import re
import types
from typing import Any, cast

import numpy as np
import pytest

import browsing
import ergodrift as ed
from ergodrift.distributed import Walk
from ergodrift.experiments.graphs import GRAPHS, network
from ergodrift.report.network import describe, layout, network_page

pytestmark = pytest.mark.x64("a page is the same in both precisions: once is enough")

ATTACK = "</script><script>document.title = 'broken'</script> {{count}} & <b>bold</b>"


def made_up(agents=8, tokens=4, faults=True):
    """A walk of the right shape on a ring: agent 1 did not answer at times, agent 2 was set aside."""
    chain = ed.MarkovChain.from_graph(network("ring", agents)[0])
    names = tuple(f"agent {k}" for k in range(agents))
    visits, unanswered = 1000 + 10 * np.arange(agents), np.zeros(agents, int)
    if faults:
        visits[2], unanswered[1], unanswered[2] = 250, 17, 40
    fields = {
        "result": types.SimpleNamespace(name="EDPP-t", seeds=np.arange(tokens)),
        "agents": names,
        "visits": visits,
        "held": np.array([int(unanswered.sum())] + [0] * (tokens - 1)),
        "unanswered": unanswered,
        "set_aside": {"agent 2": ATTACK} if faults else {},
        "messages": 2 * visits,
        "bytes": 160 * visits[::-1],
        "hops": 2000,
        "local_rounds": 1,
        "seconds": 9.1,
        "rate": 440.0,
        "restarts": np.arange(agents),
        "late": 3,
        "epsilon": {"agent 3": 1.25},
        "components": 1,
        "chain": chain,
    }
    return cast(Walk, types.SimpleNamespace(**fields))


def results(walk: Any = None, **more):
    return {"walk": describe(walk or made_up()), "versions": {"ergodrift": "0.0", "python": "3"}, **more}


def embedded(html):
    found = re.search(r'<script type="application/json" id="results">(.*?)</script>', html, re.DOTALL)
    assert found
    return json.loads(found[1])


# Without a browser.


def test_what_is_described_is_the_walk():
    walk = made_up()
    found = describe(walk)
    assert json.loads(json.dumps(found)) == found
    assert [agent["visits"] for agent in found["agents"]] == walk.visits.tolist()
    assert sum(agent["expected"] for agent in found["agents"]) == pytest.approx(walk.visits.sum() + 57)
    assert found["agents"][2]["reason"] == ATTACK
    assert sorted(map(tuple, found["edges"])) == [(0, 1), (0, 7), *((k, k + 1) for k in range(1, 7))]


def test_the_page_says_how_the_walk_went():
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", network_page(results())))
    assert "4 tokens of EDPP-t made 2,000 hops each, 1 round per visit, 440 hops per second." in text
    assert "57 hops of a token held its place, without an answer; 1 agent set aside" in text
    assert "28 restarts, 3 late answers discarded" in text
    assert "x and its feedback" in text
    calm = network_page(results(made_up(faults=False)))
    assert "No hop was held; no agent was set aside" in calm
    assert "Nothing was judged" in calm


def test_records_and_settings_are_shown_where_there_are_such():
    html = network_page(results(records=[{"samples": 2000, "Lagrangian gap": 0.25}], config={"local_rounds": 7}))
    assert "<td>0.2500</td>" in html
    assert '<th scope="row">local rounds</th><td>7</td>' in html


def test_a_layout_tells_agents_apart_and_keeps_neighbours_near():
    for name in GRAPHS:
        adjacency, _ = network(name, 12)
        places = layout(adjacency)
        apart = np.linalg.norm(places[:, None] - places, axis=2)
        between = apart[~np.eye(12, dtype=bool)]
        assert between.min() > 0.2
        if name != "complete":
            assert apart[adjacency > 0].mean() < between.mean()
    ring = layout(network("ring", 12)[0])
    radii = np.linalg.norm(ring - ring.mean(axis=0), axis=1)
    # A ring is drawn as a circle; what the start adds to break ties is still there by a little.
    np.testing.assert_allclose(radii, radii.mean(), rtol=0.02)
    assert layout(np.array([[0.5, 0.5], [0.5, 0.5]])).shape == (2, 2)


# In a browser.


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("walk") / "walk.html"
    path.write_text(network_page(results()), encoding="utf-8")
    return path.as_uri()


class Network(browsing.Page):
    """The open page in the words of its reader."""

    def radii(self):
        nodes = "return [...document.querySelectorAll('.node')].sort((a, b) => a.dataset.agent - b.dataset.agent)"
        return np.array([float(r) for r in self.script(f"{nodes}.map((node) => node.firstChild.getAttribute('r'))")])

    def chosen(self):
        return self.script("return [...document.querySelectorAll('.chosen')].map((found) => found.dataset.agent)")

    def column(self, number):
        return self.script(
            f"return [...document.querySelectorAll('#agents tbody tr')].map((r) => r.cells[{number}].innerText)"
        )


@pytest.fixture
def page(browser, address):
    yield from Network.opened(browser, address)


def test_it_opens_offline_and_asks_the_network_for_nothing(page):
    fetched = page.script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert not [name for name in fetched if name.startswith("http")]
    assert page.count(".node") == 8
    assert page.count(".edge") == 8


def test_text_of_the_walk_stays_text(page):
    assert page.driver.title == "A walk over 8 agents"
    assert page.count("#agents b") == 0
    assert ATTACK in page.script("return document.querySelector('.reason').textContent")


@pytest.mark.parametrize("area", ["visits", "bytes", "unanswered"])
def test_areas_are_in_proportion(page, area):
    page.find(f"#area option[value={area}]").click()
    values = np.array([agent[area] for agent in describe(made_up())["agents"]])
    shown = (values > 0) & (page.radii() > 5)  # smaller ones have the least radius that can be seen
    assert shown.any()
    shares = page.radii()[shown] ** 2 / values[shown]
    # Radii are written with two decimals.
    np.testing.assert_allclose(shares, shares.mean(), rtol=0.01)
    assert (page.radii() >= 2.5).all()


def test_states_are_told_by_colour_line_and_sign(page):
    state = "return document.querySelector(`.node[data-agent='${arguments[0]}']`).dataset.state"
    assert [page.script(state, k) for k in range(4)] == ["answering", "held", "set aside", "answering"]
    dash = (
        "return getComputedStyle(document.querySelector(`.node[data-agent='${arguments[0]}'] circle`)).strokeDasharray"
    )
    assert len({page.script(dash, k) for k in range(3)}) == 3
    assert page.count(".node[data-state='set aside'] .mark") == page.count(".mark") == 1


def test_the_mouse_chooses_an_agent_and_its_row(page):
    from selenium.webdriver import ActionChains

    page.script("document.querySelector('#network').scrollIntoView({ block: 'center' })")
    ActionChains(page.driver).move_to_element(page.find('.node[data-agent="5"] circle')).perform()
    assert page.chosen() == ["5", "5"]
    assert page.count(".edge.near") == 2
    assert page.find("#said").text == "agent 5: 1,050 visits of 946 expected"
    ActionChains(page.driver).move_to_element(page.find('tr[data-agent="2"] th')).perform()
    assert page.chosen() == ["2", "2"]
    assert "40 hops held, set aside:" in page.find("#said").text
    ActionChains(page.driver).move_to_element(page.find("h1")).perform()
    assert page.chosen() == []


def test_the_keys_choose_an_agent(page):
    from selenium.webdriver import Keys

    page.press("#network", Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert page.chosen() == ["2", "2"]
    active = page.find("#network").get_attribute("aria-activedescendant")
    assert page.find(f"#{active}").get_attribute("aria-selected") == "true"
    assert page.count("[aria-selected=true]") == 1
    page.press("#network", Keys.END)
    assert page.chosen() == ["7", "7"]
    page.press("#network", Keys.ESCAPE)
    assert page.chosen() == []


def test_columns_sort_both_ways(page):
    buttons = page.driver.find_elements("css selector", "#agents thead button")
    assert [button.text for button in buttons] == ["Agent", "State", "Visits", "Expected", "Held", "kB"]
    buttons[2].click()
    visits = [int(text.replace(",", "")) for text in page.column(2)]
    assert visits == sorted(visits, reverse=True)
    buttons[2].click()
    assert page.column(0)[0] == "agent 2"
    buttons[0].click()
    assert page.column(0) == [f"agent {k}" for k in range(8)]
    assert page.count("[aria-sort]") == 1


def test_a_phone_scrolls_no_page_sideways(page):
    page.width(360)
    assert page.script("return innerWidth") == 360
    assert page.script("return document.documentElement.scrollWidth") <= 360
    assert page.script("return view.width") < 360  # drawn anew for the width, not shrunk
    assert page.script("return view.at.every(([x]) => x > 0 && x < view.width)")


def test_dark_and_light_differ_and_both_can_be_read(page):
    grounds = []
    for scheme in ("light", "dark"):
        page.scheme(scheme)
        page.script("choose(2)")
        grounds.append(page.find("body").value_of_css_property("background-color"))
        assert not [(text, ratio) for text, ratio in page.script(browsing.CONTRASTS) if ratio < 4.5]
    assert len(set(grounds)) == 2


@pytest.mark.parametrize("count", [3, 60])
def test_few_and_many_agents_stay_inside_and_apart(page, tmp_path, count):
    path = tmp_path / "other.html"
    path.write_text(network_page(results(made_up(count))), encoding="utf-8")
    page.driver.get(path.as_uri())
    places = np.array(page.script("return view.at"))
    width, height = page.script("return [view.width, view.height]")
    assert (places > 0).all()
    assert (places < [width, height]).all()
    apart = np.linalg.norm(places[:, None] - places, axis=2) + 1e9 * np.eye(count)
    radii = page.radii()
    assert (apart >= radii[:, None] + radii).all()


def test_the_row_of_an_agent_comes_into_sight_in_a_long_table(page, tmp_path):
    path = tmp_path / "long.html"
    path.write_text(network_page(results(made_up(60))), encoding="utf-8")
    page.driver.get(path.as_uri())
    inside = """const [row, box] = [`[data-agent="${arguments[0]}"]`, ""].map((inner) =>
      document.querySelector(`#agents ${inner && 'tbody tr' + inner}`).getBoundingClientRect());
    return row.top >= box.top && row.bottom <= box.bottom + 1"""
    assert not page.script(inside, 50)
    before = page.script("return scrollY")
    for agent in (50, 5):
        page.script(f"choose({agent})")
        assert page.script(inside, agent)
    assert page.script("return scrollY") == before


def test_headings_and_tables_are_marked_as_such(page):
    assert page.count("h1") == 1
    assert page.script("return document.documentElement.lang") == "en"
    assert page.count("th:not([scope])") == 0
    assert page.count("table:not(:has(caption))") == 0
