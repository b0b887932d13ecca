"""What the results on networks say, in words: computed, so that losses stand beside wins."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ergodrift.peers.networks.trainers import FEWER
from ergodrift.peers.networks.trainers import OURS as FULL

NEAR = 0.02  # a loss that much above another's, as a part of it, is level with it
OURS = FULL, FEWER


def sentences(trained: dict[str, Any]) -> list[str]:
    """How ours stands to the best of the others on each task: by loss where limits are kept, and by how calm it is."""
    names = list(dict.fromkeys(row["task"] for row in trained["rows"]))
    said = [_level(trained, names, name) for name in OURS]
    return [one for one in (*said, _calm(trained, names)) if one]


def best(rows: list[dict[str, Any]], slack: float) -> dict[str, Any] | None:
    """The smallest loss of those with a violation that counts as none, else the smallest violation."""

    def place(row: dict[str, Any]) -> tuple[float, float]:
        return max(mean(row, "violation") - slack, 0.0), mean(row, "loss")

    return min(rows, key=place, default=None)


def mean(row: dict[str, Any], name: str) -> float:
    """Over seeds; NaN where there is nothing to measure."""
    values = [value for value in row[name] if value is not None]
    return float(np.mean(values)) if values else math.nan


def _pairs(trained: dict[str, Any], names: list[str], who: str, *, calm: bool) -> dict[str, Any]:
    """Ours and the best of the others on each task where both ran; with `calm`, of those that have multipliers."""
    found: dict[str, Any] = {}
    for name in names:
        rows = [row for row in trained["rows"] if row["task"] == name and row["status"] == "done"]
        mine = next((row for row in rows if row["rival"] == who), None)
        others = [row for row in rows if row["rival"] not in OURS]
        if calm:
            others = [row for row in others if not math.isnan(mean(row, "oscillation"))]
        other = best(others, trained["slack"])
        if mine is not None and other is not None:
            found[name] = mine, other
    return found


def _level(trained: dict[str, Any], names: list[str], who: str) -> str:
    pairs, slack = _pairs(trained, names, who, calm=False), trained["slack"]

    def is_level(mine: dict[str, Any], other: dict[str, Any]) -> bool:
        allowed = mean(other, "loss") + NEAR * abs(mean(other, "loss"))
        return mean(mine, "violation") <= max(mean(other, "violation"), slack) and mean(mine, "loss") <= allowed

    return _counted(
        pairs, is_level,
        f"`{who}`, with nothing chosen, has a loss at most {100 * NEAR:g} % above that of the best competitor, tuned "
        f"in hindsight, at a violation below {slack:g} or no larger",
    )  # fmt: skip


def _calm(trained: dict[str, Any], names: list[str]) -> str:
    pairs = _pairs(trained, names, OURS[0], calm=True)
    return _counted(
        pairs, lambda mine, other: mean(mine, "oscillation") < mean(other, "oscillation"),
        f"The multipliers of `{OURS[0]}` oscillate less than those of the best competitor that has any",
    )  # fmt: skip


def _counted(pairs: dict[str, Any], holds: Any, words: str) -> str:
    if not pairs:
        return ""
    lost = [name for name, pair in pairs.items() if not holds(*pair)]
    return f"{words}, on {len(pairs) - len(lost)} of {len(pairs)}{f'; not on {_listed(lost)}' if lost else ''}."


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
