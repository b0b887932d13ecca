"""The tables of `beyond` as Markdown, and its figure. The figure needs matplotlib (the extra `plots`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ergodrift._core.markdown import table
from ergodrift.report.figures import STYLES

BEYOND: dict[str, tuple[str, Any]] = {"WDPP": ("#882255", (0, (5, 1))), "RDPP": ("#000000", "-")}


def tables(results: dict[str, Any]) -> str:
    """All tables, one after the other."""
    parts = []
    for part in ("designs", "tried"):
        head = [f"{count:,}" for count in results[part][0]["samples"]]
        parts.append(
            table(
                ["design", "algorithm", *head, "standard error", "worst infeasibility"],
                [[row["design"], row["algorithm"], *map(_short, row["gap"]), *_last(row)] for row in results[part]],
            )
        )
    parts.append(
        table(
            ["graph", "walk", "tau_mix", "algorithm", "gap", "standard error", "worst infeasibility"],
            [
                [row["graph"], row["walk"], row["tau_mix"], row["algorithm"], _short(row["gap"][-1]), *_last(row)]
                for row in results["networks"]
            ],
        )
    )
    names = list(dict.fromkeys(row["algorithm"] for row in results["sweep"]))
    cells = {(row["tau_mix"], row["algorithm"]): _short(row["gap"][-1]) for row in results["sweep"]}
    taus = list(dict.fromkeys(row["tau_mix"] for row in results["sweep"]))
    parts.append(table(["tau_mix", *names], [[f"{tau:,}", *(cells[tau, name] for name in names)] for tau in taus]))
    gaps = list(results["laws"][0]["gap"])
    parts.append(
        table(
            ["chain", "samples", *(f"error of {name}" for name in results["laws"][0]["errors"]), *gaps],
            [
                [row["chain"], f"{row['samples']:,}", *(f"{error:.3f}" for error in row["errors"].values())]
                + [_short(row["gap"][name]) if "gap" in row else "" for name in gaps]
                for row in results["laws"]
            ],
        )
    )
    parts.append(
        table(
            ["algorithm", "seeds", "gap", "standard error", "more than WDPP", "standard error"],
            [
                [row["algorithm"], row["seeds"], f"{row['gap'][-1]:.2e}", _short(row["standard_error"][-1]), *more]
                for row in results["streams"]
                for more in [[f"{row['more']:+.1e}", _short(row["more_error"])]]
            ],
        )
    )
    return "\n\n".join(parts) + "\n"


def _last(row: dict[str, Any]) -> list[str]:
    """Standard error and worst infeasibility at the end."""
    return [_short(row["standard_error"][-1]), f"{row['infeasibility'][-1]:+.4f}"]


def _short(value: float) -> str:
    return f"{value:.1e}"


def draw_sweep(rows: list[dict[str, Any]], path: Path) -> None:
    """The Lagrangian gap of the returned point after 300 tau samples over tau_mix, one line per algorithm."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name in dict.fromkeys(row["algorithm"] for row in rows):
        own = [row for row in rows if row["algorithm"] == name]
        colour, dashes = (STYLES | BEYOND)[name]
        taus, gaps = [row["tau_mix"] for row in own], [row["gap"][-1] for row in own]
        errors = [row["standard_error"][-1] for row in own]
        axes.errorbar(taus, gaps, errors, color=colour, linestyle=dashes, marker="o", markersize=3, label=name)
    axes.set(xscale="log", yscale="log", xlabel="mixing time", ylabel="mean Lagrangian gap after 300 mixing times")
    axes.legend(ncols=2)
    figure.savefig(path)
