"""How columns become numbers: guessed from a survey, said in words, kept in JSON, the same for every later table."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ergodrift.tables import cells
from ergodrift.tables.files import TableError
from ergodrift.tables.survey import Column

MOST_CATEGORIES = 50  # of a column that nobody named; those that were named have as many columns as they need, up to:
MOST_NAMED = 300
RARE, RARE_SHARE = 10, 1 / 2000  # of rows, below which a category has no column of its own
OTHER = "(other)"
NUMBER, TRUTH, TIME, CATEGORY = "number", "true or false", "time", "category"


@dataclasses.dataclass(frozen=True)
class Feature:
    """One column of the table as one or more columns of numbers.

    Attributes:
        name: of the column.
        kind: "number", "true or false" (1 and 0), "time" (days since 1970) or "category" (one column of 0 and 1 each).
        fill: what stands where a number is missing; there is then a column "NAME is missing" beside it.
        has_missing: whether there is that column.
        levels: of a category, from the most common on; the last may be "(other)", all rare ones together.
        of_numbers: whether the levels are numbers.
        means, stds: of each column of numbers, over the rows that were looked at.
    """

    name: str
    kind: str
    fill: float = 0.0
    has_missing: bool = False
    levels: tuple[str, ...] = ()
    of_numbers: bool = False
    means: tuple[float, ...] = ()
    stds: tuple[float, ...] = ()

    @property
    def names(self) -> list[str]:
        """Of the columns of numbers."""
        if self.kind == CATEGORY:
            return [f"{self.name} = {level}" for level in self.levels]
        shown = f"{self.name} (days)" if self.kind == TIME else self.name
        return [shown, f"{self.name} is missing"] if self.has_missing else [shown]

    def encode(self, column: Any, decimal_comma: bool, out: np.ndarray) -> Counter[str]:
        """Write a column (pyarrow.Array) into `out`, (n, len(names)); returns how often each unknown label occurs."""
        if self.kind == CATEGORY:
            codes, labels = cells.coded(column, self.of_numbers, decimal_comma)
            known = {level: number for number, level in enumerate(self.levels)}
            other = known.get(OTHER, -1)
            place = np.array([known.get(label, other) for label in labels])[codes]
            rows = np.flatnonzero(place >= 0)
            out[:] = 0.0
            out[rows, place[rows]] = 1.0
            times = np.bincount(codes, minlength=len(labels))
            return Counter({
                label: int(count) for label, count in zip(labels, times, strict=True) if count and label not in known
            })  # fmt: skip
        values = self._numbers(column, decimal_comma)
        missing = np.isnan(values)
        out[:, 0] = np.where(missing, self.fill, values)
        if self.has_missing:
            out[:, 1] = missing
            return Counter()
        return Counter({cells.MISSING: int(missing.sum())} if missing.any() else {})

    def _numbers(self, column: Any, decimal_comma: bool) -> np.ndarray:
        if self.kind == TRUTH:
            codes, labels = cells.coded(column)
            return np.array([cells.truth(label) for label in labels])[codes]
        values = cells.numbers(column, decimal_comma) if self.kind == NUMBER else cells.times(column)
        if values is None:
            raise TableError(f"column {self.name!r} held {self.kind}s when the model was fitted; now some cells do not")
        if np.isinf(values).any():
            raise TableError(f"column {self.name!r} holds infinite numbers; mend or remove those rows")
        return values if self.kind == NUMBER else values / 86_400


@dataclasses.dataclass(frozen=True)
class Schema:
    """How a table becomes a matrix of numbers.

    Attributes:
        features: the columns of the table that are used.
        left_out: why each other column is not, by name.
    """

    features: tuple[Feature, ...]
    left_out: dict[str, str]

    @property
    def names(self) -> list[str]:
        """Of the columns of the matrix."""
        return [name for feature in self.features for name in feature.names]

    def encode(self, chunk: Any, decimal_comma: bool, dtype: Any = np.float64) -> tuple[np.ndarray, dict[str, Counter]]:
        """A chunk (pyarrow.RecordBatch) as a matrix, and what the schema does not know: counts by column and label."""
        out = np.empty((chunk.num_rows, len(self.names)), dtype)
        unknown: dict[str, Counter] = {}
        first = 0
        for feature in self.features:
            width = len(feature.names)
            found = feature.encode(chunk.column(feature.name), decimal_comma, out[:, first : first + width])
            first += width
            if found:
                unknown[feature.name] = found
        return out, unknown

    def centred(self, coef: np.ndarray, intercept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same model with effects of a category that average to 0 over the rows looked at.

        The columns of a category add up to 1, so a constant may move between them and the intercept. Now all zeros, the
        code of an unknown category, means the average.
        """
        coef, intercept = np.array(coef, float), np.array(intercept, float)
        first = 0
        for feature in self.features:
            part = slice(first, first + len(feature.names))
            first = part.stop
            if feature.kind == CATEGORY:
                middle = coef[..., part] @ np.asarray(feature.means)
                coef[..., part] -= middle[..., None]
                intercept += middle
        return coef, intercept

    def listed(self) -> list[tuple[str, str]]:
        """Each column of the table and what it is taken as."""
        left = [(name, f"left out, {why}") for name, why in self.left_out.items()]
        return [*((feature.name, _said(feature)) for feature in self.features), *left]

    def said(self) -> list[str]:
        """The same in lines."""
        return [f"{name or '(no name)'}: {what}" for name, what in self.listed()]

    def to_json(self) -> dict[str, Any]:
        """Plain lists and dicts."""
        return {"features": [dataclasses.asdict(feature) for feature in self.features], "left_out": self.left_out}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Schema:
        """What `to_json` gave."""
        fields = {field.name for field in dataclasses.fields(Feature)}
        features = []
        for given in content["features"]:
            if set(given) != fields or given["kind"] not in (NUMBER, TRUTH, TIME, CATEGORY):
                raise ValueError(f"a feature has the fields {sorted(given)}")
            listed: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
            }
            features.append(Feature(**listed))
        return cls(tuple(features), dict(content["left_out"]))


