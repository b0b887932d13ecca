"""`ergodrift predict`: a fitted model on the rows of another table."""

from __future__ import annotations

import argparse
import contextlib
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from ergodrift._core.files import real, replacing
from ergodrift._core.progress import Progress
from ergodrift.cli.common import UsageError, make_room, needs, ready
from ergodrift.tables import Feature, Model, Table

HELP = "predict the rows of a table with a model that `fit` wrote"
DESCRIPTION = """Predict every row of a CSV or Parquet table with a model.json, a chunk at a time: the table may be
larger than memory. Writes a column "prediction" and, where the model knows them, "probability of CLASS"; rows stay in
their order. Values that the model has not seen are counted and said."""
EXAMPLES = """\
  ergodrift predict fit-out flights-later.csv       into predictions.csv
  ergodrift predict fit-out/model.json later.parquet --keep late carrier --out later-predicted.parquet
"""
SHOWN = 5  # unknown values that are named


def add_options(parser: argparse.ArgumentParser) -> None:
    """All options of the command."""
    parser.add_argument("model", type=Path, metavar="MODEL", help="model.json, or the folder it stands in")
    parser.add_argument("table", type=Path, metavar="FILE", help="CSV, Parquet, or a folder of Parquet files")
    parser.add_argument(
        "--keep", nargs="+", action="extend", default=[], metavar="NAME", help="columns to copy beside the predictions"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("predictions.csv"),
        metavar="FILE",
        help=".csv or .parquet (default: %(default)s)",
    )
    parser.add_argument("--force", action="store_true", help="replace that file")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def resumes(options: argparse.Namespace) -> bool:
    """It begins anew."""
    return False


def run(options: argparse.Namespace) -> None:
    """The command itself."""
    needs("predict reads tables with", "sklearn", "pyarrow")
    model = Model.load(options.model)
    table = Table(options.table)
    for feature in model.schema.features:
        table.find("the model's column", feature.name)
    for name in options.keep:
        table.find("--keep", name)
        if name == "prediction" or name.startswith("probability of "):
            raise UsageError(f"--keep {name!r} would stand beside a column of the same name; rename it in {table.path}")
    if options.out.suffix not in (".csv", ".parquet"):
        raise UsageError(f"--out {options.out} must end in .csv or .parquet")
    if real(options.out) == real(options.table):
        raise UsageError(f"--out {options.out} is the table itself; pass another --out")
    if options.out.exists() and not options.force:
        raise UsageError(f"--out {options.out} is there already; pass another --out, or --force to replace it")
    make_room(options.out.parent)
    ready()
    rows, counts, unknown = write_predictions(model, table, options.keep, options.out)
    for name, found in unknown.items():
        feature = next(feature for feature in model.schema.features if feature.name == name)
        print(_said(feature, found))
    shares = ", ".join(f"{label} {counts[label] / rows:.1%}" for label in model.classes)
    print(f"{rows:,} rows predicted" + (f": {shares}" if shares else ""))
    print(f"written: {options.out}")


def write_predictions(
    model: Model, table: Table, keep: Sequence[str], out: Path
) -> tuple[int, Counter[str], dict[str, Counter[str]]]:
    """Write the file; returns how many rows, how often each class came out, and what was unknown in each column."""
    import numpy as np
    import pyarrow as pa

    needed = [feature.name for feature in model.schema.features]
    unknown: dict[str, Counter[str]] = {}
    counts: Counter[str] = Counter()
    done, progress = 0, Progress("predicting", None, "rows")
    labels = np.array(model.classes) if model.classes else None
    with _writer(out) as write:
        for chunk in table.chunks(list(dict.fromkeys([*needed, *keep]))):
            rows, found = model.schema.encode(chunk, table.decimal_comma)
            for name, times in found.items():
                unknown.setdefault(name, Counter()).update(times)
            values = model.predict(rows)
            columns: dict[str, Any] = {name: _plain(chunk.column(name)) for name in keep}
            columns["prediction"] = values if labels is None else labels[values]
            shares = model.probabilities(rows)
            if shares is not None:
                columns |= {f"probability of {label}": shares[:, k] for k, label in enumerate(model.classes)}
            write(pa.RecordBatch.from_pydict(columns))
            for number, label in enumerate(model.classes):
                counts[label] += int((values == number).sum())
            done += chunk.num_rows
            progress.update(done)
        progress.close()
        if not done:
            raise UsageError(f"{table.path} has names of columns and no rows")
    return done, counts, unknown


def _plain(column: Any) -> Any:
    import pyarrow as pa

    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


@contextlib.contextmanager
def _writer(out: Path) -> Generator[Callable[[Any], None]]:
    """A function that appends a batch to a file, which is there when all is written."""
    from pyarrow import csv, parquet

    opened: list[Any] = []
    with replacing(out) as file:

        def write(batch: Any) -> None:
            if not opened:
                make: Any = csv.CSVWriter if out.suffix == ".csv" else parquet.ParquetWriter
                opened.append(make(file, batch.schema))
            opened[0].write_batch(batch)

        yield write
        for writer in opened:
            writer.close()


def _said(feature: Feature, found: Counter[str]) -> str:
    rows = sum(found.values())
    if not feature.levels:
        return f"{feature.name}: missing in {rows:,} rows, never before; {feature.fill:.6g} stands there"
    named = ", ".join(f"{label!r} {count:,}" for label, count in found.most_common(SHOWN))
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    taken = "as one of the rare ones, “(other)”" if "(other)" in feature.levels else "as the average of those it knows"
    return f"{feature.name}: {rows:,} rows hold values the model has not seen ({named}{more}); they are taken {taken}"
