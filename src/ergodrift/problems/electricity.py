"""Electricity: rules that decide after they have seen. Power reserved a day ahead, cars charged when it is cheap."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import check
from ergodrift.data.series import SeriesSource
from ergodrift.datasets import dutch_prices, household_loads
from ergodrift.geometry import Box
from ergodrift.problem import Problem
from ergodrift.problem.problem import Function
from ergodrift.problems.application import Application, solved
from ergodrift.types import PyTree

DAY, WEEK = 96, 672  # quarters of an hour
EVENING = (17, 22)  # hours between which power must not be short
BOUNDS = np.array([100.0] * 5 + [2.0] * 2)  # of the parts of a rule: in kW or euros, and per kW or euro before
BANDS, LEVELS = 8, 3  # of the day, three hours each, and of the price within them: low, middle, high
CHARGER = 30.0  # kW, all cars together
YEAR = np.array(["2019-01-01T00", "2019-12-31T23"], dtype="datetime64[h]")


def reserve(short: float = 1.0, short_evening: float = 1.0) -> Application[Problem, SeriesSource]:
    """How much power to reserve a day ahead for 25 households: x is a linear map of what was seen.

    Minimise the mean of a.x, kW reserved, subject to E[(load - a.x)+] <= short, and the same in the evening. a is the
    time of day and the loads of a day and of a week before; a quarter of an hour a sample, three quarters of a year.

    Args:
        short: the largest mean shortfall, in kW.
        short_evening: the same from 17:00 to 22:00.
    """
    limits = [check.number(name, v, above=0) for name, v in (("short", short), ("short_evening", short_evening))]
    columns = reserve_columns()
    train = {name: column[: len(column) * 3 // 4] for name, column in columns.items()}
    problem = Problem(reserved, shortfalls(*limits), Box(-BOUNDS, BOUNDS))
    return solved(problem, SeriesSource(train), np.zeros(len(BOUNDS)))


def charging(energy: float = 8.0, *, capacity: float = 75.0, over: float = 0.6) -> Application[Problem, SeriesSource]:
    """When to charge cars: x is a table, kW by band of the day and by how the price of the hour compares.

    Minimise E[price x(seen)], euros per MWh times kW, subject to E[x(seen)] >= energy, kW in the mean, and
    E[(load + x(seen) - capacity)+] <= over: the transformer that 25 households share may be overloaded by so little in
    the mean. What is seen before an hour begins is its band of three hours and whether its price, known a day ahead, is
    in the low, middle or high third of the band's prices. Households of Pecan Street, prices of the Netherlands in
    2019, hour by hour: both go up and down with the day.

    Args:
        energy: to be charged in the mean, kW.
        capacity: of the transformer, kW.
        over: the largest mean overload, kW.
    """
    energy = check.number("energy", energy, above=0, below=CHARGER)
    capacity, over = check.number("capacity", capacity, above=0), check.number("over", over, above=0)

    def charged(x: PyTree, xi: PyTree) -> jax.Array:
        return jnp.sum(x * xi["seen"])

    def loss(x: PyTree, xi: PyTree) -> jax.Array:
        return xi["price"] * charged(x, xi)

    def constraints(x: PyTree, xi: PyTree) -> jax.Array:
        kw = charged(x, xi)
        return jnp.stack([energy - kw, jnp.maximum(xi["load"] + kw - capacity, 0) - over])

    problem = Problem(loss, constraints, Box(np.zeros((BANDS, LEVELS)), np.full((BANDS, LEVELS), CHARGER)))
    return solved(problem, SeriesSource(charging_columns()), np.full((BANDS, LEVELS), energy))


def charging_columns() -> dict[str, np.ndarray]:
    """For each hour of a year the load in kW, the price, and what is `seen`, (bands, levels) with one entry 1."""
    quarters, prices = household_loads(), dutch_prices()
    load = quarters[[name for name in quarters if name != "quarter"]].sum(axis=1).reshape(-1, 4).mean(axis=1)
    first, last = np.searchsorted(prices["time"], YEAR)
    price = prices["price"][first : last + 1][: len(load)]
    load = load[: len(price)]
    band = np.arange(len(price)) % 24 // (24 // BANDS)
    cuts = np.array([np.quantile(price[band == b], [1 / 3, 2 / 3]) for b in range(BANDS)])
    level = (price[:, None] > cuts[band]).sum(axis=1)
    seen = np.eye(BANDS * LEVELS)[band * LEVELS + level].reshape(-1, BANDS, LEVELS)
    return {"load": load, "price": price, "seen": seen}


def reserve_columns() -> dict[str, np.ndarray]:
    """For each quarter of an hour the load of all households, what a rule may look at, and the evening's weight."""
    data = household_loads()
    load = data[[name for name in data if name != "quarter"]].sum(axis=1)
    quarter = data["quarter"][WEEK:]
    evening = (quarter % DAY >= 4 * EVENING[0]) & (quarter % DAY < 4 * EVENING[1])
    return {
        "load": load[WEEK:],
        "a": np.column_stack([harmonics(2 * np.pi * quarter / DAY), load[WEEK - DAY : -DAY], load[:-WEEK]]),
        "evening": evening / evening.mean(),
    }


def reserved(x: PyTree, xi: PyTree) -> jax.Array:
    """What the rule reserves, a.x."""
    return x @ xi["a"]


def shortfalls(short: float, short_evening: float) -> Function:
    """(2,) what is short, always and in the evening, less what may be."""

    def constraints(x: PyTree, xi: PyTree) -> jax.Array:
        missing = jnp.maximum(xi["load"] - reserved(x, xi), 0)
        return jnp.stack([missing - short, xi["evening"] * missing - short_evening])

    return constraints


def harmonics(angle: np.ndarray) -> np.ndarray:
    """(n, 5): 1, and sine and cosine of the angle and of its double."""
    waves = [wave(k * angle) for k in (1, 2) for wave in (np.sin, np.cos)]
    return np.column_stack([np.ones(len(angle)), *waves])
