"""EDPP that estimates the mixing time as it runs, against EDPP that is told it, on the paper's problem.

`python -m studies.auto` prints the table of docs/laboratory/coverage.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from ergodrift import metrics
from ergodrift._core import markdown
from ergodrift.engine.run import run
from ergodrift.experiments.config import Config, configure
from ergodrift.experiments.reproduce import Experiment
from ergodrift.methods.algorithms import edpp


def compare(config: Config, factors: Sequence[float] = (0.3, 1.0, 3.0)) -> list[dict[str, Any]]:
    """Final Lagrangian gaps of x̄, mean over seeds, with tau_mix told (times a factor) and estimated."""
    experiment = Experiment.prepare(config)
    told = {f"told {factor:g} tau_mix": edpp(factor * config.tau_mix, config.beta) for factor in factors}
    rows = []
    for name, algorithm in {**told, "auto": edpp("auto", config.beta)}.items():
        result = run(
            algorithm,
            experiment.problem,
            experiment.source,
            x0=np.asarray(config.x0, np.float32),
            num_samples=config.samples,
            seeds=experiment.path_seeds(),
            record=1,
            paths=experiment.paths,
        )
        quality = metrics.evaluate(result, experiment.problem, experiment.source, experiment.reference)
        gap = metrics.summarise(quality.lagrangian_gap[:, -1])
        row = {"tau_mix": name, "gap": float(gap.mean), "standard_error": float(gap.standard_error)}
        if name == "auto":
            row["estimate"] = np.quantile(np.asarray(result.weights.tau_mix)[:, -1], [0, 0.5, 1]).tolist()
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The comparison as Markdown."""
    truth = next(row["gap"] for row in rows if row["tau_mix"] == "told 1 tau_mix")
    lines = []
    for row in rows:
        low, middle, high = row.get("estimate", [np.nan] * 3)
        seen = f"median {middle:.0f}, {low:.0f} to {high:.0f}" if "estimate" in row else ""
        numbers = [f"{row['gap']:.5f}", f"{row['standard_error']:.5f}", f"{row['gap'] / truth:.2f}"]
        lines.append([row["tau_mix"], *numbers, seen])
    head = ["EDPP-t", "Lagrangian gap", "standard error", "relative to the truth", "estimate at the end"]
    return markdown.table(head, lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m studies.auto", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="4 seeds and 20,000 samples")
    print(table(compare(configure(quick=parser.parse_args(arguments).quick))))


if __name__ == "__main__":
    main()
