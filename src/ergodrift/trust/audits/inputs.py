"""What people bring to an audit: labels, groups and times, in the order of time."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ergodrift._core.arrays import columns_of


class Cells(NamedTuple):
    """Groups: rows that agree in all sensitive and control features.

    Attributes:
        of: (n,) the number of each row's cell.
        keys: of each cell, values of control features and then of sensitive ones.
        names: of these features.
        controls: how many of them are control features.
    """

    of: np.ndarray
    keys: list[tuple[Any, ...]]
    names: list[str]
    controls: int

    @property
    def parents(self) -> tuple[list[tuple[Any, ...]], np.ndarray]:
        """The values of control features that occur, and which of them each cell has, (cells,); one () without."""
        levels = list(dict.fromkeys(key[: self.controls] for key in self.keys))
        return levels, np.array([levels.index(key[: self.controls]) for key in self.keys])


class Rows(NamedTuple):
    """An audit's rows in the order of time."""

    y_true: np.ndarray
    y_pred: np.ndarray
    cells: Cells
    order: np.ndarray
    notes: list[str]
    pandas: bool


def in_order(y_true: Any, y_pred: Any, sensitive: Any, control: Any, time: Any) -> Rows:
    """All of it checked and sorted by time; rows of equal time stay in the order given."""
    truth, predicted = column("y_true", y_true), column("y_pred", y_pred, wide=True)
    n = len(truth)
    if not n:
        raise ValueError("y_true has no rows")
    same_length("y_pred", predicted, n)
    features = [*named_columns("control", control), *named_columns("sensitive", sensitive)]
    for name, values in features:
        same_length(name, values, n)
    names = [name for name, _ in features]
    if len(set(names)) < len(names):
        raise ValueError(f"names of sensitive and control features must differ, got {names}")
    number = len(named_columns("control", control))
    notes = []
    order = np.arange(n)
    if time is not None:
        order, ties = sorted_by(time, n)
        if ties:
            notes.append(
                f"{ties:,} of {n:,} rows share their time with another row: these are taken in the order given"
            )
    cells = cells_of([(name, values[order]) for name, values in features], number)
    pandas = any(_is_pandas(value) for value in (y_true, y_pred, sensitive, control))
    return Rows(truth[order], predicted[order], cells, order, notes, pandas)


def column(name: str, values: Any, *, wide: bool = False) -> np.ndarray:
    """One value for each row, none missing; `wide`: or several."""
    found = np.asarray(values)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim != 1 and not (wide and found.ndim == 2):
        raise ValueError(f"{name} must have one value a row, (n,), got shape {found.shape}")
    missing = missing_in(found)
    if missing.any():
        raise ValueError(
            f"{name} has {int(missing.sum()):,} missing values, the first in row {int(np.argmax(missing))}: drop these "
            "rows, or fill them in, first"
        )
    return found


def missing_in(values: np.ndarray) -> np.ndarray:
    """Which rows have None, NaN or NaT."""
    found = np.zeros(values.shape, dtype=bool)
    if values.dtype.kind in "fc":
        found[:] = np.isnan(values)
    elif values.dtype.kind in "mM":
        found[:] = np.isnat(values)
    elif values.dtype.kind == "O":
        found.ravel()[:] = [_is_missing(value) for value in values.ravel()]
    return found if found.ndim == 1 else np.any(found, axis=1)


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def same_length(name: str, values: np.ndarray, n: int) -> None:
    """As many rows as y_true."""
    if len(values) != n:
        raise ValueError(f"{name} has {len(values):,} rows, y_true has {n:,}")


def named_columns(kind: str, features: Any) -> list[tuple[str, np.ndarray]]:
    """Features by name: of a table, dict, series, list or array; those without a name are numbered, as in fairlearn."""
    if features is None:
        if kind == "sensitive":
            raise TypeError("sensitive_features must be given: one value a row, or a table of several")
        return []
    features = columns_of(features)
    if isinstance(features, Mapping):
        found = [(str(name), np.asarray(values)) for name, values in features.items()]
    else:
        array, own = np.asarray(features), getattr(features, "name", None)
        parts = array.T if array.ndim == 2 else [array]
        numbered = [f"{kind}_feature_{number}" for number in range(len(parts))]
        found = list(zip([str(own)] if own is not None else numbered, parts, strict=True))
    if not found:
        raise ValueError(f"{kind}_features has no columns")
    return [(name, column(f"{kind}_features[{name!r}]", values)) for name, values in found]


def cells_of(features: list[tuple[str, np.ndarray]], controls: int) -> Cells:
    """The cells that occur, in the order of their values."""
    code, levels = np.zeros(len(features[0][1]), dtype=np.int64), []
    for _, values in features:
        found, of = coded(values)
        levels.append(found)
        code = code * len(found) + of
    present, of = np.unique(code, return_inverse=True)
    keys = np.stack(np.unravel_index(present, [len(found) for found in levels]), axis=1)
    named = [tuple(levels[feature][number] for feature, number in enumerate(key)) for key in keys]
    return Cells(of, named, [name for name, _ in features], controls)


def coded(values: np.ndarray) -> tuple[list[Any], np.ndarray]:
    """The different values in order, and the number of each row's."""
    try:
        found, of = np.unique(values, return_inverse=True)
        return found.tolist(), of
    except TypeError:  # of several kinds, which have no order
        found = sorted(set(values.tolist()), key=str)
        numbers = {value: number for number, value in enumerate(found)}
        return found, np.array([numbers[value] for value in values.tolist()])


def sorted_by(time: Any, n: int) -> tuple[np.ndarray, int]:
    """The order of time, and how many rows share theirs with another."""
    times = column("time", time)
    same_length("time", times, n)
    if times.dtype.kind in "SU" or (times.dtype.kind == "O" and isinstance(times[0], str)):
        try:
            times = times.astype(str).astype("datetime64[ns]")
        except ValueError:
            raise TypeError(
                f"time must be numbers or dates, got text such as {str(times[0])!r}: turn it into dates first"
            ) from None
    order = np.argsort(times, kind="stable")
    ordered = times[order]
    same = ordered[1:] == ordered[:-1]
    return order, int(np.count_nonzero(np.append(same, False) | np.append(False, same)))


def _is_pandas(value: Any) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.Series | pandas.DataFrame | pandas.Index)
