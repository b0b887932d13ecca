"""Daily prices of shares and of factor funds."""

from __future__ import annotations

import functools

from ergodrift.datasets.dataset import Dataset, columns, read

PACKAGE, INSTALL = "skfolio", "--no-deps skfolio"
LICENCE = "package BSD 3-Clause; prices as published by the exchanges"


@functools.cache
def sp500() -> Dataset:
    """Adjusted closing prices of 20 companies of the S&P 500 in US dollars, every trading day from 1990 to 2022."""
    return _prices("S&P 500", "sp500_dataset", "20 companies of the S&P 500, 1990 to 2022")


@functools.cache
def sp500_index() -> Dataset:
    """The level of the S&P 500 index itself, on the days of `sp500`."""
    return _prices("S&P 500 index", "sp500_index", "the S&P 500 index, 1990 to 2022")


@functools.cache
def factors() -> Dataset:
    """Prices of five funds (momentum, quality, size, low volatility, value) in US dollars, daily from 2014 to 2022."""
    return _prices("factor funds", "factors_dataset", "five factor funds, 2014 to 2022")


def _prices(name: str, file: str, about: str) -> Dataset:
    frame = read(PACKAGE, f"datasets/data/{file}.csv.gz", install=INSTALL).rename(columns={"Date": "date"})
    frame["date"] = frame["date"].astype("datetime64[s]")
    citation = f"daily prices of {about}, Delatte, Nicolini and Manzi, skfolio (2024)"
    return Dataset(name, columns(frame), PACKAGE, LICENCE, citation)
