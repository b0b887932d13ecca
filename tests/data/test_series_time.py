"""Times of a record: rows in their order, and what is said about ties, gaps and spacing."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import pytest

import ergodrift as ed
from cases import ar1
from ergodrift.data.timing import Timing

HOURS = pd.date_range("2024-01-01", periods=6, freq="h")
PRICES = np.arange(6.0)
MIXED = np.array([3, 0, 5, 1, 2, 4])


def frame(times):
    return pd.DataFrame({"when": times, "price": PRICES})


def timing(data, time) -> Timing:
    found = ed.SeriesSource(data, time=time).timing
    assert found is not None
    return found


SPELLINGS = {
    "dates": HOURS,
    "zone": HOURS.tz_localize("Asia/Tokyo"),
    "a zone whose clock is put back": pd.date_range("2024-10-27", periods=6, freq="h", tz="Europe/Berlin"),
    "seconds": HOURS.astype("datetime64[s]"),
    "periods": pd.period_range("2024-01-01", periods=6, freq="h"),
    "python": pd.Series([time.to_pydatetime() for time in HOURS], dtype=object),
    "python with zones": pd.Series([time.to_pydatetime() for time in HOURS.tz_localize("Asia/Tokyo")], dtype=object),
    "whole numbers": np.arange(6) * 3600,
    "nanoseconds": np.asarray(HOURS.astype("datetime64[ns]")).astype(np.int64),
    "small": np.arange(6, dtype=np.float32) * 1e-9,
    "unsigned": np.arange(6, dtype=np.uint8),
    "durations": pd.to_timedelta(np.arange(6), unit="h"),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_rows_are_put_in_the_order_of_time(name):
    times = SPELLINGS[name]
    mixed = frame(times).iloc[MIXED]
    source = ed.SeriesSource(mixed, time="when")
    assert list(source.data) == ["price"]  # the time is no number for a loss
    assert np.array_equal(source.data["price"], PRICES)
    found = timing(mixed, "when")
    assert found.regular
    assert (found.rows, found.moved, found.ties, found.gaps, found.uneven) == (6, 6, 0, 0, 0)
    assert "Rows were put in the order of time: 6 of 6 stood elsewhere" in str(found)
    assert "evenly spaced" in str(found)
    assert timing(frame(times), "when").moved == 0
    column = ed.SeriesSource({"x": PRICES[MIXED], "y": (PRICES[MIXED, None],)}, time=mixed["when"])
    assert np.array_equal(column.data["x"], PRICES)
    assert np.array_equal(column.data["y"][0][:, 0], PRICES)


def test_spellings_of_a_table_and_of_times():
    data = {"when": np.asarray(HOURS), "price": PRICES}
    mixed = {name: column[MIXED] for name, column in data.items()}
    arrow = pytest.importorskip("pyarrow")
    fields = np.rec.fromarrays([mixed["when"], mixed["price"]], names=["when", "price"])
    for table in [mixed, pd.DataFrame(mixed), arrow.table(mixed), fields]:
        assert np.array_equal(ed.SeriesSource(table, time="when").data["price"], PRICES)
    indexed = pd.DataFrame(mixed).set_index("when")
    assert np.array_equal(ed.SeriesSource(indexed, time="when").data["price"], PRICES)
    assert np.array_equal(ed.SeriesSource(indexed, time=indexed.index).data["price"], PRICES)
    assert np.array_equal(ed.SeriesSource(mixed["price"], time=list(mixed["when"])).data, PRICES)
    assert np.array_equal(ed.SeriesSource(mixed["price"], time=[t.item() for t in mixed["when"]]).data, PRICES)
    days = [dt.date(2024, 1, 1 + int(i)) for i in MIXED]
    assert np.array_equal(ed.SeriesSource(mixed["price"], time=days).data, PRICES)
    # a numeric time stays in the samples where it is passed beside them
    both = ed.SeriesSource({"t": MIXED, "price": PRICES[MIXED]}, time=MIXED)
    assert np.array_equal(both.data["t"], np.arange(6))


def test_times_of_polars():
    polars = pytest.importorskip("polars")
    table = polars.DataFrame({"when": np.asarray(HOURS)[MIXED], "price": PRICES[MIXED]})
    zoned = table.with_columns(polars.col("when").dt.replace_time_zone("Asia/Tokyo"))
    for one in (table, zoned):
        assert np.array_equal(ed.SeriesSource(one, time="when").data["price"], PRICES)
    with pytest.raises(ValueError, match="has no value at row 0"):
        ed.SeriesSource(table.with_columns(polars.lit(None).alias("when")), time="when")


def test_ties_keep_their_order_and_are_counted():
    data = {"t": [2, 1, 1, 2, 1], "x": [0.0, 1.0, 2.0, 3.0, 4.0]}
    assert ed.SeriesSource(data, time="t").data["x"].tolist() == [1.0, 2.0, 4.0, 0.0, 3.0]
    found = timing(data, "t")
    assert found.ties == 3
    assert not found.regular
    assert "3 rows have the time of the row before them" in str(found)
    same = timing(np.arange(3.0), [7, 7, 7])
    assert (same.ties, same.spacing) == (2, None)
    assert "all at one time" in str(same)
    assert "1 rows from 5 to 5" in str(ed.SeriesSource([1.0], time=[5]).timing)


@pytest.mark.parametrize("unit", [1e-9, 1.0, 86400.0])
def test_gaps_and_uneven_spacing_are_told_apart_in_any_unit(unit):
    rng, days = np.random.default_rng(0), np.arange(700)
    working = days[days % 7 < 5]

    def spaced(times):
        return timing(np.zeros(len(times)), times * unit)

    found = spaced(working)
    assert (found.gaps, found.uneven, found.ties) == (99, 99, 0)
    assert found.spacing == pytest.approx(unit)
    assert found.longest == pytest.approx(3 * unit)
    assert "99 gaps of more than 1.5 times the typical spacing" in str(found)
    months = spaced(np.cumsum(np.tile([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], 5)))
    assert months.regular
    arrivals = spaced(np.cumsum(rng.exponential(size=500)))
    assert arrivals.gaps == 0
    assert arrivals.uneven > 400
    assert "rows are not evenly spaced in time" in arrivals.warnings()[0]
    one = spaced(np.delete(days, 40))
    assert (one.gaps, one.moved) == (1, 0)
    assert "1 gap of more" in str(one)


def test_dates_are_said_in_their_units():
    said = str(ed.SeriesSource(np.zeros(6), time=HOURS).timing)
    assert said == "6 rows from 2024-01-01 to 2024-01-01 05:00:00, typically 1 hour apart, evenly spaced."
    weekdays = pd.bdate_range("2024-01-01", periods=50)
    said = str(ed.SeriesSource(np.zeros(50), time=weekdays).timing)
    assert "9 gaps of more than 1.5 times the typical spacing, the longest 3 days where 1 day is typical" in said


def test_diagnose_tells_of_times_and_measures_the_sorted_rows():
    y, rng = ar1(0.8, 2000)[:, 0], np.random.default_rng(1)
    mixed = rng.permutation(2000)
    found = ed.diagnose(ed.SeriesSource(y[mixed], time=mixed))
    assert found.tau_mix == ed.diagnose(y).tau_mix
    assert any("put in the order of time" in note for note in found.notes)
    uneven = ed.diagnose(ed.SeriesSource(y, time=np.cumsum(rng.exponential(size=2000))))
    assert any("measured in rows, not in time" in warning for warning in uneven.warnings)
    assert "warning: rows are not evenly spaced" in str(uneven)


AWARE = [dt.datetime(2024, 1, 1), HOURS.tz_localize("UTC")[0]] * 3
HOLE = HOURS.where(np.arange(6) != 3)
REFUSED = [
    (frame(HOLE), "when", r"data\['when'\] has no value at row 3"),
    (PRICES, [0.0, 1.0, np.nan, 3.0, 4.0, 5.0], "time has no value at row 2"),
    (PRICES, np.array(["2024", "NaT"] * 3, "M8[s]"), "time has no value at row 1"),
    (PRICES, [dt.date(2024, 1, 1), None] * 3, "time has no value at row 1"),
    (PRICES, [0.0, np.inf] * 3, "time holds inf at row 1"),
    (PRICES, np.ma.array(PRICES, mask=PRICES == 4), "time has no value at row 4"),
    (PRICES, np.arange(5), "time must hold one time for each of 6 rows, got 5"),
    (PRICES, np.zeros((6, 2)), r"time must be one time for each row, got shape \(6, 2\)"),
    (PRICES, "when", "time='when' names a column, and data of type ndarray have none"),
    (frame(HOURS), "date", "time='date' is no column of data, which has 'when', 'price'"),
    ({"when": PRICES}, "when", "data hold no column but the time, 'when'"),
    (frame(HOURS.astype(str)), "when", r"data\['when'\] holds .*pandas.to_datetime"),
    (PRICES, np.zeros(6, bool), "time holds bool"),
    (PRICES, AWARE, "with and without a time zone"),
]


@pytest.mark.parametrize(("data", "time", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_no_time_is_refused_by_name_and_row(data, time, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ed.SeriesSource(data, time=time)
