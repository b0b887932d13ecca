"""A table as people have it, made ready: groups by name, rows in the order of time, features in units of order 1."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse

from ergodrift.data.timing import Timing, checked_times
from ergodrift.sklearn.cells import Part
from ergodrift.sklearn.constraints import Constraint, MeanBelow, Plain

MOST_BYTES = 2**32  # of a sparse table, made dense


class Groups(NamedTuple):
    """Groups of rows, by name.

    Attributes:
        names: of the groups; those of several sensitive features are joined by ", ".
        keys: the values that each stands for.
    """

    names: list[str]
    keys: list[tuple[Any, ...]]

    def numbers(self, features: Any, count: int) -> tuple[Groups, np.ndarray]:
        """The number of each row's group, and the groups with those that are new at the end, as they appear."""
        codes, keys = sensitive_values(features, count)
        known = {key: number for number, key in enumerate(self.keys)}
        places = np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)
        new = list(known)[len(self.keys) :]
        return Groups([*self.names, *(", ".join(map(str, key)) for key in new)], list(known)), places[codes]


def sensitive_values(features: Any, count: int) -> tuple[np.ndarray, list[tuple[Any, ...]]]:
    """The number of each row's values of one or several sensitive features, and these values as they appear."""
    if isinstance(features, str):
        raise TypeError(f"sensitive_features must be a column, not its name: pass X[{features!r}]")
    frame = features if isinstance(features, pd.DataFrame) else pd.DataFrame(_columns(features))
    if len(frame) != count:
        raise ValueError(f"sensitive_features must have one row for each of {count} rows of X, got {len(frame)}")
    missing = frame.isna()
    if missing.to_numpy().any():
        row, column = np.argwhere(missing.to_numpy())[0]
        raise ValueError(
            f"sensitive_features has a missing value in row {row} ({frame.columns[column]!r}): "
            "fill it, or give such rows a group of their own"
        )
    codes, keys = pd.MultiIndex.from_frame(frame).factorize()
    return np.asarray(codes), [tuple(key) for key in keys]


def _columns(features: Any) -> Any:
    """What is no table of pandas as columns."""
    if isinstance(features, pd.Series | dict):
        return {"": features} if isinstance(features, pd.Series) else features
    array = np.asarray(features, dtype=object)
    if array.ndim not in (1, 2):
        raise ValueError(f"sensitive_features must be one column or several, got shape {array.shape}")
    return dict(enumerate(array.T.reshape(-1, len(array))))


def ordered(time: Any, count: int) -> tuple[Timing, np.ndarray]:
    """What is to be said about the times of the rows, and the order that sorts them."""
    if isinstance(time, str):
        raise TypeError(f"time must be a column, not its name: pass time=X[{time!r}], and leave it out of X")
    times = checked_times("time", time)
    if len(times) != count:
        raise ValueError(f"time must hold one time for each of {count} rows of X, got {len(times)}")
    return Timing.of(times)


def costs(constraints: Sequence[Constraint | Plain], X: Any, y: Any) -> dict[int, np.ndarray]:
    """What rows cost, for each budget, by the number of the constraint."""
    found: dict[int, np.ndarray] = {}
    for number, asked in enumerate(constraints):
        if isinstance(asked, MeanBelow):
            found[number] = _cost(asked, X, y)
    return found


def _cost(asked: MeanBelow, X: Any, y: Any) -> np.ndarray:
    X = X if hasattr(X, "shape") else np.asarray(X)
    what, count = asked.what, X.shape[0]
    if isinstance(what, bool) or not (isinstance(what, str | int | float | np.integer) or callable(what)):
        raise TypeError(f"MeanBelow: what must be a column, a number or a function of (X, y), got {what!r}")
    if isinstance(what, float):
        return np.full(count, what)
    if callable(what):
        values = what(X, y)
    elif isinstance(what, str):
        if not hasattr(X, "columns") or what not in X.columns:
            known = f"its columns are {list(X.columns)[:20]}" if hasattr(X, "columns") else "X has no column names"
            raise ValueError(f"MeanBelow: {what!r} is no column of X; {known}")
        values = X[what]
    else:
        if not -X.shape[1] <= what < X.shape[1]:
            raise ValueError(f"MeanBelow: X has {X.shape[1]} columns, and none of number {what}")
        values = X.iloc[:, what] if hasattr(X, "iloc") else X[:, [what]] if scipy.sparse.issparse(X) else X[:, what]
    values = values.toarray().ravel() if scipy.sparse.issparse(values) else np.asarray(values, dtype=float)
    if values.shape != (count,) or not np.isfinite(values).all():
        raise ValueError(f"MeanBelow: costs must be finite, one for each of {count} rows, got shape {values.shape}")
    return values


