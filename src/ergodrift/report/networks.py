"""The section of networks: its tables and its picture, on the page and in docs/laboratory/peers.md."""

from __future__ import annotations

import textwrap
from html import escape
from typing import Any

import numpy as np

from ergodrift._core import markdown
from ergodrift.report.markup import coded, figure, plural, table
from ergodrift.report.ratios import svg
from ergodrift.report.standing import OURS, sentences

NETWORKS = "<!-- networks: begin -->", "<!-- networks: end -->"
HEAD = ("Method", "loss", "violation", "test loss", "test violation", "oscillation", "settings chosen")
CAPTION = (
    "Loss against violation of trained networks, both of the training part and means over seeds: lower and further "
    "left is better. The dotted line is the violation that counts as none when settings are chosen."
)
NONE = "-"
OUTSIDE = 1.0  # a violation that would leave no room for the others: named, not drawn
MARKERS = "Ddxo+s3Pv*^<X"  # those of ours first


def section(trained: dict[str, Any] | None, *, verdict: bool) -> str:
    """The part of the page, as HTML; `verdict` says whether it begins with who won where."""
    if not trained:
        return "<p>No network was trained: <code>ergodrift peers --networks</code> does it.</p>"
    about = (
        "<p>Adam with a rate that falls to 0 along a cosine, the same batches and first weights for all; one gradient "
        "in each round, but for ours, which measures sizes with some more in every tenth round and is shown in fewer "
        f"rounds too, with as many gradients as the others. Means of {plural(trained['seeds'], 'seed')}, of the last "
        "weights. Others are shown as they come and with the setting that hindsight chooses by the training part: the "
        f"smallest loss among those with a violation below {trained['slack']:g}, else the smallest violation. "
        "Oscillation is the standard deviation of multipliers over the last quarter, as a part of the largest. Nothing "
        "is proved for networks.</p>"
    )
    said = "".join(f"<p>{coded(sentence)}</p>" for sentence in sentences(trained) if verdict)
    tables = [
        table(
            escape(f"{name}: {_about(trained, name)}"), HEAD, [list(map(escape, row)) for row in rows], "numbers wide"
        )
        for name, rows in _tables(trained).items()
    ]
    return "\n".join([said, about, figure(CAPTION, picture(trained)), *tables])


def who(trained: dict[str, Any] | None) -> str:
    """Who trains, as a table."""
    if not trained:
        return ""
    rows = [[escape(name), str(one["tried"]), coded(one["about"])] for name, one in trained["trainers"].items()]
    return table("Who trains networks", ["Name", "Settings tried", "What it is"], rows, "words wide")


def absent(trained: dict[str, Any] | None) -> list[str]:
    """Who could not take part, and who failed, a line each."""
    rows = trained["rows"] if trained else []
    missing = {row["rival"]: row["why"] for row in rows if row["status"] == "missing"}
    failed = [row for row in rows if row["status"] == "failed"]
    return [
        *(
            f"{one} (networks) is missing ({why}; pip install -r requirements-peers.txt)."
            for one, why in missing.items()
        ),
        *(f"{row['rival']} (networks) failed on {row['task']}: {row['why']}." for row in failed),
    ]


def docs_part(trained: dict[str, Any], stem: str) -> str:
    """What stands between the marks of docs/laboratory/peers.md."""
    said = f"Means of {plural(trained['seeds'], 'seed')}. {' '.join(sentences(trained))}"
    parts = [f"![{CAPTION}]({stem}.svg)", textwrap.fill(said, 100)]
    for name, rows in _tables(trained).items():
        parts += [textwrap.fill(f"**{name}**: {_about(trained, name)}.", 100), markdown.table(HEAD, rows)]
    return "\n\n".join(parts)


def picture(trained: dict[str, Any]) -> str:
    """Loss against violation, a panel for each task, as SVG."""
    from matplotlib.figure import Figure

    names = _names(trained)
    columns = min(len(names), 2)
    down = -(-len(names) // columns)
    drawn = Figure(figsize=(8.6, 0.8 + 2.8 * down), layout="constrained")
    panels = drawn.subplots(down, columns, squeeze=False).ravel()
    markers = dict(zip(trained["trainers"], MARKERS, strict=False))
    for axes, name in zip(panels, names, strict=False):
        outside: list[str] = []
        for row in (row for row in trained["rows"] if row["task"] == name and row["status"] == "done"):
            if np.mean(row["violation"]) > OUTSIDE:
                outside.append(f"{row['rival']}: violation {np.mean(row['violation']):.3g}")
                continue
            mine, tuned = row["rival"] in OURS, row["setting"] != {}
            colour = "#D55E00" if mine else "#009E73" if tuned else "#000000"
            axes.plot(np.mean(row["violation"]), np.mean(row["loss"]), linestyle="", color=colour, label=row["rival"],
                      marker=markers.get(row["rival"], "."), markersize=9 if mine else 6,
                      markerfacecolor=colour if mine else "none")  # fmt: skip
        axes.axvline(trained["slack"], color="0.6", linestyle=":", linewidth=0.9)
        axes.set_xscale("symlog", linthresh=trained["slack"])
        axes.set_xlim(-trained["slack"] / 5, max(1.5 * axes.dataLim.x1, 10 * trained["slack"]))
        axes.annotate("\n".join(outside), (0.98, 0.05), xycoords="axes fraction", ha="right", fontsize=7)
        axes.set(title=name, xlabel="violation", ylabel="loss")
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    handles: dict[str, Any] = {}
    for axes in drawn.axes:
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if handles:
        drawn.legend(handles.values(), handles, loc="outside lower center", ncols=4, fontsize=7.5, frameon=False)
    return svg(drawn)


def _names(trained: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(row["task"] for row in trained["rows"]))


def _about(trained: dict[str, Any], name: str) -> str:
    return trained["tasks"].get(name, {}).get("about", "nobody could train for it")


def _tables(trained: dict[str, Any]) -> dict[str, list[list[str]]]:
    return {name: [_cells(row) for row in trained["rows"] if row["task"] == name] for name in _names(trained)}


def _cells(row: dict[str, Any]) -> list[str]:
    if row["status"] != "done":
        return [row["rival"], f"{row['status']}: {row['why']}", *[NONE] * 5]
    numbers = [
        "not finite" if None in row[key] else f"{np.mean(row[key]):.4f}"  # JSON has no word for it
        for key in ("loss", "violation", "test_loss", "test_violation")
    ]
    swings = [value for value in row["oscillation"] if value is not None]
    steady = f"{np.mean(swings):.3f}" if swings else NONE
    chosen = ", ".join(f"{name} {value:g}" for name, value in row["setting"].items())
    count = f"{len(row['setting'])} ({chosen}; of {len(row['tried'])})" if chosen else "0"
    return [row["rival"], *numbers, steady, count]
