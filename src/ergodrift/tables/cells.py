"""Columns of a chunk as numbers, times or labels, whether they come as text or typed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ergodrift.tables.files import arrow_compute

YES, NO = frozenset({"true", "yes", "t", "y"}), frozenset({"false", "no", "f", "n"})
MISSING = "(missing)"
SECOND = 1_000_000  # in units of a time
LOOKED_AT = 1000  # different cells, to tell what most of them are


def numbers(column: Any, decimal_comma: bool = False) -> np.ndarray | None:
    """A column (pyarrow.Array) as float64 with NaN where a value is missing; None where some cell is no number."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        return _looked_up(numbers(column.dictionary, decimal_comma), column)
    kind = column.type
    if _is_text(kind):
        column = arrow_compute().replace_substring(column, ",", ".") if decimal_comma else column
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        return None
    try:
        found = column.cast(pa.float64(), safe=False)
    except pa.ArrowInvalid:
        return None
    return found.to_numpy(zero_copy_only=False)


def stray(column: Any, decimal_comma: bool = False) -> str:
    """The first cell of a column of text that is no number, where most are; empty where there is none."""
    import pyarrow as pa

    values = (column.dictionary if pa.types.is_dictionary(column.type) else column.unique()).drop_null()
    if not _is_text(values.type):
        return ""
    odd = [text for text in values.to_pylist()[:LOOKED_AT] if spelt(text, True, decimal_comma) == text.strip()]
    odd = [text for text in odd if numbers(pa.array([text]), decimal_comma) is None]
    return odd[0] if odd and 2 * len(odd) < min(len(values), LOOKED_AT) else ""


def times(column: Any) -> np.ndarray | None:
    """A column as seconds since 1970, NaN where a value is missing; None where some cell is no date or time."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        return _looked_up(times(column.dictionary), column)
    if pa.types.is_date(kind):
        return _seconds(column.cast(pa.timestamp("us")))
    if pa.types.is_timestamp(kind):
        return _seconds(column.cast(pa.timestamp("us", kind.tz), safe=False))
    for zone in (None, "UTC") if _is_text(kind) else ():
        try:
            return _seconds(column.cast(pa.timestamp("us", zone)))
        except pa.ArrowInvalid:
            continue
    return None


def coded(column: Any, of_numbers: bool = False, decimal_comma: bool = False) -> tuple[np.ndarray, list[str]]:
    """A column as codes (n,) and the labels they stand for; missing cells have the label `MISSING`.

    Args:
        column: pyarrow.Array.
        of_numbers: labels are numbers: 1, 1.0 and 01 are one label.
        decimal_comma: numbers may be written 1,5.
    """
    import pyarrow as pa

    found = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    texts = [spelt(text, of_numbers, decimal_comma) for text in found.dictionary.cast(pa.string()).to_pylist()]
    labels = list(dict.fromkeys([*texts, MISSING]))
    place = {label: number for number, label in enumerate(labels)}
    table = np.array([*(place[text] for text in texts), place[MISSING]])
    return table[indices(found)], labels


def spelt(text: str | None, of_numbers: bool, decimal_comma: bool = False) -> str:
    """A label in the one way in which it is written here.

    >>> spelt("01", True), spelt("1,50", True, decimal_comma=True), spelt(" UA", False), spelt(None, False)
    ('1', '1.5', 'UA', '(missing)')
    """
    if text is None:
        return MISSING
    text = text.strip()
    if not of_numbers:
        return text
    try:
        value = float(text.replace(",", ".") if decimal_comma else text)
    except ValueError:
        return text
    if not math.isfinite(value):
        return MISSING
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def truth(label: str, digits: bool = False) -> float:
    """1 for true, 0 for false, NaN for neither; with `digits`, 1 and 0 say so too."""
    word = label.lower()
    if digits and word in ("0", "1"):
        return float(word)
    return 1.0 if word in YES else 0.0 if word in NO else math.nan


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _seconds(column: Any) -> np.ndarray:
    import pyarrow as pa

    whole = column.cast(pa.int64())
    found = whole.fill_null(0).to_numpy(zero_copy_only=False) / SECOND
    return np.where(whole.is_null().to_numpy(zero_copy_only=False), np.nan, found)


def indices(column: Any) -> np.ndarray:
    """Places in the dictionary; one past its end for missing cells."""
    return column.indices.fill_null(len(column.dictionary)).to_numpy(zero_copy_only=False)


def _looked_up(values: np.ndarray | None, column: Any) -> np.ndarray | None:
    return None if values is None else np.append(values, np.nan)[indices(column)]
