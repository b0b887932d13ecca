"""Tasks on electricity, in kW and in euros per MWh as they come: capacity for households, an interval for prices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift.data.series import SeriesSource
from ergodrift.datasets import dutch_prices, household_loads
from ergodrift.geometry import Box
from ergodrift.peers.task import Optimum, Task
from ergodrift.peers.tasks.solvers import convex_program
from ergodrift.problem import Problem
from ergodrift.problems.electricity import BOUNDS, DAY, EVENING, harmonics, reserve_columns, reserved, shortfalls
from ergodrift.types import PyTree

SHORT, SHORT_EVENING = 1.0, 1.0  # kW, mean shortfalls
MISSED = 0.5  # euros per MWh that prices may be below and above the interval, on average
ENDS = np.array(["2020-01-01T00", "2021-01-01T00"], dtype="datetime64[h]")  # of the two parts
QUICK = 2880


def capacity(quick: bool = False) -> Task:
    """How much power to reserve a day ahead for 25 households, so that little is short, least of all in the evening."""
    data, columns = household_loads(), reserve_columns()
    count = len(columns["load"])
    cut, end = (QUICK, QUICK + DAY * 7) if quick else (count * 3 // 4, count)
    train, later = ({name: c[part] for name, c in columns.items()} for part in (slice(cut), slice(cut, end)))

    return Task(
        "capacity",
        "Power reserved for 25 households, shortfall budgets",
        "The mean power in kW that is reserved a day ahead by a linear rule in the time of day and the loads of a day "
        f"and of a week before, while the mean shortfall is at most {SHORT:g} kW, and at most {SHORT_EVENING:g} kW "
        f"from {EVENING[0]}:00 to {EVENING[1]}:00. A quarter of an hour a sample, three quarters of a year.",
        data.source,
        Problem(reserved, shortfalls(SHORT, SHORT_EVENING), Box(-BOUNDS, BOUNDS)),
        SeriesSource(train),
        np.zeros(len(BOUNDS)),
        cut,
        SeriesSource(later),
        lambda: capacity_optimum(train),
        "time",
    )


def interval(quick: bool = False) -> Task:
    """The narrowest interval for tomorrow's price of electricity that is missed by little on either side."""
    data = dutch_prices()
    time, price = data["time"][168:], data["price"]
    hour = time.astype(int) % 24
    features = np.column_stack([harmonics(2 * np.pi * hour / 24), price[168 - 24 : -24], price[:-168]])
    cut, end = (QUICK, QUICK + 24 * 28) if quick else np.searchsorted(time, ENDS).tolist()
    columns = {"price": price[168:], "a": features}
    train, later = ({name: c[part] for name, c in columns.items()} for part in (slice(cut), slice(cut, end)))

    def loss(x: PyTree, xi: PyTree) -> jax.Array:
        return (x["high"] - x["low"]) @ xi["a"]

    def constraints(x: PyTree, xi: PyTree) -> jax.Array:
        below, above = x["low"] @ xi["a"] - xi["price"], xi["price"] - x["high"] @ xi["a"]
        return jnp.maximum(jnp.stack([below, above]), 0) - MISSED

    return Task(
        "prices",
        "An interval for prices of electricity",
        "The mean width, in euros per MWh, of an interval for the price of an hour, both ends linear in the time of "
        "day and the prices of a day and of a week before, while prices are below it, and above it, by at most "
        f"{MISSED:g} euros per MWh on average. An hour a sample, 2015 to 2019 in the Netherlands; 2020 is later.",
        data.source,
        Problem(loss, constraints, Box({"low": -BOUNDS, "high": -BOUNDS}, {"low": BOUNDS, "high": BOUNDS})),
        SeriesSource(train),
        {"low": np.zeros(len(BOUNDS)), "high": np.zeros(len(BOUNDS))},
        cut,
        SeriesSource(later),
        lambda: _interval_optimum(train),
        "time",
    )


def capacity_optimum(data: dict[str, np.ndarray]) -> Optimum:
    """By Clarabel."""
    weights = np.stack([np.ones(len(data["load"])), data["evening"]])
    return _least_cover(data["a"], data["load"], weights, np.array([SHORT, SHORT_EVENING]))


def _interval_optimum(data: dict[str, np.ndarray]) -> Optimum:
    """The two ends have nothing to do with each other; the lower one covers the prices with their signs turned."""
    once = np.ones((1, len(data["price"])))
    low, high = (_least_cover(data["a"], sign * data["price"], once, np.array([MISSED])) for sign in (-1.0, 1.0))
    multipliers = np.concatenate([low.multipliers, high.multipliers])
    return Optimum({"low": -low.x, "high": high.x}, low.loss + high.loss, multipliers, high.solver)


def _least_cover(features: np.ndarray, need: np.ndarray, weights: np.ndarray, budgets: np.ndarray) -> Optimum:
    """min mean(a.x) subject to mean(weights (need - a.x)+) <= budgets and |x| <= bounds, a linear program."""
    mean = features.mean(axis=0)

    def build(cp: Any) -> tuple[Any, Any, list[Any], list[Any]]:
        x = cp.Variable(len(mean))
        short = cp.Variable(len(need), nonneg=True)
        limits = [row / len(need) @ short <= budget for row, budget in zip(weights, budgets, strict=True)]
        return [x], mean @ x, limits, [short >= need - features @ x, cp.abs(x) <= BOUNDS]

    (x,), multipliers = convex_program(build)
    return Optimum(x, float(mean @ x), multipliers, "Clarabel (CVXPY)")
