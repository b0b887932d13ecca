"""When the rows of a record were taken: times as people keep them, put in order, and what stands out about them."""

from __future__ import annotations

import dataclasses
import datetime

import numpy as np

from ergodrift._core.arrays import columns_of, refuse_missing
from ergodrift.types import PyTree

EVEN = 0.1  # of the typical spacing: as far as calendar months differ
MOSTLY = 0.75  # of the rows evenly spaced: the others are gaps, as weekends are in working days
GAP = 1.5  # typical spacings from which one that is longer counts as a gap
WANTED = "where times are wanted: numbers, or dates, such as pandas.to_datetime makes of text"
UNITS = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))


@dataclasses.dataclass(frozen=True)
class Timing:
    """When the rows of a record were taken; prints in a few plain sentences.

    Attributes:
        rows: how many.
        start, end: the first and the last time: a float, or a datetime64 (in UTC where there was a time zone).
        spacing: the median spacing of rows that differ in time, in seconds for dates; None where none differ.
        moved: rows that were not where they belong in time; 0 where the record came in order.
        ties: rows with the time of the row before them. They keep the order in which they came.
        uneven: spacings, ties left out, that are off the median by more than a tenth of it.
        gaps: those of them that are longer than 1.5 medians, where three quarters of all are even; else 0, since
            there is no spacing to miss rows by.
        longest: the longest spacing, as `spacing`.
    """

    rows: int
    start: float | np.datetime64
    end: float | np.datetime64
    spacing: float | None
    moved: int
    ties: int
    uneven: int
    gaps: int
    longest: float | None

    @property
    def regular(self) -> bool:
        """Whether rows are evenly spaced: no tie, no gap, no spacing that is more than a tenth off the median."""
        return not self.ties and not self.uneven

    @staticmethod
    def of(times: np.ndarray) -> tuple[Timing, np.ndarray]:
        """What is to be said about times, (n,) numbers or datetime64, and the stable order that sorts them."""
        order = np.argsort(times, kind="stable")
        ordered, dated = times[order], times.dtype.kind == "M"
        steps = np.diff(ordered)
        steps = steps / np.timedelta64(1, "s") if dated else steps.astype(float)
        apart = steps[steps > 0]
        spacing = float(np.median(apart)) if apart.size else None
        off = np.abs(apart - spacing) > EVEN * spacing if spacing else np.zeros(0, dtype=bool)
        gaps = int((apart > GAP * spacing).sum()) if spacing and off.mean() <= 1 - MOSTLY else 0
        ends = (ordered[0], ordered[-1]) if dated else (float(ordered[0]), float(ordered[-1]))
        moved, ties = int((order != np.arange(len(order))).sum()), int((steps == 0).sum())
        longest = float(apart.max()) if apart.size else None
        return Timing(len(times), *ends, spacing, moved, ties, int(off.sum()), gaps, longest), order

    def warnings(self) -> list[str]:
        """What stands against taking a row for a unit of time, in plain sentences."""
        found = []
        if self.ties:
            found.append(
                f"{self.ties:,} rows have the time of the row before them, and keep the order in which they came: "
                "which of them was first is not known"
            )
        if self.gaps:
            found.append(
                f"{_times(self.gaps, 'gap')} of more than {GAP:g} times the typical spacing, the longest "
                f"{self._said(self.longest)} where {self._said(self.spacing)} is typical: rows on both sides are "
                "taken for neighbours"
            )
        elif self.uneven:
            found.append(
                f"rows are not evenly spaced in time ({self.uneven / max(self.rows - 1, 1):.0%} of the spacings are "
                f"off the median, {self._said(self.spacing)}, by more than a tenth): dependence is measured in rows, "
                "not in time; put the record on a regular grid first if it is time that counts"
            )
        return found

    def notes(self) -> list[str]:
        """What was done, in plain sentences."""
        return [f"rows were put in the order of time: {self.moved:,} of {self.rows:,} stood elsewhere"] * bool(
            self.moved
        )

    def __str__(self) -> str:
        every = "all at one time" if self.spacing is None else f"typically {self._said(self.spacing)} apart"
        even = ", evenly spaced" if self.regular and self.spacing is not None else ""
        first = f"{self.rows:,} rows from {_end(self.start)} to {_end(self.end)}, {every}{even}"
        return ". ".join(_capital(said) for said in [first, *self.notes(), *self.warnings()]) + "."

    __repr__ = __str__

    def _said(self, spacing: float | None) -> str:
        """A spacing in words."""
        if spacing is None:
            return "nothing"
        if not isinstance(self.start, np.datetime64):
            return f"{spacing:g}"
        unit, size = next(((unit, size) for unit, size in UNITS if spacing >= size), UNITS[-1])
        return f"{spacing / size:.4g} {unit if spacing != size else unit.removesuffix('s')}"


