"""The report of the benchmark: a page, its figures, and the tables of docs/laboratory/peers.md."""

from __future__ import annotations

import re
import textwrap
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from ergodrift._core import markdown
from ergodrift._core.files import write_whole
from ergodrift.peers.measure import FLOOR
from ergodrift.peers.verdict import OURS, counts, sentences, verdicts
from ergodrift.report import networks, standing
from ergodrift.report.markup import MINUS, coded, figure, fill, number, style, table
from ergodrift.report.ratios import curves, overview

MARKS = BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
NONE = "\N{EN DASH}"
GLANCE = (
    "How many times the smallest gap on a task each competitor has: left is better, and a diamond at the left edge is "
    "a task that auto wins. A bar marks x0, where all start."
)
WAY = "Gap against samples, in units of x0's (the horizontal line): auto, and the best of each kind on that task."
HEAD = ("Task", "auto", "Best competitor", "auto / best", "Best peer default", "auto / default", "above x0",
        "certified", "with margin")  # fmt: skip

OF_TASKS = "glance", "verdicts", "way", "details", "rules"  # sections that are empty without tasks
COSTS = ("Task", "samples", "tau_mix", "worth", "descent-ascent", "auto", "s, auto", "s, EDPP-t")


def write_report(results: dict[str, Any], out: Path, docs: Path | None = None) -> None:
    """Write index.html and figures into a folder and, where asked for, the tables and the picture into a page of docs.

    Args:
        results: what `compare` returns.
        out: the folder.
        docs: a Markdown page with the marks between which tables stand; a picture is put beside it.
    """
    glance = way = ""
    if results["tasks"]:
        glance, way = overview(results), curves(results)
        write_whole(out / "figures" / "overview.svg", glance)
        write_whole(out / "figures" / "curves.svg", way)
    write_whole(out / "index.html", page(results, glance, way))
    trained = results.get("networks")
    picture = networks.picture(trained) if trained else ""
    if trained:
        write_whole(out / "figures" / "networks.svg", picture)
    if docs is not None and results["tasks"]:
        before, after = parted(docs)
        write_whole(docs.with_suffix(".svg"), glance)
        write_whole(docs, f"{before}{BEGIN}\n{docs_part(results, docs.stem)}\n{after}")
    if docs is not None and trained:
        before, after = parted(docs, networks.NETWORKS)
        write_whole(docs.with_name(f"{docs.stem}-networks.svg"), picture)
        part = networks.docs_part(trained, f"{docs.stem}-networks")
        write_whole(docs, f"{before}{networks.NETWORKS[0]}\n{part}\n{after}")


def parted(docs: Path, marks: tuple[str, str] = MARKS) -> tuple[str, str]:
    """What stands in a page before the tables, and after."""
    text, (begin, end) = docs.read_text(), marks
    if begin not in text or end not in text:
        raise ValueError(f"{docs} has no lines {begin} and {end}, between which tables would stand; add them")
    return text[: text.index(begin)], text[text.index(end) :]


def page(results: dict[str, Any], glance: str, way: str) -> str:
    """The whole page, which needs nothing but a browser; the two figures are SVG, or "" where there are no tasks."""
    found, trained = verdicts(results), results.get("networks")
    said = sentences(counts(found)) if results["tasks"] else standing.sentences(trained) if trained else []
    parts = {
        "style": style(),
        "summary": "\n".join(f"<p>{coded(sentence)}</p>" for sentence in said),
        "overview": figure(GLANCE, glance) if glance else "",
        "curves": figure(WAY, way) if way else "",
        "floor": f"{FLOOR:g}",
        "verdicts": table("Verdicts", HEAD, map(_cells, _verdict_rows(results, found)), "numbers verdicts wide"),
        "merit": _merit(results),
        "details": "\n".join(_details(results, name) for name in results["tasks"]),
        "networks": networks.section(trained, verdict=bool(results["tasks"])),
        "missing": _missing(results),
        "rivals": _rivals(results) + networks.who(trained),
        "versions": escape(", ".join(f"{name} {version}" for name, version in results["versions"].items())),
    }
    filled = fill("peers.html", parts, results)
    return filled if results["tasks"] else _without(filled, OF_TASKS)


