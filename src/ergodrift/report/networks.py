"""The section of networks: its tables and its picture, on the page and in docs/laboratory/peers.md."""

from __future__ import annotations

import textwrap
from html import escape
from typing import Any

import numpy as np

from ergodrift._core import markdown
from ergodrift.report.markup import figure, table
from ergodrift.report.ratios import svg

NETWORKS = "<!-- networks: begin -->", "<!-- networks: end -->"
HEAD = ("Method", "loss", "violation", "test loss", "test violation", "oscillation", "settings chosen")
CAPTION = (
    "Loss against violation of trained networks, both of the training part and means over seeds: lower and further "
    "left is better. The dotted line is the violation that counts as none when settings are chosen."
)
NONE = "-"


def section(trained: dict[str, Any] | None) -> str:
    """The part of the page, as HTML."""
    if not trained:
        return "<p>No network was trained: <code>ergodrift peers --networks</code> does it.</p>"
    about = (
        f"<p>Adam with a rate that falls to 0 along a cosine, the same batches, first weights and number of steps for "
        f"all; means of {trained['seeds']} seeds, of the last weights. Others are shown as they come and with the "
        f"setting that hindsight chooses by the training part: the smallest loss among those with a violation below "
        f"{trained['slack']:g}, else the smallest violation. Oscillation is the standard deviation of multipliers over "
        "the last quarter, as a part of the largest. Nothing is proved for networks.</p>"
    )
    tables = [
        table(
            escape(f"{name}: {_about(trained, name)}"), HEAD, [list(map(escape, row)) for row in rows], "numbers wide"
        )
        for name, rows in _tables(trained).items()
    ]
    return "\n".join([about, figure(CAPTION, picture(trained)), *tables, *_missing(trained)])


def docs_part(trained: dict[str, Any], stem: str) -> str:
    """What stands between the marks of docs/laboratory/peers.md."""
    parts = [f"![{CAPTION}]({stem}.svg)", f"Means of {trained['seeds']} seeds."]
    for name, rows in _tables(trained).items():
        parts += [textwrap.fill(f"**{name}**: {_about(trained, name)}.", 100), markdown.table(HEAD, rows)]
    return "\n\n".join(parts)


def picture(trained: dict[str, Any]) -> str:
    """Loss against violation, a panel for each task, as SVG."""
    from matplotlib.figure import Figure

    names = _names(trained)
    drawn = Figure(figsize=(8.6, 0.6 + 2.8 * -(-len(names) // 2)), layout="constrained")
    panels = drawn.subplots(-(-len(names) // 2), 2, squeeze=False).ravel()
    markers = dict(zip(trained["trainers"], "Dxo+sPv*^hX", strict=False))
    for axes, name in zip(panels, names, strict=False):
        for row in (row for row in trained["rows"] if row["task"] == name and row["status"] == "done"):
            mine, tuned = row["rival"] == "ours", row["setting"] != {}
            colour = "#D55E00" if mine else "#009E73" if tuned else "#000000"
            axes.plot(np.mean(row["violation"]), np.mean(row["loss"]), linestyle="", color=colour, label=row["rival"],
                      marker=markers.get(row["rival"], "."), markersize=9 if mine else 6,
                      markerfacecolor=colour if mine else "none")  # fmt: skip
        axes.axvline(trained["slack"], color="0.6", linestyle=":", linewidth=0.9)
        axes.set_xscale("symlog", linthresh=trained["slack"])
        axes.set_xlim(left=-trained["slack"] / 5)
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
    numbers = [f"{np.mean(row[key]):.4f}" for key in ("loss", "violation", "test_loss", "test_violation")]
    swings = [value for value in row["oscillation"] if value is not None]
    steady = f"{np.mean(swings):.3f}" if swings else NONE
    chosen = ", ".join(f"{name} {value:g}" for name, value in row["setting"].items())
    count = f"{len(row['setting'])} ({chosen}; of {len(row['tried'])})" if chosen else "0"
    return [row["rival"], *numbers, steady, count]


def _missing(trained: dict[str, Any]) -> list[str]:
    absent = {row["rival"]: row["why"] for row in trained["rows"] if row["status"] == "missing"}
    return [
        f"<p>{escape(name)} is missing ({escape(why)}; pip install -r requirements-peers.txt).</p>"
        for name, why in absent.items()
    ]
