"""The report of a walk over agents: the network with its visits, as one HTML page that needs nothing but a browser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, TypedDict

import numpy as np
import scipy
from numpy.typing import ArrayLike

from ergodrift.distributed import Walk
from ergodrift.report.markup import embedded, fill, number, plural, style, table, value

DOT = '<svg class="dot-key" viewBox="0 0 14 14" aria-hidden="true"><circle cx="7" cy="7" r="5.5"/></svg>'
COLUMNS = ("Agent", "State", "Visits", "Expected", "Held", "kB")
PASSES = 300  # of the layout: the pictures stop changing long before


class AgentSummary(TypedDict):
    """One agent of a walk."""

    name: str
    place: list[float]
    visits: int
    expected: float  # visits, by the stationary law of the walk
    unanswered: int
    messages: int
    bytes: int
    restarts: int
    reason: str | None  # why it was set aside
    epsilon: float | None


class WalkSummary(TypedDict):
    """A `Walk` as numbers and text."""

    algorithm: str
    tokens: int
    hops: int
    local_rounds: int
    seconds: float
    rate: float
    held: int
    late: int
    components: int
    agents: list[AgentSummary]
    edges: list[list[int]]


def describe(walk: Walk, places: ArrayLike | None = None) -> WalkSummary:
    """A `Walk` as numbers and text, ready for JSON and for `network_page`.

    Args:
        walk: what `ergodrift.distributed.walk` returned.
        places: (agents, 2), where to draw the agents; found by `layout` unless given.
    """
    P = walk.chain.P.toarray() if scipy.sparse.issparse(walk.chain.P) else walk.chain.P
    places = layout(P) if places is None else np.asarray(places, float)
    asked = int(np.sum(walk.visits)) + int(np.sum(walk.unanswered))
    expected = walk.chain.stationary * asked
    agents: list[AgentSummary] = [
        {
            "name": name,
            "place": np.round(places[k], 4).tolist(),
            "visits": int(walk.visits[k]),
            "expected": float(expected[k]),
            "unanswered": int(walk.unanswered[k]),
            "messages": int(walk.messages[k]),
            "bytes": int(walk.bytes[k]),
            "restarts": int(walk.restarts[k]),
            "reason": walk.set_aside.get(name),
            "epsilon": walk.epsilon.get(name),
        }
        for k, name in enumerate(walk.agents)
    ]
    tokens = len(np.asarray(walk.result.seeds))
    return {
        "algorithm": walk.result.name,
        "tokens": tokens,
        "hops": int(walk.hops),
        "local_rounds": int(walk.local_rounds),
        "seconds": float(walk.seconds),
        "rate": float(walk.rate),
        "held": int(np.sum(walk.held)),
        "late": int(walk.late),
        "components": int(walk.components),
        "agents": agents,
        "edges": np.argwhere(np.triu((P > 0) | (P.T > 0), 1)).tolist(),
    }


def network_page(results: Mapping[str, Any]) -> str:
    """The whole page.

    Args:
        results: `walk`, what `describe` returns; `versions`; and, where there are such, `config`, the settings by name,
            and `records`, rows of numbers on the way, each by its name.
    """
    walk: WalkSummary = results["walk"]
    agents = walk["agents"]
    parts = {
        "style": style(),
        "count": f"{len(agents):,}",
        "dot": DOT,
        "summary": _summary(walk),
        "agents": _agents(agents),
        "result": _result(results.get("records", ()), results.get("about")),
        "moved": _communication(walk),
        "setup": _settings(results.get("config", {})),
        "versions": escape(", ".join(f"{name} {version}" for name, version in results["versions"].items())),
        "results": embedded({"agents": [_drawn(agent) for agent in agents], "edges": walk["edges"]}),
    }
    return fill("network.html", parts, results)


def layout(P: ArrayLike) -> np.ndarray:
    """(agents, 2): places whose distances are near the numbers of hops between the agents.

    The stress, the sum over pairs of (||p_i - p_j|| / d_ij - 1)^2, is made small by majorisation, from classical
    scaling (Gansner, Koren and North 2005).
    """
    P = np.asarray(P)
    count = len(P)
    hops = scipy.sparse.csgraph.shortest_path((P > 0) | (P.T > 0), directed=False, unweighted=True)
    angle = 2 * np.pi * np.arange(count) / count
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if count < 3:
        return circle
    centred = np.eye(count) - 1 / count
    scale, axes = scipy.linalg.eigh(-centred @ hops**2 @ centred / 2, subset_by_index=[count - 2, count - 1])
    # A little of the circle tells apart agents that classical scaling sees in the same place.
    places = axes * np.sqrt(np.maximum(scale, 0)) + 0.05 * circle
    away = hops + np.eye(count)
    weight = away**-2 * (1 - np.eye(count))
    solve = np.linalg.pinv(np.diag(weight.sum(axis=1)) - weight)
    for _ in range(PASSES):
        distance = np.linalg.norm(places[:, None] - places, axis=2) + np.eye(count)
        pull = weight * away / np.maximum(distance, 1e-9)
        places = solve @ (pull.sum(axis=1)[:, None] * places - pull @ places)
    return places


def _state(agent: AgentSummary) -> str:
    return "set aside" if agent["reason"] is not None else "held" if agent["unanswered"] else "answering"


def _drawn(agent: AgentSummary) -> dict[str, object]:
    """What the script of the page is told of an agent."""
    told: Mapping[str, object] = agent
    keys = ("name", "place", "visits", "expected", "unanswered", "bytes", "reason")
    return {**{key: told[key] for key in keys}, "state": _state(agent)}


def _summary(walk: WalkSummary) -> str:
    aside = sum(agent["reason"] is not None for agent in walk["agents"])
    said = [
        f"{plural(walk['tokens'], 'token')} of {escape(walk['algorithm'])} made {plural(walk['hops'], 'hop')} each",
        f"{plural(walk['local_rounds'], 'round')} per visit",
        f"<strong>{walk['rate']:,.0f} hops per second</strong>",
    ]
    held = f"<strong>{plural(walk['held'], 'hop')}</strong> of a token held its place, without an answer"
    faults = [held if walk["held"] else "No hop was held"]
    faults.append(f"<strong>{plural(aside, 'agent')} set aside</strong>" if aside else "no agent was set aside")
    restarts = sum(agent["restarts"] for agent in walk["agents"])
    faults.append(f"{plural(restarts, 'restart')}, {plural(walk['late'], 'late answer')} discarded")
    if walk["components"] > 1:
        faults.append(f"those left form {walk['components']} components, between which no token can walk")
    return f"<p>{', '.join(said)}.</p><p>{'; '.join(faults)}.</p>"


def _agents(agents: Sequence[AgentSummary]) -> str:
    def cells(agent: AgentSummary) -> str:
        why = f'<span class="reason">{escape(agent["reason"])}</span>' if agent["reason"] else ""
        state = f'<span class="state" data-state="{_state(agent)}">{DOT}{_state(agent)}</span>{why}'
        whole = agent["visits"], agent["expected"], agent["unanswered"]
        numbers = [*((given, 0) for given in whole), (agent["bytes"] / 1000, 1)]
        shown = "".join(f'<td data-value="{given}">{given:,.{digits}f}</td>' for given, digits in numbers)
        return f'<th scope="row">{escape(agent["name"])}</th><td>{state}</td>{shown}'

    heads = "".join(f'<th scope="col"><button type="button">{column}</button></th>' for column in COLUMNS)
    rows = "\n".join(f'<tr data-agent="{k}">{cells(agent)}</tr>' for k, agent in enumerate(agents))
    return f"""<div class="frame" id="agents" role="region" aria-label="Agents" tabindex="0"><table class="numbers">