def _without(page: str, names: tuple[str, ...]) -> str:
    """A page without these sections, and what leads to them."""
    for name in names:
        page = re.sub(rf'<section id="{name}">.*?</section>\s*', "", page, count=1, flags=re.DOTALL)
        page = re.sub(rf'<li><a href="#{name}">.*?</li>', "", page, count=1)
    return page


def docs_part(results: dict[str, Any], picture: str) -> str:
    """What stands between the marks of docs/laboratory/peers.md: a picture, then what it says, then the table."""
    found, config = verdicts(results), results["config"]
    head = f"Of {len(results['tasks'])} tasks, {config['seeds']} orders or paths of each"
    if config["rivals"]:
        head = textwrap.fill(f"{head}, by these competitors alone: {'; '.join(config['rivals'])}", 100)
    said = _listed(sentences(counts(found)))
    rows = [[escape(cell, quote=False) for cell in row] for row in _verdict_rows(results, found)]
    merit = _listed(sentences(counts(verdicts(results, "merit")))[:2])
    costs = [[escape(task["title"], quote=False), *_cost(results, name)] for name, task in results["tasks"].items()]
    parts = [
        f"![{GLANCE}]({picture}.svg)",
        f"{head}:\n\n{said}\n\nBy E f(x) - f* + 2 λ*.[E g(x)]_+, in which a violation is not made up for by the loss\n"
        f"it saves:\n\n{merit}",
        markdown.table(HEAD, rows),
        "What the data are like, and what dependence costs: the gaps of the tuned descent-ascent and of\n`auto`, each "
        "over its own on the same samples in random order.",
        markdown.table(COSTS, costs),
    ]  # fmt: skip
    return "\n\n".join(parts)


def _listed(lines: list[str]) -> str:
    return "\n".join(textwrap.fill(line, 100, initial_indent="- ", subsequent_indent="  ") for line in lines)


def _verdict_rows(results: dict[str, Any], found: dict[str, dict[str, Any]]) -> list[list[str]]:
    rows: list[list[str]] = []
    for name, one in found.items():
        best = f"{one['best']}: {number(one['best_gap'])}"
        other, gap = one["best_default"], one["best_default_gap"]
        default = "none ran" if other is None else f"{other}: {number(gap)}"
        shares = [one[key] for key in ("above_x0", "kept", "kept_with_margin")]
        above = [NONE if share is None else f"{share} of {one['seeds']}" for share in shares]
        if one["margin_cost"] is not None:
            above[-1] += f" at {one['margin_cost']:+.2g}"
        title = results["tasks"][name]["title"] + (" *" if one["measure"] == "merit" else "")
        ratios = _times(one["ratio"]), _times(one["default_ratio"])
        rows.append([title, number(one["gap"]), best, ratios[0], default, ratios[1], *above])
    return rows


def _merit(results: dict[str, Any]) -> str:
    said = " ".join(sentences(counts(verdicts(results, "merit")))[:2])
    return (
        "<p>The Lagrangian gap is blind along directions in which loss and constraints trade at the price λ*; a task "
        "where that shows is judged by the next measure, and has a star. By "
        f"E f(x) {MINUS} f* + 2 λ*·[E g(x)]<sub>+</sub>, which is 0 at optimal points alone: {coded(said)}</p>"
    )


def _details(results: dict[str, Any], name: str) -> str:
    task = results["tasks"][name]
    unit, depends = task["x0"]["gap"], task["dependence"]
    memory = depends.get("note") or (
        f"they behave like τ_mix ≈ {_number(depends['tau_mix'])}; {task['num_samples']:,} samples are worth "
        f"{_number(depends['ess'])}"
    )
    about = (
        f"<p>{escape(task['about'])}</p><p class='note'>Data: {escape(task['data'])}. {task['num_samples']:,} samples, "
        f"{task['dimension']} unknowns, {task['constraints']} constraints; {escape(memory)}. The gap of x0 is "
        f"{number(unit)}.</p>"
    )
    rows = [row for row in results["rows"] if row["task"] == name]
    ends = {f"offline, all samples at once: {task['optimum']['solver']}": task["optimum"], "x0": task["x0"]}
    shown = [
        [
            escape(who),
            *(number(end[key] / by) for key, by in [("gap", unit), ("loss", 1), ("violation", 1)]),
            *[NONE] * 3,
        ]
        for who, end in ends.items()
    ]
    shown += [_row(row, unit, results["rivals"][row["rival"]]["settings"]) for row in sorted(rows, key=_place)]
    head = ["Competitor", "Gap / x0's", "Loss", "Violation", "Later", "Seconds", "Settings"]
    ranked = [row["rival"] for row in sorted(rows, key=_place) if "gap" in row]
    best = next((rival for rival in ranked if results["rivals"][rival]["family"] != "control"), "nobody")
    body = table(f"All on {escape(task['title'])}", head, shown, "numbers wide")
    summary = f"{escape(task['title'])} <span class='std'>best: {escape(best)}</span>"
    return f"<details><summary>{summary}</summary>{about}{body}</details>"


