"""Electricity: what 25 households draw, and what a megawatt-hour costs in the Netherlands."""

from __future__ import annotations

import functools

import numpy as np

from ergodrift.datasets.dataset import Dataset, columns, read

PACKAGE, INSTALL = "ev2gym", "--no-deps ev2gym"
CITATION = (
    "Orfanoudakis, Diaz-Londono, Emre Yilmaz, Palensky and Vergara, EV2Gym, IEEE Trans. Intelligent Transport. Syst. "
    "26 (2025)"
)


@functools.cache
def household_loads() -> Dataset:
    """The load of 25 households in kW, every quarter of an hour for a year of 365 days.

    The file has no dates: it begins at midnight, and its hottest months say that it begins in January. `quarter` counts
    from 0, households are columns `h0` to `h24`.
    """
    frame = read(PACKAGE, "data/residential_loads.csv", install=INSTALL, header=None)
    found = columns(frame.set_axis([f"h{i}" for i in range(frame.shape[1])], axis=1))
    quarter = np.arange(len(frame))
    citation = f"load profiles of Pecan Street, as shipped with {CITATION}"
    return Dataset("household loads", {"quarter": quarter, **found}, PACKAGE, "package MIT", citation)


@functools.cache
def dutch_prices() -> Dataset:
    """Day-ahead prices of electricity in the Netherlands in euros per MWh, every hour (UTC) from 2015 to January 2025.

    The file is two records, one after the other, that overlap in 2023 and write times differently; an hour that is in
    both is taken once, and two hours (23:00 on 30 December 2023 and 2024) are in neither.
    """
    import datetime

    frame = read(PACKAGE, "data/Netherlands_day-ahead-2015-2024.csv", install=INSTALL)
    frame = frame[frame["Datetime (UTC)"].notna()]

    def parsed(text: str) -> datetime.datetime:
        return datetime.datetime.strptime(text, "%d/%m/%Y %H:%M" if "/" in text else "%Y-%m-%d %H:%M:%S")

    hours = np.array([parsed(text) for text in frame["Datetime (UTC)"]], dtype="datetime64[h]")
    time, first = np.unique(hours, return_index=True)
    price = frame["Price (EUR/MWhe)"].to_numpy(dtype=float)[first]
    citation = f"day-ahead prices of ENTSO-E, as shipped with {CITATION}"
    return Dataset("Dutch prices", {"time": time, "price": price}, PACKAGE, "package MIT", citation)