def taken_out(data: PyTree, time: PyTree) -> tuple[PyTree, np.ndarray]:
    """The data without their column of times, where `time` names one, and the times as numbers or datetime64.

    Args:
        data: as they were given.
        time: the name of a column or key, that of a pandas index, or the times themselves.
    """
    named = isinstance(time, str | bytes | int) or (isinstance(time, tuple) and not np.ndim(time[0] if time else 0))
    if not named:
        return data, checked_times("time", time)
    columns = columns_of(data)
    if not isinstance(columns, dict):
        raise TypeError(
            f"time={time!r} names a column, and data of type {type(data).__name__} have none: pass the times "
            "themselves, time=array"
        )
    if time in columns:
        rest = {name: column for name, column in columns.items() if name != time}
        if not rest:
            raise ValueError(f"data hold no column but the time, {time!r}")
        return rest, checked_times(f"data[{time!r}]", columns[time])
    index = getattr(data, "index", None)
    if index is not None and getattr(index, "name", None) == time:
        return columns, checked_times(f"the index {time!r}", index)
    raise ValueError(
        f"time={time!r} is no column of data, which has {', '.join(map(repr, list(columns)[:8]))}; for the index of a "
        "table pass time=table.index"
    )


def checked_times(name: str, given: PyTree) -> np.ndarray:
    """Times as a vector of numbers or of datetime64, in UTC; what is missing or no time is refused by name and row."""
    for test in ("isna", "is_null"):
        if hasattr(given, test):
            refuse_missing(name, np.asarray(getattr(given, test)()))
            break
    if isinstance(mask := getattr(given, "mask", None), np.ndarray):  # of a masked array
        refuse_missing(name, mask)
    if str(getattr(given, "dtype", "")).startswith("period"):
        given = _dated(given).to_timestamp()
    if getattr(_dated(given), "tz", None) is not None:
        given = _dated(_dated(given).tz_convert("UTC")).tz_localize(None)
    if hasattr(given, "to_numpy"):
        given = given.to_numpy(zero_copy_only=False) if hasattr(given, "type") else given.to_numpy()
    times = np.asarray(given)
    if times.ndim != 1 or not times.size:
        raise ValueError(f"{name} must be one time for each row, got shape {times.shape}")
    if times.dtype.kind == "O":
        times = _dates(name, times)
    if times.dtype.kind == "m":
        times = times / np.timedelta64(1, "s")
    if times.dtype.kind not in "iufM":
        raise ValueError(f"{name} holds {times.dtype}, such as {times.flat[0]!r}, {WANTED}")
    refuse_missing(name, np.isnat(times) if times.dtype.kind == "M" else np.isnan(times))
    if not np.isfinite(times).all():
        raise ValueError(f"{name} holds {times[~np.isfinite(times)][0]} at row {int(np.argmin(np.isfinite(times)))}")
    return times


def _dated(given: PyTree) -> PyTree:
    """What knows about dates: of a series of pandas that is behind .dt, an index does itself."""
    return getattr(given, "dt", given)


def _dates(name: str, times: np.ndarray) -> np.ndarray:
    """Dates of Python, those with a time zone in UTC."""
    for row, time in enumerate(times):
        if time is None or time != time:
            refuse_missing(name, np.arange(len(times)) == row)
        if not isinstance(time, datetime.date | np.datetime64):
            raise ValueError(f"{name} holds {time!r} at row {row}, {WANTED}")
    zones = {getattr(time, "tzinfo", None) is not None for time in times}
    if len(zones) > 1:
        raise ValueError(f"{name} holds times with and without a time zone; give all of them one")
    if zones == {True}:
        times = np.array([time.astimezone(datetime.UTC).replace(tzinfo=None) for time in times])
    return times.astype("datetime64[us]")


def _times(count: int, word: str) -> str:
    return f"1 {word}" if count == 1 else f"{count:,} {word}s"


def _end(time: float | np.datetime64) -> str:
    if not isinstance(time, np.datetime64):
        return f"{time:g}"
    said = str(time.astype("datetime64[s]")).replace("T", " ")
    return said.removesuffix(" 00:00:00")


def _capital(said: str) -> str:
    return said[:1].upper() + said[1:]
