"""Portfolios of shares under a budget for the worst days and a limit on what is traded, from daily prices."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import check
from ergodrift.data.series import SeriesSource
from ergodrift.datasets import Dataset, sp500
from ergodrift.geometry import Box, Product, Simplex
from ergodrift.problem import Problem
from ergodrift.problem.problem import Function
from ergodrift.problems.application import Application, solved
from ergodrift.types import PyTree

LEVEL = 0.95  # of the CVaR: the worst twentieth of days
WORST = 0.2  # a loss of a day that bounds the value at risk, as a fraction


def portfolio(
    objective: Literal["return", "variance"] = "return",
    *,
    cvar: float = 2.0,
    turnover: float = 1.0,
    days: int = 2000,
) -> Application[Problem, SeriesSource]:
    """The best mean return, or the least variance, of 20 shares under a CVaR budget and a limit of turnover.

    Minimise E[-w.r], or E[(w.(r - mean))^2], over x = (w, v), w on the simplex, subject to
    E[v + max(-w.r - v, 0) / 0.05] <= cvar, the mean loss of the worst 5 % of days with the value at risk v as a
    variable (Rockafellar and Uryasev 2000), and sum |w - held| <= turnover, where equal weights are held. Returns r of
    the S&P 500 are in per cent a day, one day a sample, the last `days` days before the pandemic.

    Args:
        objective: "return" or "variance".
        cvar: in per cent of the value, a day.
        turnover: in (0, 2], of what is bought and sold together.
        days: how many, ending with 2019.
    """
    check.choice("objective", objective, ("return", "variance"))
    cvar, turnover = check.number("cvar", cvar, above=0), check.number("turnover", turnover, above=0, at_most=2)
    data = sp500()
    until = int(np.searchsorted(data["date"], np.datetime64("2020-01-01")))
    returns = 100 * daily_returns(data)[: until - 1][-check.integer("days", days, at_least=100) :]
    mean, count = returns.mean(axis=0), returns.shape[1]

    def loss(x: PyTree, xi: PyTree) -> jax.Array:
        if objective == "return":
            return -(x["w"] @ xi)
        return jnp.square(x["w"] @ (xi - jnp.asarray(mean, x["w"].dtype)))

    def constraints(x: PyTree, xi: PyTree) -> jax.Array:
        traded = jnp.sum(jnp.abs(x["w"] - 1 / count)) - turnover
        return jnp.append(shortfall(cvar)(x, xi), traded)

    geometry = Product({"w": Simplex(), "v": Box(np.zeros(1), np.full(1, 100 * WORST))})
    x0 = {"w": np.full(count, 1 / count), "v": np.ones(1)}
    return solved(Problem(loss, constraints, geometry), SeriesSource(returns), x0)


def daily_returns(data: Dataset) -> np.ndarray:
    """(days - 1, columns) price over price of the day before, less 1."""
    prices = data[[name for name in data if name != "date"]]
    return prices[1:] / prices[:-1] - 1


def shortfall(budget: float) -> Function:
    """(1,) v + max(-w.r - v, 0) / (1 - level) - budget: the CVaR at its smallest over v."""

    def constraints(x: PyTree, xi: PyTree) -> jax.Array:
        return x["v"] + jnp.maximum(-(x["w"] @ xi) - x["v"], 0) / (1 - LEVEL) - budget

    return constraints