def guess(columns: Iterable[Column], named: Sequence[str] = (), categories: Sequence[str] = ()) -> Schema:
    """How to use these columns.

    Args:
        columns: what a survey found.
        named: those the user asked for by name: dates become days, and many categories are no reason to leave them out.
        categories: columns of numbers that are to be taken as categories.
    """
    features: list[Feature] = []
    left_out: dict[str, str] = {}
    for column in columns:
        asked = column.name in named or column.name in categories
        if why := _useless(column, asked):
            left_out[column.name] = why
        else:
            features.append(_feature(column, column.name in categories))
    return Schema(tuple(features), left_out)


def _useless(column: Column, asked: bool) -> str:
    """Why a column is not used; empty where it is."""
    counts = column.counts
    if not column.there:
        return "it is empty"
    if column.infinite and column.is_number:
        return ""  # and is refused by name
    if column.is_constant and not (column.missing and column.is_number):
        (value,) = counts or [f"{column.least:g}"]
        return f"it is always {value!r}" + (" or missing" if column.missing else "")
    if column.is_number:
        if asked:
            return ""
        if not column.name:
            return "it has no name"
        return "it counts the rows" if column.is_row_number and column.rows > 2 else ""
    if column.is_time:
        return "" if asked else "it holds dates or times; name it in --time, or in --features to use it as a number"
    many = counts is None or (len(counts) > min(MOST_CATEGORIES, max(column.there / 2, 20)) and not asked)
    if column.stray and many:
        return f"most of its cells are numbers, but not {column.stray!r}: mend such cells, or leave them empty"
    if counts is None:
        return "it has more than 1,000 different values, as names and identifiers do"
    if len(counts) > MOST_CATEGORIES and not asked:
        return f"it has {len(counts)} different values; name it in --features to use it as a category"
    if len(counts) > column.there / 2 and column.there > 20 and not asked:
        return f"it has {len(counts)} different values in {column.there:,} rows, as names and identifiers do"
    return ""


def _feature(column: Column, as_category: bool) -> Feature:
    gaps = column.missing / column.rows
    if column.infinite:
        raise TableError(
            f"column {column.name!r} holds {column.infinite:,} infinite numbers; mend or remove those rows"
        )
    if (column.is_number or column.is_time) and not as_category:
        day = 1.0 if column.is_number else 86_400.0
        shares, spread = (column.mean / day, gaps), (column.std / day * np.sqrt(1 - gaps), _spread(gaps))
        kind = NUMBER if column.is_number else TIME
        return _with_gaps(Feature(column.name, kind, column.mean / day), gaps, shares, spread)
    counts = column.counts
    if counts is None:
        raise TableError(f"--categories {column.name!r} has more than 1,000 different values; use it as a number")
    if column.is_truth and not as_category:
        share = sum(count for label, count in counts.items() if cells.truth(label)) / column.there
        made = Feature(column.name, TRUTH, share)
        return _with_gaps(made, gaps, (share, gaps), (_spread(share) * np.sqrt(1 - gaps), _spread(gaps)))
    if column.missing:
        counts = {**counts, cells.MISSING: column.missing}
    least = 1 if column.rows < 100 * RARE else max(RARE, RARE_SHARE * column.rows)
    common = [label for label, count in counts.items() if count >= least][:MOST_NAMED]
    shares = {label: counts[label] / column.rows for label in common}
    if len(common) < len(counts):
        shares[OTHER] = 1 - sum(shares.values())
    means = tuple(shares.values())
    return Feature(
        column.name, CATEGORY, levels=tuple(shares), of_numbers=column.is_number, means=means,
        stds=tuple(map(_spread, means)),
    )  # fmt: skip


def _with_gaps(made: Feature, gaps: float, means: tuple[float, float], stds: tuple[float, float]) -> Feature:
    width = 2 if gaps else 1
    numbers = {"means": tuple(map(float, means[:width])), "stds": tuple(map(float, stds[:width]))}
    return dataclasses.replace(made, has_missing=bool(gaps), **numbers)


def _spread(share: float) -> float:
    return float(np.sqrt(max(share * (1 - share), 0.0)))


def _said(feature: Feature) -> str:
    if feature.kind == CATEGORY:
        shown = ", ".join(feature.levels[:4]) + (", ..." if len(feature.levels) > 4 else "")
        return f"category, {len(feature.levels)} values ({shown})"
    what = {NUMBER: "number", TRUTH: "true or false", TIME: "date, as days since 1970"}[feature.kind]
    if feature.has_missing:
        share = feature.means[1]
        what += f"; missing in {share:.2%} of rows: {feature.fill:.6g} stands there, with a column that says so"
    return what
