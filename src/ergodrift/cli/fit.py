"""`ergodrift fit`: a linear model of a table that keeps constraints, and a page that says how well."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ergodrift._core.files import write_whole
from ergodrift._core.progress import Progress
from ergodrift.cli.common import UsageError, add_output, find_all, keep_others, make_room, needs, ready
from ergodrift.tables import LOSSES, Table, survey

HELP = "fit a linear model to a table, under constraints that are certified on its last rows"
DESCRIPTION = """Fit a linear model to a CSV or Parquet table, under constraints; hold out its last rows and certify the
constraints on them, with intervals that are right when rows depend on each other. What each column holds is guessed and
said. Writes model.json (for `ergodrift predict`), certificate.json and a page, index.html. Of a table larger than
memory one row in so many is used; with --stream each row is learned from once, in one pass, without tightening."""
EXAMPLES = """\
  ergodrift fit flights.csv --target late --time scheduled --sensitive carrier \\
      --constraint "demographic_parity <= 0.1"      parity over carriers, into fit-out/
  ergodrift fit loans.parquet --target default --sensitive sex age_band --constraint "equalized_odds <= 0.05"
  ergodrift fit ads.csv --target clicked --constraint "false_positive_rate <= 0.02" --constraint "mean(price) <= 3"
"""
SETTINGS = ("table", "target", "positive", "features", "exclude", "categories", "time", "sensitive", "constraint",
            "loss", "hold_out", "seed", "stream")  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    """All options of the command."""
    several: dict[str, Any] = {"nargs": "+", "action": "extend", "default": [], "metavar": "NAME"}
    parser.add_argument("table", type=Path, metavar="FILE", help="CSV, Parquet, or a folder of Parquet files")
    parser.add_argument("--target", required=True, metavar="NAME", help="the column to predict")
    parser.add_argument("--positive", metavar="VALUE", help="which of two classes rates are of (default: the last)")
    parser.add_argument("--features", help="the columns to predict it from (default: all that can be used)", **several)
    parser.add_argument("--exclude", help="columns not to use", **several)
    parser.add_argument("--categories", help="columns of numbers to take as categories", **several)
    parser.add_argument("--time", metavar="NAME", help="the column that orders the rows (default: as they stand)")
    parser.add_argument("--sensitive", help="columns whose groups are compared; no features unless named so", **several)
    parser.add_argument(
        "--constraint", action="append", default=[], metavar='"NAME <= LIMIT"', help="may be given several times"
    )
    parser.add_argument("--loss", choices=tuple(LOSSES), help="(default: logistic for classes, squared for a number)")
    parser.add_argument(
        "--hold-out",
        type=float,
        default=0.25,
        metavar="SHARE",
        help="of the rows, the last ones (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="fixes what is random (default: 0)")
    parser.add_argument(
        "--stream", action="store_true", help="learn from each row once, a chunk at a time, in one pass"
    )
    add_output(parser, "fit-out")


def resumes(options: argparse.Namespace) -> bool:
    """It begins anew."""
    return False


def run(options: argparse.Namespace) -> None:
    """The command itself."""
    needs("fit learns from tables with", "sklearn", "pyarrow", "sklearn")
    from ergodrift.report.fit import fit_page
    from ergodrift.tables.fitting import constraints_of, fit, prepare

    if not 0.05 <= options.hold_out <= 0.9:
        raise UsageError(f"--hold-out must be between 0.05 and 0.9, got {options.hold_out}")
    constraints = constraints_of(options.constraint, bool(options.sensitive))
    table = Table(options.table)
    find_all(table, options, "target", "features", "exclude", "categories", "time", "sensitive")
    settings = {name: getattr(options, name) for name in SETTINGS} | {"table": str(options.table)}
    keep_others(options.out / "certificate.json", ("settings",), settings, options.force, ("model.json", "index.html"))
    make_room(options.out)
    ready()
    progress = Progress("reading", None, "rows")
    columns = survey(table, progress=progress.update)
    progress.close()
    task = prepare(table, columns, settings, constraints)
    for line in [*task.said, *task.record.schema.said()]:
        print(line, flush=True)
    model, results = fit(task)
    print(results["text"])
    write_whole(options.out / "certificate.json", json.dumps(results, allow_nan=False))  # first: it says whose all is
    model.save(options.out / "model.json")
    write_whole(options.out / "index.html", fit_page(results))
    print(f"model: {options.out / 'model.json'}")
    print(f"report: {options.out / 'index.html'}")
