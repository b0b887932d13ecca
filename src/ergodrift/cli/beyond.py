"""`ergodrift beyond`: RDPP and WDPP beside the paper's algorithms."""

from __future__ import annotations

import argparse
import json

from ergodrift.cli.common import add_output, keep_others, make_room, needs, ready

HELP = "RDPP and WDPP beside the paper's algorithms, in tables and a figure"
DESCRIPTION = "Designs, networks and mixing times from 1 to 10,000: beyond.json, beyond.md and sweep.svg."
EXAMPLES = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """All options of the command."""
    parser.add_argument("--quick", action="store_true", help="4 seeds and shorter runs: a few minutes")
    add_output(parser, "beyond-out")


def resumes(options: argparse.Namespace) -> bool:
    """It begins anew."""
    return False


def run(options: argparse.Namespace) -> None:
    """The command itself."""
    needs("beyond draws its figure with", "plots", "matplotlib.figure")
    keep_others(options.out / "beyond.json", (), {"quick": options.quick}, options.force)
    make_room(options.out)
    from studies.beyond import beyond, markdown

    from ergodrift.experiments.reproduce import write_whole
    from ergodrift.report.figures import draw_sweep

    ready()
    results = beyond(options.quick, say=lambda line: print(line, flush=True))
    write_whole(options.out / "beyond.json", json.dumps(results))
    write_whole(options.out / "beyond.md", markdown(results))
    draw_sweep(results["sweep"], options.out / "sweep.svg")
    print(f"tables: {options.out / 'beyond.md'}")
