"""The pictures of the benchmark. Needs matplotlib (the extra `plots`)."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ergodrift.peers.verdict import FAR, NEAR, OURS, verdicts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, and a shape for each, so that no one needs the colour.
GROUPS: dict[str, tuple[str, str, float, str]] = {
    OURS: ("#D55E00", "D", 9, "auto: nothing chosen"),
    "tuned": ("#009E73", "o", 6.5, "others, tuned in hindsight"),
    "default": ("#000000", "x", 6, "others, default settings"),
    "ours": ("#56B4E9", ".", 8, "our other algorithms"),
    "research": ("#0072B2", "^", 5.5, "other authors' methods"),
}
LARGEST = 1e4  # times the best, where the axis ends
DASHES = ("-", "--", ":", "-.", (0, (6, 2, 1, 2, 1, 2)))
COLUMNS = 3


def group(results: dict[str, Any], rival: str) -> str:
    """Which of the groups a competitor is drawn with; "" for controls."""
    about = results["rivals"][rival]
    if rival == OURS or about["family"] == "control":
        return OURS if rival == OURS else ""
    if about["family"] in ("ours", "research"):
        return about["family"]
    return "tuned" if about["tuned"] else "default"


def overview(results: dict[str, Any]) -> str:
    """How many times the best gap everybody has on each task, as SVG."""
    from matplotlib.figure import Figure

    found = verdicts(results)
    order = sorted(found, key=lambda name: -found[name]["ratio"])
    figure = Figure(figsize=(8.6, 2.1 + 0.4 * len(order)), layout="constrained")
    axes = figure.subplots()
    for limit, words in [(1.0, "the best"), (NEAR, f"{NEAR:g} times"), (FAR, f"{FAR:g} times")]:
        axes.axvline(limit, color="0.75", linewidth=1.4 if limit == 1 else 0.9, linestyle="-" if limit == 1 else ":")
        axes.annotate(words, (limit, 1), xycoords=("data", "axes fraction"), xytext=(0, 3), fontsize=7,
                      textcoords="offset points", color="0.35", rotation=50)  # fmt: skip
    for kind in ("ours", "research", "default", "tuned", OURS):  # ours on top
        colour, marker, size, words = GROUPS[kind]
        spots = [
            (min(ratio, LARGEST), place)
            for place, name in enumerate(order)
            for rival, ratio in found[name]["ratios"].items()
            if group(results, rival) == kind
        ]
        if spots:
            filled = colour if kind in (OURS, "ours") else "none"
            axes.plot(*zip(*spots, strict=True), linestyle="", marker=marker, markersize=size, color=colour,
                      markerfacecolor=filled, markeredgewidth=1.3, label=words, clip_on=False)  # fmt: skip
    starts = [
        (min(1 / max(min(one["gap"], one["best_gap"]), 1 / LARGEST), LARGEST), place)
        for place, one in enumerate(found[name] for name in order)
    ]
    if starts:
        axes.plot(*zip(*starts, strict=True), linestyle="", marker="|", markersize=13, color="#CC79A7",
                  markeredgewidth=2, label="x0: doing nothing", zorder=0)  # fmt: skip
    axes.set_yticks(range(len(order)), [results["tasks"][name]["title"] for name in order], fontsize=8)
    axes.set(xscale="log", xlabel="gap, times the smallest on the task", ylim=(-0.6, len(order) - 0.4))
    axes.set_xlim(0.85, LARGEST if any(x > 1e3 for x, _ in starts) else 2e3)
    axes.grid(visible=True, axis="y", alpha=0.3)
    if found:
        axes.legend(fontsize=7.5, ncols=3, loc="upper center", bbox_to_anchor=(0.35, -0.9 / len(order)), frameon=False)
    return svg(figure)


def curves(results: dict[str, Any]) -> str:
    """Gaps against samples on each task: `auto`, the best tuned and the best default of the others, as SVG."""
    from matplotlib.figure import Figure

    found = verdicts(results)
    rows = max(math.ceil(len(found) / COLUMNS), 1)
    figure = Figure(figsize=(3.1 * COLUMNS, 2.5 * rows), layout="constrained")
    panels = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    for axes, name in zip(panels, found, strict=False):
        _panel(axes, results, name)
    for axes in panels[len(found) :]:
        axes.set_axis_off()
    return svg(figure)


def _panel(axes: Axes, results: dict[str, Any], name: str) -> None:
    unit = results["tasks"][name]["x0"]["gap"]
    rows = [row for row in results["rows"] if row["task"] == name and "curve" in row]
    best: dict[str, Any] = {}
    for row in rows:
        kind = group(results, row["rival"])
        if kind and (kind not in best or np.mean(row["gap"]) < np.mean(best[kind]["gap"])):
            best[kind] = row
    for (kind, (colour, _, _, _)), dash in zip(GROUPS.items(), DASHES, strict=True):
        if kind in best:
            row = best[kind]
            gaps = np.maximum(np.asarray(row["curve"]["gap"]) / unit, 1e-6)
            axes.plot(row["curve"]["samples"], gaps, color=colour, linestyle=dash, linewidth=1.5, label=row["rival"])
    axes.axhline(1, color="#CC79A7", linewidth=1.2)
    axes.set(xscale="log", yscale="log")
    axes.set_title(results["tasks"][name]["title"], fontsize=7.5)
    axes.tick_params(labelsize=7)
    axes.grid(visible=True, alpha=0.25)
    axes.legend(fontsize=6, loc="lower left", handlelength=2.4, framealpha=0.8)


def svg(figure: Figure) -> str:
    """A picture as the text of a file."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "peers"}):  # the same picture is the same file
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