def refuse_text(X: Any) -> None:
    """Columns that hold no numbers, by name."""
    if isinstance(X, pd.DataFrame):
        bad = [name for name, kind in X.dtypes.items() if not pd.api.types.is_numeric_dtype(kind)]
        text = [name for name in bad if not _holds_numbers(X[name])]
        if text:
            raise ValueError(
                f"X: column {', '.join(map(repr, text[:5]))} holds {X[text[0]].dtype} values, not numbers: encode "
                "categories by sklearn.preprocessing.OneHotEncoder (in a Pipeline with make_column_transformer), turn "
                "dates into numbers, or leave the column out"
            )


def _holds_numbers(column: Any) -> bool:
    """Whether a column of objects holds numbers after all."""
    if isinstance(column.dtype, pd.CategoricalDtype) or column.dtype.kind in "mM":
        return isinstance(column.dtype, pd.CategoricalDtype) and pd.api.types.is_numeric_dtype(column.cat.categories)
    return all(isinstance(value, int | float | np.number) for value in column.head(1000))


def target_units(part: Part) -> tuple[float, float]:
    """Standard deviation and mean of the target of a regression; 1 for a target that is constant."""
    centre = float(np.average(part.y, weights=part.weights))
    spread = float(np.sqrt(np.average((part.y - centre) ** 2, weights=part.weights)))
    return (spread if spread > 1e-12 * abs(centre) else 1.0), centre


def together(part: Part) -> Part:
    """Equal rows put together, and all in an order of their own: weights then mean what they say, as often as a row is
    there. For rows whose order does not matter."""
    dense = part.X.toarray() if scipy.sparse.issparse(part.X) else part.X
    group = np.zeros(len(part)) if part.groups is None else part.groups
    every = np.column_stack([dense, part.y, group, *part.costs.values()])
    _, first, which = np.unique(every, axis=0, return_index=True, return_inverse=True)
    weights = np.bincount(which.ravel(), part.weights)
    return dataclasses.replace(part.cut(first), weights=weights)


class Scaling(NamedTuple):
    """Features in units of order 1: (x - mean) / scale, with a column of ones at the end.

    Attributes:
        mean: (d,); 0 for sparse tables.
        scale: (d,); a column that is constant has scale 1, and coefficient 0.
        constant: (d,) whether it is.
        width: columns of the design, filled up with zeros.
    """

    mean: np.ndarray
    scale: np.ndarray
    constant: np.ndarray
    width: int

    @staticmethod
    def of(X: Any, weights: np.ndarray) -> Scaling:
        """Of the rows of the fit."""
        share = weights / weights.sum()
        if scipy.sparse.issparse(X):
            largest = abs(X).max(axis=0).toarray().ravel()
            unit = np.where(largest > 0, largest, 1.0)
            held = X @ scipy.sparse.diags_array(1 / unit)
            first, second = share @ held, share @ held.multiply(held)
            spread = unit * np.sqrt(np.maximum(np.asarray(second).ravel() - np.asarray(first).ravel() ** 2, 0))
            mean = np.zeros(X.shape[1])
            constant = largest == 0
        else:
            # In units of the largest value: squares of what a float can hold may not be floats.
            largest = np.abs(X).max(axis=0, initial=0)
            unit = np.where(largest > 0, largest, 1.0)
            held = X / unit
            middle = share @ held
            spread = unit * np.sqrt(share @ np.square(held - middle))
            mean = unit * middle
            constant = np.ptp(X, axis=0) == 0
        rounding = 1e-12 * np.maximum(largest, 0)
        constant |= spread <= rounding
        return Scaling(mean, np.where(constant, 1.0, spread), constant, -(-(X.shape[1] + 1) // 8) * 8)

    def design(self, X: Any, kind: Any) -> np.ndarray:
        """(n, width) with ones in the column after the features."""
        count, d = X.shape
        if scipy.sparse.issparse(X) and count * self.width * np.dtype(kind).itemsize > MOST_BYTES:
            raise ValueError(
                f"X is sparse, {count:,} x {d:,}, and too large for memory as the rows of a solver: pass fewer "
                "columns (SelectKBest, TruncatedSVD), or parts of the rows to partial_fit"
            )
        out = np.zeros((count, self.width), dtype=kind)
        dense = X.toarray() if scipy.sparse.issparse(X) else X
        out[:, :d] = np.where(self.constant, 0.0, (dense - self.mean) / self.scale)
        out[:, d] = 1
        return out

    def coefficients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(d[, K]) and () or (K,): what to multiply the user's own columns by, and what to add."""
        d = len(self.mean)
        scale = self.scale if x.ndim == 1 else self.scale[:, None]
        constant = self.constant if x.ndim == 1 else self.constant[:, None]
        coef = np.where(constant, 0.0, x[:d] / scale)
        return coef, x[d] - self.mean @ coef
