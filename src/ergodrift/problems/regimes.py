"""A forecast that is good in its worst regime: the largest of several mean losses, as constraints."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift.data.series import SeriesSource
from ergodrift.datasets import dutch_prices
from ergodrift.geometry import Box, Product
from ergodrift.problem import Problem
from ergodrift.problems.application import Application, solved
from ergodrift.types import PyTree

REGIMES = ("Monday", "Tuesday to Friday", "Saturday", "Sunday")
WEEK = 168  # hours
EUROS = 10.0  # in a unit: squared errors are then near 1
LARGEST, WORST = 10.0, 50.0  # coefficients, and mean squared error of a regime
ENDS = np.array(["2019-01-01T00", "2020-01-01T00"], dtype="datetime64[h]")


def price_columns() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Features `a`, the price `y` and the regime of each hour: 2015 to 2018, and 2019."""
    data = dutch_prices()
    time, price = data["time"][WEEK:], data["price"] / EUROS
    hour = time.astype(int) % 24
    lags = np.column_stack([price[WEEK - 24 : -24], price[WEEK - 48 : -48], price[:-WEEK]])
    angle, day = 2 * np.pi * hour / 24, (time.astype(int) // 24 + 3) % 7  # 1 January 1970 was a Thursday
    columns = {
        "a": np.column_stack([np.ones(len(hour)), np.sin(angle), np.cos(angle), lags]),
        "y": price[WEEK:],
        "regime": np.eye(4)[np.select([day == 0, day < 5, day == 5], [0, 1, 2], 3)],
    }
    first, last = np.searchsorted(time, ENDS)
    return {k: c[:first] for k, c in columns.items()}, {k: c[first:last] for k, c in columns.items()}


def squared_error(w: PyTree, xi: PyTree) -> jax.Array:
    """(a.w - y)^2."""
    return jnp.square(xi["a"] @ w - xi["y"])


def worst_regime() -> Application[Problem, SeriesSource]:
    """A linear forecast of tomorrow's price of electricity, as good as can be where it is worst (Sagawa et al. 2020).

    Minimise t over (w, t) subject to E[(a.w - y)^2 | regime r] <= t for Mondays, the days until Friday, Saturdays and
    Sundays: the distributionally robust forecast over all mixtures of the four. Prices of the Netherlands in units of
    10 euros per MWh, hour by hour from 2015 to 2018; a is the time of day and the prices of one day, two days and a
    week before.
    """
    train = price_columns()[0]
    shares = train["regime"].mean(axis=0)

    def loss(x: PyTree, xi: PyTree) -> jax.Array:
        return x["t"][0]

    def constraints(x: PyTree, xi: PyTree) -> jax.Array:
        here = xi["regime"] / jnp.asarray(shares, x["w"].dtype)
        return here * squared_error(x["w"], xi) - x["t"]

    count = train["a"].shape[1]
    geometry = Product(
        {"w": Box(np.full(count, -LARGEST), np.full(count, LARGEST)), "t": Box(np.zeros(1), np.full(1, WORST))}
    )
    x0 = {"w": np.zeros(count), "t": np.full(1, WORST / 2)}
    return solved(Problem(loss, constraints, geometry), SeriesSource(train), x0)
