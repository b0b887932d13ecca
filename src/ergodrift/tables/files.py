"""Tables in files: CSV and Parquet, read a chunk at a time, so that a table may be larger than memory."""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROWS = 65_536  # in a chunk
BLOCK = 8 * 2**20  # bytes of a CSV file that are parsed at a time
SEPARATORS = ",;\t|"
MISSING = ["", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "#N/A", "<NA>", "?"]
SUFFIXES = {".csv": "csv", ".tsv": "csv", ".txt": "csv", ".parquet": "parquet", ".pq": "parquet"}
ADVICE = "save it as CSV in UTF-8 (iconv -f latin1 -t utf-8)"
PACKED = (".gz", ".bz2", ".zst")


class TableError(ValueError):
    """A table that cannot be used as it is; the message says why, and what to do."""


class Table:
    """A table in a CSV file (also packed, such as .csv.gz), a Parquet file, or a folder of Parquet files.

    Columns of CSV come as text, each value stored once; what they hold is for `survey` to say, from all rows.

    Args:
        path: of the file or folder.

    Attributes:
        path: of the file or folder.
        names: of the columns.
        size: in bytes, on disk.
        decimal_comma: whether numbers may be written 1,5: where columns are parted by semicolons.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.separator = ","
        if not self.path.exists():
            raise TableError(f"{self.path} does not exist{_nearby(self.path)}")
        self.kind = _kind(self.path)
        if self.kind == "csv":
            self.size = self.path.stat().st_size
            self.names = self._header()
        else:
            self._dataset = _parquet(self.path)
            self.size = sum(os.path.getsize(file) for file in self._dataset.files)
            self.names = [str(name) for name in self._dataset.schema.names]
        if twice := sorted({name for name in self.names if self.names.count(name) > 1}):
            raise TableError(f"{self.path} has more than one column {_listed(twice)}; give each a name of its own")

    @property
    def decimal_comma(self) -> bool:
        return self.kind == "csv" and self.separator == ";"

    def find(self, option: str, name: str) -> str:
        """The column of that name, which must be there."""
        if name in self.names:
            return name
        close = difflib.get_close_matches(name, self.names, n=1, cutoff=0.5)
        folded = [other for other in self.names if other.strip().lower() == name.strip().lower()]
        hint = f"did you mean {(folded or close)[0]!r}? Its" if folded or close else "its"
        raise TableError(f"{option} {name!r} is no column of {self.path}; {hint} columns are {_listed(self.names)}")

    def chunks(self, names: Sequence[str], rows: int = ROWS) -> Iterator[Any]:
        """Batches (pyarrow.RecordBatch) of exactly `rows` rows, the last one shorter, with these columns."""
        import pyarrow as pa

        waiting: list[Any] = []
        count = 0
        for batch in self._batches(list(names)):
            while batch.num_rows:
                part = batch.slice(0, rows - count)
                batch = batch.slice(part.num_rows)
                waiting.append(part)
                count += part.num_rows
                if count == rows:
                    yield _joined(pa, waiting)
                    waiting, count = [], 0
        if waiting:
            yield _joined(pa, waiting)

    def _batches(self, names: list[str]) -> Iterator[Any]:
        import pyarrow as pa

        try:
            if self.kind == "parquet":
                yield from self._dataset.to_batches(
                    columns=names, batch_size=ROWS, batch_readahead=2, fragment_readahead=1
                )
            else:
                yield from self._csv(names)
        except (pa.ArrowInvalid, OSError) as error:
            raise TableError(f"{self.path} cannot be read: {_plain(error)}") from error

    def _csv(self, names: list[str]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in self._open(names):
            yield pa.RecordBatch.from_arrays([_tidy(column) for column in batch.columns], names)

    def _open(self, names: list[str] | None) -> Any:
        import pyarrow as pa
        from pyarrow import csv

        types = {} if names is None else dict.fromkeys(names, pa.dictionary(pa.int32(), pa.string()))
        return csv.open_csv(
            pa.input_stream(str(self.path), compression="detect"),
            read_options=csv.ReadOptions(block_size=BLOCK),
            parse_options=csv.ParseOptions(delimiter=self.separator, newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                include_columns=names, column_types=types, null_values=MISSING, strings_can_be_null=True
            ),
        )

    def _header(self) -> list[str]:
        import pyarrow as pa

        try:
            with pa.input_stream(str(self.path), compression="detect") as file:
                start = file.read(65_536)
        except (pa.ArrowInvalid, OSError) as error:
            raise TableError(f"{self.path} cannot be read: {_plain(error)}") from error
        if not start.strip():
            raise TableError(f"{self.path} is empty")
        if start[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\x00" in start:
            raise TableError(f"{self.path} is no text in UTF-8; {ADVICE}, or as Parquet")
        line = start.lstrip(b"\xef\xbb\xbf").splitlines()[0].decode("utf-8", errors="replace")
        self.separator = max(SEPARATORS, key=_outside_quotes(line).count)
        try:
            names = [str(name) for name in self._open(None).schema.names]
        except UnicodeDecodeError as error:
            raise TableError(f"{self.path} is no text in UTF-8; {ADVICE}") from error
        except pa.ArrowInvalid as error:
            raise TableError(f"{self.path} cannot be read as CSV: {_plain(error)}") from error
        if all(_is_number(name) for name in names):
            raise TableError(f"{self.path} begins with {line[:60]!r}, not with names of columns; add a line with names")
        return names


def arrow_compute() -> Any:
    """pyarrow.compute, whose functions are made when it is imported: no type checker sees them."""
    return importlib.import_module("pyarrow.compute")


def _kind(path: Path) -> str:
    if path.is_dir():
        return "parquet"
    name = path.name.lower()
    for packed in PACKED:
        name = name.removesuffix(packed)
    suffix = Path(name).suffix
    if suffix not in SUFFIXES:
        with path.open("rb") as file:
            return "parquet" if file.read(4) == b"PAR1" else "csv"
    return SUFFIXES[suffix]


def _parquet(path: Path) -> Any:
    import pyarrow as pa
    from pyarrow import dataset

    if path.is_dir() and not any(path.rglob("*.parquet")):
        raise TableError(f"{path} is a folder without .parquet files")
    try:
        files = sorted(map(str, path.rglob("*.parquet"))) if path.is_dir() else str(path)
        hive = dataset.partitioning(flavor="hive")
        return dataset.dataset(files, format="parquet", partitioning=hive if path.is_dir() else None)
    except (pa.ArrowInvalid, OSError) as error:
        raise TableError(f"{path} cannot be read as Parquet: {_plain(error)}") from error


def _tidy(column: Any) -> Any:
    """Text without spaces around it; what then says that it is missing, is."""
    import pyarrow as pa

    compute = arrow_compute()
    texts = compute.utf8_trim_whitespace(column.dictionary)
    empty = compute.is_in(texts, value_set=pa.array(MISSING))
    indices = column.indices
    if compute.any(empty).as_py():
        indices = compute.if_else(compute.take(empty, indices), None, indices)
    return pa.DictionaryArray.from_arrays(indices, texts)


def _joined(pa: Any, parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    (batch,) = pa.Table.from_batches(parts).unify_dictionaries().combine_chunks().to_batches()
    return batch


def _outside_quotes(line: str) -> str:
    return "".join(line.split('"')[::2])


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True


def _nearby(path: Path) -> str:
    if not path.parent.is_dir():
        return f", nor does the folder {path.parent}"
    close = difflib.get_close_matches(path.name, os.listdir(path.parent), n=1)
    return f"; did you mean {path.with_name(close[0])}?" if close else ""


def _listed(names: Sequence[str], most: int = 12) -> str:
    shown = ", ".join(map(repr, names[:most]))
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def _plain(error: Exception) -> str:
    text = " ".join(str(error).split())[:300]
    return f"{text}; {ADVICE}" if "UTF8" in text else text