<caption>Agents</caption><thead><tr>{heads}</tr></thead>
<tbody>{rows}</tbody></table></div>"""


def _communication(walk: WalkSummary) -> str:
    agents = walk["agents"]
    messages, size = sum(agent["messages"] for agent in agents), sum(agent["bytes"] for agent in agents)
    visits = sum(agent["visits"] for agent in agents)
    what = "x and its feedback" if walk["local_rounds"] == 1 else "the state of a token, there and back"
    rows = [
        ["Questions and answers", f"{messages:,}"],
        ["Bytes in them", f"{size:,}"],
        ["Bytes per visit", number(size / visits) if visits else "none"],
        ["Seconds", number(walk["seconds"])],
    ]
    spent = [[escape(a["name"]), number(a["epsilon"])] for a in agents if a["epsilon"] is not None]
    cost = table("Privacy cost: epsilon, at the delta of the agent", ["Agent", "Epsilon"], spent, "numbers")
    return f"""<p>What travelled is {what}; no row of anybody&rsquo;s data did. Tokens at the same agent travel in one
message.</p>{table("Communication", ["Quantity", "Value"], rows, "numbers")}{cost if spent else ""}"""


def _result(records: Sequence[Mapping[str, float]], about: str | None) -> str:
    if not records:
        return "<p>Nothing was judged on the way.</p>"
    heads = [escape(name) for name in records[0]]
    cells = [[number(float(x)) if isinstance(x, float) else f"{x:,}" for x in row.values()] for row in records]
    return ("" if about is None else f"<p>{escape(about)}</p>") + table("On the way", heads, cells, "numbers")


def _settings(config: Mapping[str, object]) -> str:
    rows = [[escape(name.replace("_", " ")), value(given)] for name, given in config.items()]
    return table("Settings", ["Setting", "Value"], rows, "words") if rows else "<p>None were given.</p>"
