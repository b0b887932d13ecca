"""Tasks on tables of people: COMPAS by date of screening, Adult in no order, and a Neyman-Pearson classifier."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift.data.series import SeriesSource
from ergodrift.datasets import Dataset, adult, compas
from ergodrift.geometry import Ball
from ergodrift.peers.task import Optimum, Table, Task
from ergodrift.peers.tasks import scores
from ergodrift.peers.tasks.solvers import slsqp
from ergodrift.problem import Problem
from ergodrift.types import PyTree

RADIUS = 5.0
PARITY = 0.1  # the largest difference of mean scores
BATCH = 32  # rows of Adult in a sample
FALSE_ALARMS = 0.5  # the largest mean of log(1 + exp(score)) over those not charged again; 0.69 for a score of 0
NUMBERS = ["age", "education_num", "capital_gain", "capital_loss", "hours_per_week"]
KINDS = ["workclass", "marital_status", "occupation", "relationship", "race"]


def compas_parity(quick: bool = False) -> Task:
    """COMPAS, row by row in the order of screening, with parity between African-American people and others."""
    data, train, later = _compas_parts(quick)
    group = data["race"] == "African-American"
    model = scores.model_of(RADIUS)
    parts = [scores.Scores(*_compas_rows(data, rows, train), scores.between(group[rows])) for rows in (train, later)]
    tables = [
        Table(p.X, p.y, group[r], "demographic_parity", PARITY) for p, r in zip(parts, (train, later), strict=True)
    ]
    series = [SeriesSource(scores.batches(model, part, 1, PARITY)) for part in parts]
    return Task(
        "compas",
        "COMPAS by date, parity of race",
        "The mean logistic loss of whether a person is charged again within two years, while mean scores of "
        f"African-American people and of others differ by at most {PARITY}. One person a sample, by date of screening.",
        data.source,
        model,
        series[0],
        np.zeros(parts[0].X.shape[1]),
        len(train),
        series[1],
        lambda: scores.optimum(parts[0], PARITY, RADIUS),
        "time",
        tables[0]._replace(later=tables[1]),
    )


def neyman_pearson(quick: bool = False) -> Task:
    """A Neyman-Pearson classifier on COMPAS: the fewest misses while false alarms keep a limit, both as surrogates."""
    data, train, later = _compas_parts(quick)
    parts = [_compas_rows(data, rows, train) for rows in (train, later)]

    def series(X: np.ndarray, y: np.ndarray) -> SeriesSource:
        share = (y > 0).mean()
        return SeriesSource({"a": X, "miss": (y > 0) / share, "alarm": (y < 0) / (1 - share)})

    def loss(x: PyTree, xi: PyTree) -> jax.Array:
        return xi["miss"] * jax.nn.softplus(-(xi["a"] @ x))

    def constraints(x: PyTree, xi: PyTree) -> jax.Array:
        return jnp.stack([xi["alarm"] * jax.nn.softplus(xi["a"] @ x) - FALSE_ALARMS])

    tables = [Table(*part, part[1] > 0, "false_positive_rate", FALSE_ALARMS) for part in parts]
    return Task(
        "neyman",
        "Neyman-Pearson on COMPAS by date",
        "The mean of log(1 + exp(-score)) over people who are charged again, while that of log(1 + exp(score)) over "
        f"the others is at most {FALSE_ALARMS}. One person a sample, by date of screening.",
        data.source,
        Problem(loss, constraints, Ball(RADIUS)),
        series(*parts[0]),
        np.zeros(parts[0][0].shape[1]),
        len(train),
        series(*parts[1]),
        lambda: _neyman_optimum(*parts[0]),
        "time",
        tables[0]._replace(later=tables[1]),
    )


def adult_parity(quick: bool = False) -> Task:
    """Adult in batches of 32, in no order, with parity between women and men."""
    train, later = adult("train"), adult("test")
    if quick:
        train, later = (part.rows(np.arange(200 * BATCH)) for part in (train, later))
    model = scores.model_of(RADIUS)
    parts = [_adult_rows(part, train) for part in (train, later)]
    tables = [
        Table(p.X, p.y, d["sex"] == "Male", "demographic_parity", PARITY)
        for p, d in zip(parts, (train, later), strict=True)
    ]
    series = [SeriesSource(scores.batches(model, part, BATCH, PARITY)) for part in parts]
    count = series[0].length * BATCH
    return Task(
        "adult",
        "Adult in batches of 32, parity of sex",
        "The mean logistic loss of whether a person earns more than 50,000 dollars a year, while mean scores of women "
        f"and men differ by at most {PARITY}. {BATCH} people a sample, in no order: independent data.",
        train.source,
        model,
        series[0],
        np.zeros(parts[0].X.shape[1]),
        series[0].length,
        series[1],
        lambda: scores.optimum(parts[0].cut(slice(count)), PARITY, RADIUS),
        "any",
        tables[0]._replace(later=tables[1]),
    )


def _compas_parts(quick: bool) -> tuple[Dataset, np.ndarray, np.ndarray]:
    """The table, the rows of the first four fifths and those of the last fifth."""
    data = compas()
    if quick:
        data = data.rows(np.arange(2000))
    cut = len(data) * 4 // 5
    return data, np.arange(cut), np.arange(cut, len(data))


def _compas_rows(data: Dataset, rows: np.ndarray, train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels. Age and priors are in standard deviations of the training part."""
    numbers = data[["age", "priors_count"]]
    columns = [
        np.ones(len(rows)),
        *scores.z_scores(numbers[rows], numbers[train]).T,
        data["sex"][rows] == "Male",
        data["c_charge_degree"][rows] == "F",
        data["juv_fel_count"][rows] > 0,
    ]
    return np.column_stack(columns).astype(float), np.where(data["two_year_recid"][rows] == 1, 1.0, -1.0)


def _adult_rows(data: Dataset, train: Dataset) -> scores.Scores:
    """An intercept, five numbers in standard deviations, and a column for each value of five kinds."""
    numbers = scores.z_scores(data[NUMBERS], train[NUMBERS])
    kinds = [data[kind][:, None] == np.unique(train[kind])[None] for kind in KINDS]
    X = np.hstack([np.ones((len(data), 1)), numbers, *kinds])
    return scores.Scores(X, np.where(data["income"] == ">50K", 1.0, -1.0), scores.between(data["sex"] == "Male"))


def _neyman_optimum(X: np.ndarray, y: np.ndarray) -> Optimum:
    charged, others = X[y > 0], X[y < 0]

    def mean(rows: np.ndarray, sign: float, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        margins = sign * (rows @ x)
        slopes = -sign / (1 + np.exp(margins))
        return np.array([np.logaddexp(0, -margins).mean()]), (slopes @ rows / len(rows))[None]

    def constraints(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, jac = mean(others, -1.0, x)
        return values - FALSE_ALARMS, jac

    return slsqp(lambda x: mean(charged, 1.0, x), constraints, np.zeros(X.shape[1]), RADIUS)