def _place(row: dict[str, Any]) -> float:
    return float(np.mean(row["gap"])) if "gap" in row else np.inf


def _row(row: dict[str, Any], unit: float, settings: int) -> list[str]:
    name = f'<span class="{"mine" if row["rival"] == OURS else "other"}">{escape(row["rival"])}</span>'
    if row["status"] != "done":
        return [name, f"{escape(row['status'])}: {escape(row['why'])}", *[NONE] * 5]
    gap = _spread(np.asarray(row["gap"]) / unit) if "gap" in row else NONE
    later = row["later"]
    shown = NONE
    if "lower" in later:
        shown = f"{_number(later['violation'])} [{_number(later['lower'])}, {_number(later['upper'])}]"
    elif "violation" in later:
        shown = _number(later["violation"])
    values = [gap, _spread(np.asarray(row["loss"])), _spread(np.asarray(row["violation"])), shown]
    return [name, *values, number(row["seconds"]), str(settings)]


def _missing(results: dict[str, Any]) -> str:
    """What could not take part, and what failed: by name."""
    absent = {row["rival"]: row["why"] for row in results["rows"] if row["status"] == "missing"}
    failed = [row for row in results["rows"] if row["status"] == "failed"]
    lines = [f"{rival} is missing ({why}; pip install -r requirements-peers.txt)." for rival, why in absent.items()]
    lines += [f"{row['rival']} failed on {row['task']}: {row['why']}." for row in failed]
    lines += networks.absent(results.get("networks"))
    return "".join(f"<p>{escape(line)}</p>" for line in lines) or "<p>Nobody is missing, and nobody failed.</p>"


def _rivals(results: dict[str, Any]) -> str:
    if not results["tasks"]:
        return ""
    rows = [[escape(name), str(one["settings"]), coded(one["about"])] for name, one in results["rivals"].items()]
    return table("Competitors", ["Name", "Settings to choose", "What it is"], rows, "words wide")


def _cost(results: dict[str, Any], name: str) -> list[str]:
    """Samples, mixing time, what they are worth, what order costs two of us, and seconds."""
    task = results["tasks"][name]
    rows = {row["rival"]: row for row in results["rows"] if row["task"] == name and "gap" in row}

    def cost(rival: str) -> str:
        pair = [rows.get(rival), rows.get(f"shuffled: {rival}")]
        means = [max(float(np.mean(row["gap"])) / task["x0"]["gap"], FLOOR) for row in pair if row]
        return f"{means[0] / means[1]:.3g}" if len(means) == 2 else "-"

    def seconds(start: str) -> str:
        return next((f"{row['seconds']:.3g}" for rival, row in rows.items() if rival.startswith(start)), "-")

    found = [task["dependence"].get(key) for key in ("tau_mix", "ess")]
    tau, worth = ("-" if value is None else f"{value:,.3g}" for value in found)
    return [
        f"{task['num_samples']:,}",
        tau,
        worth,
        cost("descent-ascent, tuned"),
        cost(OURS),
        seconds(OURS),
        seconds("EDPP-t"),
    ]


def _cells(row: list[str]) -> list[str]:
    return [escape(cell) for cell in row]


def _number(value: float | None) -> str:
    return NONE if value is None else number(value)


def _times(ratio: float | None) -> str:
    return NONE if ratio is None else f"{ratio:.3g}"


def _spread(values: np.ndarray) -> str:
    spread = f' <span class="std">± {number(float(values.std(ddof=1)))}</span>' if len(values) > 1 else ""
    return f'<span class="nowrap">{number(float(values.mean()))}{spread}</span>'
