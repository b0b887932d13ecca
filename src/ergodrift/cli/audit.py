"""`ergodrift audit`: logged predictions of any model, group by group, with intervals for dependent rows."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ergodrift._core.files import write_whole
from ergodrift._core.progress import Progress
from ergodrift.cli.common import UsageError, add_output, find_all, keep_others, make_room, needs, ready
from ergodrift.tables import Table, survey

HELP = "compare groups in logged predictions, with intervals that are right for dependent rows"
DESCRIPTION = """Compare groups in a table of logged predictions, of any model: each metric in each group, differences
and ratios, with intervals that hold together when rows depend on each other, and a verdict for each --limit. Writes
audit.json and a page, index.html. The exit code is 0 whatever the verdicts; with --check it is 3 unless all limits are
satisfied. Tables may be larger than memory: of each row a few numbers are kept."""
EXAMPLES = """\
  ergodrift audit log.csv --target late --prediction said --sensitive carrier --time scheduled \\
      --limit "demographic_parity_difference <= 0.1"    a verdict, into audit-out/
  ergodrift audit log.parquet --target default --prediction score --threshold 0.5 --sensitive sex age_band \\
      --limit "selection_rate_ratio >= 0.8" --limit "accuracy >= 0.7" --check
"""
SETTINGS = (
    "table",
    "target",
    "prediction",
    "positive",
    "threshold",
    "sensitive",
    "time",
    "metric",
    "limit",
    "confidence",
)
UNKEPT = 3  # the exit code of --check where a limit is not certified to hold


def add_options(parser: argparse.ArgumentParser) -> None:
    """All options of the command."""
    parser.add_argument("table", type=Path, metavar="FILE", help="CSV, Parquet, or a folder of Parquet files")
    parser.add_argument("--target", required=True, metavar="NAME", help="the column of what came true")
    parser.add_argument("--prediction", required=True, metavar="NAME", help="the column of what was predicted")
    parser.add_argument(
        "--sensitive",
        required=True,
        nargs="+",
        action="extend",
        metavar="NAME",
        help="columns whose groups are compared",
    )
    parser.add_argument("--time", metavar="NAME", help="the column that orders the rows (default: as they stand)")
    parser.add_argument("--positive", metavar="VALUE", help="which of two classes rates are of (default: the last)")
    parser.add_argument("--threshold", type=float, metavar="T", help="predictions are scores: positive above this")
    parser.add_argument(
        "--metric", nargs="+", action="extend", default=[], metavar="NAME",
        help="such as accuracy, selection_rate, true_positive_rate, mean_absolute_error (default: those of the limits)",
    )  # fmt: skip
    parser.add_argument(
        "--limit", action="append", default=[], metavar='"NAME <= NUMBER"', help="may be given several times"
    )
    parser.add_argument("--confidence", type=float, default=0.95, metavar="P", help="(default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="exit with 3 unless every limit is certified to hold")
    add_output(parser, "audit-out")


def resumes(options: argparse.Namespace) -> bool:
    """It begins anew."""
    return False


def run(options: argparse.Namespace) -> int:
    """The command itself."""
    needs("audit reads tables with", "sklearn", "pyarrow")
    from ergodrift.report.audit import audit_page, limit_lines
    from ergodrift.tables.auditing import audit_table

    if not 0.5 < options.confidence < 1:
        raise UsageError(f"--confidence must be between 0.5 and 1, got {options.confidence}")
    if options.check and not options.limit:
        raise UsageError("--check has nothing to check: pass --limit")
    table = Table(options.table)
    settings = {name: getattr(options, name) for name in SETTINGS} | {"table": str(options.table)}
    wanted = find_all(table, options, "target", "prediction", "sensitive", "time")
    keep_others(options.out / "audit.json", ("settings",), settings, options.force, ("index.html",))
    make_room(options.out)
    ready()
    progress = Progress("reading", None, "rows")
    columns = survey(table, wanted, progress.update)
    progress.close()
    found, results = audit_table(table, columns, settings)
    for line in results["data"]["said"]:
        print(line)
    print(found)
    for line in limit_lines(results["limits"]):
        print(line)
    write_whole(options.out / "audit.json", json.dumps(results, allow_nan=False))
    write_whole(options.out / "index.html", audit_page(results))
    print(f"report: {options.out / 'index.html'}")
    kept = all(limit["verdict"] == "satisfied" for limit in results["limits"])
    return UNKEPT if options.check and not kept else 0
