"""The paper's claims about its experiment, each beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ergodrift.experiments.results import Claim, Results, TableRow

# Table 2 of the paper: final values of the infeasibility of its first constraint, here number 0.
PAPER_TABLE = {
    "PD": -0.0533,
    "PD2": -0.4997,
    "DPP-T": 0.0622,
    "DPP-t": 0.0800,
    "EDPP-T": 0.2042,
    "EDPP-t": -0.0904,
    "MDPP": -0.1536,
}
OURS, BASELINES, DPPS = ("EDPP-T", "EDPP-t", "MDPP"), ("PD", "PD2", "DPP-T", "DPP-t"), ("DPP-T", "DPP-t")
WITHOUT_PD2 = ("PD", "DPP-T", "DPP-t", "EDPP-T", "EDPP-t")
NAMES = {
    "gap": "gap",
    "infeasibility_0": "infeasibility of constraint 0",
    "violation_0": "cumulative violation of constraint 0",
    "regret": "regret",
}


def table(results: Results) -> list[TableRow]:
    """Final infeasibility of constraint 0, ours beside the paper's."""
    rows: list[TableRow] = []
    for name, found in results["algorithms"].items():
        values = np.array(found["final"]["infeasibility_0"])
        spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
        rows.append({"algorithm": name, "paper": PAPER_TABLE.get(name), "mean": float(values.mean()), "std": spread})
    return rows


def claims(results: Results) -> list[Claim]:
    """Every claim of section 5 that can be measured, with a verdict: holds, does not hold, or depends.

    A claim is decided seed by seed, all algorithms having seen the same path: it holds if it is true on every seed,
    does not hold if on none, and depends on the seed otherwise; `wins` counts the seeds on which it is true.
    """

    def less(claim: str, metric: str, left: Sequence[str], right: Sequence[str]) -> Claim:
        """Everyone on the left ends below everyone on the right."""
        values = {name: _final(results, name, metric) for name in (*left, *right)}
        true = np.max([values[name] for name in left], axis=0) < np.min([values[name] for name in right], axis=0)
        return _entry(claim, metric, values, true)

    def sign(claim: str, metric: str, names: Sequence[str], sign: int) -> Claim:
        """All of them end above (+1) or below (-1) zero."""
        values = {name: _final(results, name, metric) for name in names}
        return _entry(claim, metric, values, np.all([sign * found > 0 for found in values.values()], axis=0))

    return [
        less("EDPP-T, EDPP-t and MDPP have a smaller gap than PD, PD2 and DPP", "gap", OURS, BASELINES),
        less("EDPP-T and EDPP-t have a smaller gap than DPP-T and DPP-t", "gap", ["EDPP-T", "EDPP-t"], DPPS),
        less("MDPP has a smaller gap than PD", "gap", ["MDPP"], ["PD"]),
        less("EDPP-t has a smaller infeasibility than DPP-T and DPP-t", "infeasibility_0", ["EDPP-t"], DPPS),
        less("DPP-t performs better than DPP-T", "gap", ["DPP-t"], ["DPP-T"]),
        less("EDPP-T ends with the smallest gap of ours", "gap", ["EDPP-T"], ["EDPP-t", "MDPP"]),
        less("EDPP-t ends with a smaller gap than MDPP", "gap", ["EDPP-t"], ["MDPP"]),
        less("EDPP-T is less feasible than the others", "infeasibility_0", [*BASELINES, "EDPP-t", "MDPP"], ["EDPP-T"]),
        sign("DPP-T and DPP-t end infeasible", "infeasibility_0", DPPS, 1),
        sign("EDPP-T, EDPP-t and MDPP end feasible", "infeasibility_0", OURS, -1),
        sign("EDPP-T has a positive cumulative violation", "violation_0", ["EDPP-T"], 1),
        sign("The others have a negative one", "violation_0", ["PD", "DPP-T", "DPP-t", "EDPP-t", "MDPP"], -1),
        less("EDPP-t has the smallest regret", "regret", ["EDPP-t"], ["PD", "DPP-T", "DPP-t", "EDPP-T"]),
        less("PD2 has a higher regret than the others", "regret", WITHOUT_PD2, ["PD2"]),
    ]


def _final(results: Results, name: str, metric: str) -> np.ndarray:
    return np.array(results["algorithms"][name]["final"][metric])


def _entry(claim: str, metric: str, values: dict[str, np.ndarray], true: np.ndarray) -> Claim:
    wins, seeds = int(true.sum()), len(true)
    verdict = {seeds: "holds", 0: "does not hold"}.get(wins, "depends")
    digits = "+,.0f" if max(np.abs(found).max() for found in values.values()) >= 10 else "+.4f"
    means = ", ".join(f"{name} {found.mean():{digits}}" for name, found in values.items())
    measured = f"mean final {NAMES[metric]}: {means}"
    return {"claim": claim, "measured": measured, "verdict": verdict, "wins": wins, "seeds": seeds}
