"""`ergodrift reproduce`: section 5 of the paper end to end."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

from ergodrift._core.files import write_whole
from ergodrift.cli.common import UsageError, add_output, keep_others, make_room, needs, ready
from ergodrift.experiments.config import DESIGNS, Config, configure
from ergodrift.experiments.results import JudgedResults

HELP = "run section 5 of the paper end to end and write a report"
DESCRIPTION = "Run section 5 of Kim and Lee end to end: eight algorithms on the same paths, with a report."
EXAMPLES = """\
  ergodrift reproduce                               the paper's experiment, 20 seeds, into reproduce-out/
  ergodrift reproduce --quick --out /tmp/look       a first look in under a minute
  ergodrift reproduce --design wide --seeds 40      clusters rotated by 45 degrees, 40 seeds
  ergodrift reproduce --config mine.toml            any field from a TOML file, such as: p = 0.01
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """All options of the command."""
    parser.add_argument(
        "--design", choices=tuple(DESIGNS), default="default", help="which setup (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=int, metavar="K", help="how many independent paths (default: 20)")
    parser.add_argument("--samples", type=int, metavar="N", help="samples each algorithm sees (default: 101562)")
    parser.add_argument("--seed", type=int, metavar="S", help="fixes everything, data and paths (default: 0)")
    parser.add_argument("--quick", action="store_true", help="4 seeds and 20,000 samples: under a minute")
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with any field of the configuration")
    add_output(parser, "reproduce-out")


def resumes(options: argparse.Namespace) -> bool:
    """Finished algorithms are kept."""
    return True


def run(options: argparse.Namespace) -> None:
    """The command itself."""
    try:
        config = configure(
            options.design,
            quick=options.quick,
            file=options.config,
            seeds=options.seeds,
            samples=options.samples,
            seed=options.seed,
        )
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
    needs("reproduce draws its figures with", "plots", "matplotlib.figure")
    keep_others(options.out / "results.json", ("config",), dataclasses.asdict(config), options.force, ("index.html",))
    make_room(options.out)
    import jax

    with contextlib.suppress(RuntimeError):  # of a program that has started JAX before it calls this
        jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)  # seeds are spread over all cores
    write_report(config, options.out, log=lambda line: print(line, flush=True))


def write_report(config: Config, out: Path, log: Callable[[str], None] = print) -> JudgedResults:
    """Run the experiment and write results.json, the figures and index.html into a folder; returns the results."""
    # Imported here, so that --help and wrong usage answer at once.
    from ergodrift.experiments.claims import claims, table
    from ergodrift.experiments.reproduce import Experiment, reproduce
    from ergodrift.report.figures import draw
    from ergodrift.report.page import page

    ready()
    fields = ", ".join(f"{name}={value}" for name, value in vars(config).items())
    log(f"configuration: {fields}")
    found = reproduce(config, parts=out / ".finished", log=log)
    results: JudgedResults = {**found, "claims": claims(found), "table": table(found)}
    for line in summary(results):  # before anything is written: a full disk does not take it away
        log(line)
    write_whole(out / "results.json", json.dumps(results))
    figures = out / "figures"
    figures.mkdir(exist_ok=True)
    draw(results, Experiment.rows_of(config), figures)
    captions = {"Data points by state and label, in the paper's colours": (figures / "data.svg").read_text()}
    write_whole(out / "index.html", page(results, captions))
    log(f"report: {out / 'index.html'}")
    return results


def summary(results: JudgedResults) -> list[str]:
    """A compact table of how each algorithm ended, and of the claims."""
    lines = [
        "",
        f"{'':8}{'gap':>11}{'Lagrangian':>12}{'constraint 0':>14}{'(paper)':>9}{'constraint 1':>14}{'regret':>10}",
    ]
    paper = {row["algorithm"]: row["paper"] for row in results["table"]}
    for name, found in results["algorithms"].items():
        final = {metric: sum(values) / len(values) for metric, values in found["final"].items()}
        beside = "" if paper[name] is None else f"{paper[name]:+.4f}"
        lines.append(
            f"{name:8}{final['gap']:+11.4f}{final['lagrangian_gap']:12.5f}{final['infeasibility_0']:+14.4f}"
            f"{beside:>9}{final['infeasibility_1']:+14.4f}{final['regret']:10.1f}"
        )
    lines += [
        "",
        *(f"{entry['verdict']:14} {entry['claim']} ({entry['wins']}/{entry['seeds']})" for entry in results["claims"]),
    ]
    return lines
