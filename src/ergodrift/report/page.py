"""The report of a reproduced experiment: one HTML page that needs nothing but a browser."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape

from ergodrift.experiments.results import AlgorithmResults, Claim, JudgedResults, TableRow
from ergodrift.report.markup import MINUS, embedded, figure, fill
from ergodrift.report.markup import number as _number
from ergodrift.report.markup import plural as _plural
from ergodrift.report.markup import table as _table
from ergodrift.report.markup import value as _value
from ergodrift.report.overlay import overlay

BADGES = {"holds": ("holds", "✓"), "does not hold": ("fails", "✕"), "depends": ("depends", "◐")}
FINALS = {
    "gap": "Optimality gap",
    "lagrangian_gap": "Lagrangian gap",
    "infeasibility_0": "Infeasibility 0",
    "infeasibility_1": "Infeasibility 1",
}
SWATCH = '<svg class="swatch" viewBox="0 0 26 8" aria-hidden="true"><path d="M0 4H26"/></svg>'


def page(results: JudgedResults, figures: dict[str, str]) -> str:
    """The whole page, with the summaries of the curves in it but not the curves of the single seeds.

    Args:
        results: what `reproduce` returns, with its `claims` and its `table`.
        figures: SVG by caption, set into the page as it is: it must be trusted.
    """
    algorithms = results["algorithms"]
    parts = {
        "summary": _summary(results),
        "claims": _claims(results["claims"]),
        "paper_table": _paper_table(results["table"]),
        "final_table": _final_table(algorithms),
        "swatch": SWATCH,
        "toggles": "\n".join(_toggle(name) for name in algorithms),
        "runs": _runs(algorithms),
        "figures": "\n".join(figure(*each) for each in figures.items()) or "<p>No figure was drawn.</p>",
        "versions": escape(", ".join(f"{name} {version}" for name, version in results["versions"].items())),
        "results": _embedded(results),
    }

    return fill("page.html", parts, results)


def _summary(results: JudgedResults) -> str:
    config, algorithms, claims = results["config"], results["algorithms"], results["claims"]
    finals = {name: _final(found, "lagrangian_gap") for name, found in algorithms.items()}
    best = min(finals, key=lambda name: finals[name][0] if math.isfinite(finals[name][0]) else math.inf)
    count = {verdict: sum(claim["verdict"] == verdict for claim in claims) for verdict in BADGES}
    return f"""
<p>All {len(algorithms)} algorithms saw the same samples: {_plural(config["seeds"], "path")} of
{config["samples"]:,} samples each, drawn from a chain with {len(config["angles"])} states, in the design
“{_value(config["design"])}”.
At the end <strong>{escape(best)}</strong> had the smallest mean Lagrangian gap of x̄, {_spread(*finals[best])}.</p>
<p>Of the {_plural(len(claims), "claim")} of the paper that can be measured, <strong>{count["holds"]} hold</strong>,
<strong>{count["does not hold"]} do not</strong>, and <strong>{count["depends"]} depend</strong> on the seed.</p>"""


def _claims(claims: Sequence[Claim]) -> str:
    rows = []
    for claim in claims:
        kind, sign = BADGES[claim["verdict"]]
        badge = f'<span class="badge {kind}"><span aria-hidden="true">{sign}</span> {escape(claim["verdict"])}</span>'
        seeds = f"{claim['wins']} of {claim['seeds']}"
        rows.append([_prose(claim["claim"]), badge, seeds, _prose(claim["measured"])])
    return _table("Claims of the paper", ["Claim", "Verdict", "Seeds", "Measured"], rows, "words claims")


def _paper_table(table: Sequence[TableRow]) -> str:
    rows = []
    for row in table:
        paper = "not reported" if row["paper"] is None else _number(row["paper"])
        rows.append([_name(row["algorithm"]), paper, _spread(row["mean"], row["std"])])
    return _table("Final infeasibility of constraint 0 at x̄", ["Algorithm", "Paper", "Here"], rows, "numbers")


def _final_table(algorithms: dict[str, AlgorithmResults]) -> str:
    rows = [[_name(name), *(_spread(*_final(found, key)) for key in FINALS)] for name, found in algorithms.items()]
    return _table("Final values at x̄", ["Algorithm", *FINALS.values()], rows, "numbers")


def _runs(algorithms: dict[str, AlgorithmResults]) -> str:
    rows = []
    for name, found in algorithms.items():
        given = ", ".join(f"{escape(key)} = {_value(value)}" for key, value in found["parameters"].items())
        rounds = round(sum(found["rounds"]) / len(found["rounds"]))
        rows.append([_name(name), given or "none", f"{rounds:,}", f"{found['seconds']:.1f}"])
    return _table("The runs", ["Algorithm", "Parameters", "Mean rounds", "Seconds"], rows, "words wide")


def _embedded(results: JudgedResults) -> str:
    """The numbers of the curves as JSON, which has no NaN: those become null, a break in the curve."""

    def finite(values: Sequence[float]) -> list[float | None]:
        return [value if math.isfinite(value) else None for value in values]

    def drawn(summary: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, list[float | None]]]:
        return {key: {part: finite(parts[part]) for part in ("mean", "low", "high")} for key, parts in summary.items()}

    algorithms = {name: drawn(found["summary"]) for name, found in results["algorithms"].items()}
    rates = {metric: overlay(results, metric) for metric in next(iter(algorithms.values()), {})}
    theory = {
        metric: {
            "theorem": found[0].theorem,
            "formula": str(found[0]).replace("-", MINUS),
            "values": finite(found[1].tolist()),
        }
        for metric, found in rates.items()
        if found
    }
    return embedded({"samples": results["samples"], "algorithms": algorithms, "theory": theory})


def _name(algorithm: str) -> str:
    return f'<span class="name" data-key="{escape(algorithm)}">{SWATCH}{escape(algorithm)}</span>'


def _toggle(algorithm: str) -> str:
    name = escape(algorithm)
    return f'<button type="button" data-toggle="{name}" aria-pressed="true">{SWATCH}{name}</button>'


def _prose(text: str) -> str:
    """Text in which no line ends inside the name of an algorithm."""
    return re.sub(r"\b[A-Z]+-[Tt]\b", r'<span class="nowrap">\g<0></span>', escape(text))


def _final(found: AlgorithmResults, metric: str) -> tuple[float, float]:
    return found["summary"][metric]["mean"][-1], found["summary"][metric]["std"][-1]


def _spread(mean: float, std: float) -> str:
    return f'<span class="nowrap">{_number(mean)} <span class="std">± {_number(std)}</span></span>'
