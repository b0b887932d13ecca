"""Neyman-Pearson classification: as few misses as can be while false alarms keep a limit, on COMPAS by date."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import check
from ergodrift.data.series import SeriesSource
from ergodrift.datasets import Dataset, compas
from ergodrift.geometry import Ball
from ergodrift.problem import Problem
from ergodrift.problem.problem import Function
from ergodrift.problems.application import Application, solved
from ergodrift.problems.scores import z_scores
from ergodrift.types import PyTree

RADIUS = 5.0


def neyman_pearson(limit: float = 0.5) -> Application[Problem, SeriesSource]:
    """The classifier with the fewest misses whose false alarms keep a limit (Neyman and Pearson 1933).

    Minimise E[log(1 + exp(-s)) | charged again] subject to E[log(1 + exp(s)) | not charged again] <= limit, with the
    score s = a.x linear in what is known at the screening. Rates have no slope, so convex surrogates stand for them
    (Rigollet and Tong 2011): log(1 + exp(s)) >= log 2 wherever s >= 0, so at most limit / log 2 of the others raise an
    alarm. In fact far fewer do, and a certificate says how many. COMPAS, one person a sample in the order of screening,
    the first four fifths.

    Args:
        limit: of the surrogate of false alarms; a score of 0 for everybody has log 2.

    >>> problem, source, reference = neyman_pearson()
    >>> reference.x.shape
    (6,)
    """
    limit = check.number("limit", limit, above=0)
    data, train, _ = compas_parts()
    X, y = compas_rows(data, train, train)
    problem = Problem(miss, false_alarm(limit), Ball(RADIUS))
    return solved(problem, series(X, y), np.zeros(X.shape[1]))


def compas_parts(quick: bool = False) -> tuple[Dataset, np.ndarray, np.ndarray]:
    """The table, the rows of the first four fifths and those of the last fifth."""
    data = compas()
    if quick:
        data = data.rows(np.arange(2000))
    cut = len(data) * 4 // 5
    return data, np.arange(cut), np.arange(cut, len(data))


def compas_rows(data: Dataset, rows: np.ndarray, train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels. Age and priors are in standard deviations of the training part."""
    numbers = data[["age", "priors_count"]]
    columns = [
        np.ones(len(rows)),
        *z_scores(numbers[rows], numbers[train]).T,
        data["sex"][rows] == "Male",
        data["c_charge_degree"][rows] == "F",
        data["juv_fel_count"][rows] > 0,
    ]
    return np.column_stack(columns).astype(float), np.where(data["two_year_recid"][rows] == 1, 1.0, -1.0)


def series(X: np.ndarray, y: np.ndarray) -> SeriesSource:
    """Rows with the weights that make means over all of means over those charged again, and over the others."""
    share = (y > 0).mean()
    return SeriesSource({"a": X, "miss": (y > 0) / share, "alarm": (y < 0) / (1 - share)})


def miss(x: PyTree, xi: PyTree) -> jax.Array:
    """log(1 + exp(-score)) of those charged again."""
    return xi["miss"] * jax.nn.softplus(-(xi["a"] @ x))


def false_alarm(limit: float) -> Function:
    """log(1 + exp(score)) of the others, at most the limit in the mean."""

    def constraints(x: PyTree, xi: PyTree) -> jax.Array:
        return jnp.stack([xi["alarm"] * jax.nn.softplus(xi["a"] @ x) - limit])

    return constraints
