"""Who won where: computed from the rows, never written by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from ergodrift.peers.measure import FLOOR, blind

NEAR, FAR = 1.5, 3.0  # times the best competitor's gap
OURS, MARGIN = "auto", "auto, margin"


def verdicts(results: dict[str, Any], measure: str = "gap") -> dict[str, dict[str, Any]]:
    """For each task: the best competitor, the best default of others, and `auto` beside them.

    Args:
        results: what `compare` returns.
        measure: "gap" or "merit", in units of x0's. Where the gap is blind, merit takes its place, and `measure` of the
            verdict says so.
    """
    names = list(results["tasks"])
    by = {name: "merit" if _blind(results, name) else measure for name in names}
    return {name: found for name in names if (found := _verdict(results, name, by[name]))}


def _blind(results: dict[str, Any], name: str) -> bool:
    """Whether somebody has no gap on a task and is far from optimal all the same, at the end or when settings were
    tried."""
    start = results["tasks"][name]["x0"]
    rows = [row for row in results["rows"] if row["task"] == name and row["status"] == "done" and "gap" in row]
    gap, merit = (np.array([np.mean(row[key]) / start[key] for row in rows]) for key in ("gap", "merit"))
    return blind(gap, merit) or any((row.get("setting") or {}).get("chosen by") == "merit" for row in rows)


def _verdict(results: dict[str, Any], name: str, measure: str) -> dict[str, Any] | None:
    start = results["tasks"][name]["x0"]
    unit = start[measure]
    rows = [row for row in results["rows"] if row["task"] == name and row["status"] == "done" and measure in row]
    gaps = {row["rival"]: float(np.mean(row[measure])) / unit for row in rows}
    mine = next((row for row in rows if row["rival"] == OURS), None)
    about = results["rivals"]
    others = {rival: gap for rival, gap in gaps.items() if rival != OURS and about[rival]["family"] != "control"}
    if mine is None or not others:
        return None
    best = min(others, key=lambda rival: others[rival])
    peers = ("library", "baseline")
    defaults = {
        rival: gap for rival, gap in others.items() if about[rival]["family"] in peers and not about[rival]["tuned"]
    }
    default = min(defaults, key=lambda rival: defaults[rival], default=None)
    careful = next((row for row in rows if row["rival"] == MARGIN), None)
    cost = next((row["seconds"] for row in rows if row["rival"].startswith("EDPP-t")), None)
    return {
        "measure": measure,
        "gap": gaps[OURS],
        "best": best,
        "best_gap": others[best],
        "ratio": _floored(gaps[OURS]) / _floored(others[best]),
        "best_default": default,
        "best_default_gap": None if default is None else defaults[default],
        "default_ratio": None if default is None else _floored(gaps[OURS]) / _floored(defaults[default]),
        "above_x0": int(np.sum(np.asarray(mine[measure]) > unit)),
        "seeds": len(mine[measure]),
        "cost": None if cost is None else mine["seconds"] / cost,
        "later": mine["later"].get("verdict"),
        "kept": _kept(mine),
        "kept_with_margin": _kept(careful or {}),
        "margin_cost": None if careful is None else _loss(careful, start) - _loss(mine, start),
        "ratios": {rival: _floored(gap) / _floored(min(gaps[best], gaps[OURS])) for rival, gap in gaps.items()},
    }


def counts(found: dict[str, dict[str, Any]]) -> dict[str, int]:
    """On how many tasks each demand holds."""
    each = found.values()
    with_default = [one for one in each if one["default_ratio"] is not None]
    return {
        "tasks": len(found),
        "near": sum(one["ratio"] <= NEAR for one in each),
        "far": sum(one["ratio"] <= FAR for one in each),
        "below_defaults": sum(one["default_ratio"] < 1 for one in with_default),
        "with_defaults": len(with_default),
        "never_above_x0": sum(one["above_x0"] == 0 for one in each),
        "won": sum(one["ratio"] <= 1 for one in each),
    }


def sentences(number: dict[str, int]) -> list[str]:
    """The same in words."""
    tasks = number["tasks"]
    return [
        f"`auto` has the smallest gap of all on {number['won']} of {tasks} tasks.",
        f"It is at most {NEAR:g} times the gap of the best competitor, tuned in hindsight, on {number['near']} of "
        f"{tasks}, and at most {FAR:g} times on {number['far']}.",
        f"It is below the default setting of every peer on {number['below_defaults']} of {number['with_defaults']}.",
        f"No order or path ends above x0 on {number['never_above_x0']} of {tasks}.",
        "Settings its user has to choose: none.",
    ]


def _kept(row: dict[str, Any]) -> int | None:
    """On how many orders or paths all constraints are certified to hold on later data."""
    return row["kept"].count("satisfied") if "kept" in row else None


def _loss(row: dict[str, Any], start: dict[str, float]) -> float:
    """In units of x0's gap."""
    return float(np.mean(row["loss"])) / start["gap"]


def _floored(gap: float) -> float:
    return max(gap, FLOOR)
