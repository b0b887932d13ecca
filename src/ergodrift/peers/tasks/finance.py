"""Tasks on share prices: a CVaR budget, an index with less variance, and a matrix of hedges. Returns keep units."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from ergodrift.data.series import SeriesSource
from ergodrift.datasets import Dataset, factors, sp500, sp500_index
from ergodrift.geometry import Ball, Box, Product, Simplex
from ergodrift.peers.task import Optimum, Task
from ergodrift.peers.tasks.solvers import convex_program, linear_program
from ergodrift.problem import Problem
from ergodrift.problems.portfolio import LEVEL, WORST, daily_returns, shortfall
from ergodrift.types import PyTree

BUDGET = 0.03  # of the CVaR
CALM = 5.7e-5  # the largest half mean square of a day's return, as a fraction; that of the index is 6.4e-5
LEVERAGE = 3.0  # the largest Frobenius norm of the hedges
GROUPS = {  # of shares, whose hedging errors have budgets, in per cent squared a day
    "technology": (("AAPL", "AMD", "MSFT"), 4.75),
    "energy": (("CVX", "RRC", "XOM"), 5.0),
}
QUICK = 2500


def cvar(quick: bool = False) -> Task:
    """A portfolio of 20 shares with the best return whose loss in the worst 5 % of days keeps a budget."""
    data, train, later = _returns(sp500(), quick)
    shares = train.shape[1]

    def loss(x: PyTree, xi: PyTree) -> jax.Array:
        return -(x["w"] @ xi)

    return Task(
        "cvar",
        "S&P 500 portfolio, CVaR budget",
        "Minus the mean return of a day, as a fraction, of a portfolio of 20 shares, while the mean loss over the "
        "worst 5 % of days (CVaR by Rockafellar and Uryasev 2000, with the value at risk v as a variable) is at most "
        f"{BUDGET}. "
        "One day a sample, four fifths of 1990 to 2022.",
        data.source,
        Problem(loss, shortfall(BUDGET), Product({"w": Simplex(), "v": Box(0.0, WORST)})),
        SeriesSource(train),
        {"w": np.full(shares, 1 / shares), "v": np.zeros(1)},
        len(train),
        SeriesSource(later),
        lambda: _cvar_optimum(train),
        "time",
    )


def tracking(quick: bool = False) -> Task:
    """The portfolio of 20 shares that stays nearest to the S&P 500 index with less variance, in fractions of a day."""
    data, train, later = _returns(sp500(), quick)
    _, now, then = _returns(sp500_index(), quick)
    shares = train.shape[1]

    def loss(x: PyTree, xi: PyTree) -> jax.Array:
        return jnp.square(x @ xi["shares"] - xi["index"]) / 2

    def constraints(x: PyTree, xi: PyTree) -> jax.Array:
        return jnp.stack([jnp.square(x @ xi["shares"]) / 2 - CALM])

    return Task(
        "tracking",
        "S&P 500 index by 20 shares, variance budget",
        "Half the mean squared difference between the returns of a portfolio of 20 shares and of the S&P 500 index, "
        f"while half the mean square of the portfolio's own return is at most {CALM:g}, both in fractions of a day, "
        "squared: the loss is near 0.00001, which is awkward on purpose. One day a sample.",
        data.source,
        Problem(loss, constraints, Simplex()),
        SeriesSource({"shares": train, "index": now[:, 0]}),
        np.full(shares, 1 / shares),
        len(train),
        SeriesSource({"shares": later, "index": then[:, 0]}),
        lambda: _tracking_optimum(train, now[:, 0]),
        "time",
    )


def hedge(quick: bool = False) -> Task:
    """A matrix of hedges, 20 shares by 5 funds: least squares under budgets of groups and a limit of leverage."""
    prices, funds = sp500(), factors()
    data, shares, _ = _returns(prices.rows(np.isin(prices["date"], funds["date"])), quick, held_out=False)
    _, fund, _ = _returns(funds.rows(np.isin(funds["date"], prices["date"])), quick, held_out=False)
    cut = len(shares) * 4 // 5
    names = [name for name in prices if name != "date"]
    members = np.stack([np.isin(names, group) / len(group) for group, _ in GROUPS.values()])
    budgets = np.array([budget for _, budget in GROUPS.values()])

    def errors(x: PyTree, xi: PyTree) -> jax.Array:
        return jnp.square(xi["shares"] - x @ xi["funds"])

    def loss(x: PyTree, xi: PyTree) -> jax.Array:
        return jnp.mean(errors(x, xi)) / 2

    def constraints(x: PyTree, xi: PyTree) -> jax.Array:
        return jnp.asarray(members, x.dtype) @ errors(x, xi) - jnp.asarray(budgets, x.dtype)

    both = {"shares": 100 * shares, "funds": 100 * fund}
    series = [SeriesSource({name: r[part] for name, r in both.items()}) for part in (slice(cut), slice(cut, None))]
    return Task(
        "hedge",
        "Hedges of 20 shares by 5 funds, a matrix",
        "Half the mean squared error of a day, in per cent, of 20 shares hedged by 5 factor funds, while the mean "
        f"squared errors of {' and '.join(GROUPS)} shares keep budgets; the 20 x 5 matrix of hedges has a Frobenius "
        f"norm of at most {LEVERAGE:g}. One day a sample, 2014 to 2022.",
        data.source,
        Problem(loss, constraints, Ball(LEVERAGE)),
        series[0],
        np.zeros((len(names), fund.shape[1])),
        cut,
        series[1],
        lambda: _hedge_optimum(both["shares"][:cut], both["funds"][:cut], members, budgets),
        "time",
    )


def _returns(data: Dataset, quick: bool, held_out: bool = True) -> tuple[Dataset, np.ndarray, np.ndarray]:
    """The data, the returns of four fifths of the days, or of all, and those of the others, as fractions."""
    returns = daily_returns(data)
    if quick:
        returns = returns[-QUICK:]
    cut = len(returns) * 4 // 5 if held_out else len(returns)
    return data, returns[:cut], returns[cut:]


def _cvar_optimum(returns: np.ndarray) -> Optimum:
    """A linear program in (w, v, s), with s_t the loss of day t beyond v."""
    days, shares = returns.shape
    cost = np.concatenate([-returns.mean(axis=0), np.zeros(1 + days)])
    beyond = scipy.sparse.hstack([-returns, -np.ones((days, 1)), -scipy.sparse.identity(days)])
    budget = np.concatenate([np.zeros(shares), [1.0], np.full(days, 1 / (days * (1 - LEVEL)))])
    z, multipliers = linear_program(
        cost,
        scipy.sparse.vstack([beyond, budget[None]]),
        np.append(np.zeros(days), BUDGET),
        [(0, 1)] * shares + [(0, WORST)] + [(0, np.inf)] * days,
        budgets=1,
        equal=((np.arange(len(cost)) < shares)[None].astype(float), np.ones(1)),
    )
    x = {"w": z[:shares], "v": z[shares : shares + 1]}
    return Optimum(x, float(cost @ z), multipliers, "HiGHS, interior point (SciPy)")


def _tracking_optimum(returns: np.ndarray, index: np.ndarray) -> Optimum:
    """In per cent, in which numbers are near 1, and back; R of the QR factors has the mean squares of all days."""
    both = np.column_stack([returns, -index]) * 100 / np.sqrt(len(index))
    R = np.linalg.qr(both)[1]
    own = R[:, :-1]

    def build(cp: Any) -> tuple[Any, Any, list[Any], list[Any]]:
        w = cp.Variable(own.shape[1], nonneg=True)
        loss = cp.sum_squares(own @ w + R[:, -1]) / 2
        return [w], loss, [cp.sum_squares(own @ w) / 2 <= 1e4 * CALM], [cp.sum(w) == 1]

    (w,), multipliers = convex_program(build)
    return Optimum(w, float(np.square(own @ w + R[:, -1]).sum() / 2e4), multipliers, "Clarabel (CVXPY)")


def _hedge_optimum(shares: np.ndarray, funds: np.ndarray, members: np.ndarray, budgets: np.ndarray) -> Optimum:
    """The errors of a share are ||R (h - h*)||^2 + rest, with R of the QR factors of the funds' returns."""
    _, R = np.linalg.qr(funds / np.sqrt(len(funds)))
    best = np.linalg.lstsq(funds, shares, rcond=None)[0]
    rest = np.square(shares - funds @ best).mean(axis=0)

    def build(cp: Any) -> tuple[Any, Any, list[Any], list[Any]]:
        W = cp.Variable((shares.shape[1], funds.shape[1]))
        off = (W - best.T) @ R.T
        limits = [
            cp.sum_squares(cp.multiply(np.sqrt(m)[:, None], off)) + float(m @ rest) <= budget
            for m, budget in zip(members, budgets, strict=True)
        ]
        return [W], (cp.sum_squares(off) + float(rest.sum())) / (2 * len(rest)), limits, [cp.norm(W, "fro") <= LEVERAGE]

    (W,), multipliers = convex_program(build)
    loss = (np.square((W - best.T) @ R.T).sum() + rest.sum()) / (2 * len(rest))
    return Optimum(W, float(loss), multipliers, "Clarabel (CVXPY)")
