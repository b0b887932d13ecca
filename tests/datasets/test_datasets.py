"""Loaders: how many rows, in which order, what is missing, and what is said about where the data come from."""

import numpy as np
import pytest

from ergodrift import datasets
from ergodrift.datasets.dataset import read

ALL = {
    "flights": (datasets.flights, 336_776),
    "airports": (datasets.airports, 1458),
    "compas": (datasets.compas, 5297),
    "adult": (datasets.adult, 32_561),
    "adult test": (lambda: datasets.adult("test"), 16_281),
    "sp500": (datasets.sp500, 8313),
    "sp500_index": (datasets.sp500_index, 8313),
    "factors": (datasets.factors, 2264),
    "household_loads": (datasets.household_loads, 365 * 96),
    "dutch_prices": (datasets.dutch_prices, 87_838),
}


@pytest.mark.parametrize("name", ALL)
def test_rows_and_where_they_come_from(name):
    load, count = ALL[name]
    data = load()
    assert len(data) == count
    assert {len(column) for column in data.columns.values()} == {count}
    assert data.package in data.source
    assert data.licence in data.source
    assert data.citation in data.source
    assert load() is data


@pytest.mark.parametrize(("name", "column"), [("compas", "date"), ("sp500", "date"), ("dutch_prices", "time")])
def test_rows_are_in_the_order_of_time(name, column):
    time = ALL[name][0]()[column]
    assert np.issubdtype(time.dtype, np.datetime64)
    assert (np.diff(time) >= np.timedelta64(0)).all()


def test_flights_leave_in_the_order_of_the_schedule_and_all_have_their_weather():
    data = datasets.flights()
    minutes = (data["date"] - data["date"][0]).astype(int) * 24 * 60 + data["minutes"]
    assert (np.diff(minutes) >= 0).all()
    assert data["date"][-1] == np.datetime64("2013-12-31")
    assert np.isnan(data["arr_delay"]).sum() == 9430
    assert np.isfinite(data[["temp", "humid", "wind_speed", "precip", "pressure", "visib"]]).all()


def test_compas_ends_before_the_artefact():
    data = datasets.compas()
    assert data["date"][-1] < np.datetime64("2014-04-01")
    assert 0.3 < data["two_year_recid"].mean() < 0.4


def test_hours_of_prices_come_once():
    hours = np.diff(datasets.dutch_prices()["time"]).astype(int)
    assert np.bincount(hours).tolist() == [0, 87_835, 2]


def test_columns_side_by_side_and_chosen_rows():
    data = datasets.sp500()
    assert data[["AAPL", "XOM"]].shape == (len(data), 2)
    assert data.rows(np.arange(3))["AAPL"].tolist() == data["AAPL"][:3].tolist()
    assert repr(data).startswith("Dataset(S&P 500: 8,313 rows, 21 columns")


def test_a_missing_package_is_named_with_the_command():
    with pytest.raises(ModuleNotFoundError, match="pip install --no-deps nowhere"):
        read("ergodrift_nowhere", "data.csv", install="--no-deps nowhere")


def test_parts_of_adult_are_two():
    with pytest.raises(ValueError, match="part must be 'train' or 'test', got 'valid'"):
        datasets.adult("valid")
