"""Tasks on tables of people: COMPAS by date of screening, Adult in no order, and a Neyman-Pearson classifier."""

from __future__ import annotations

import numpy as np

from ergodrift.data.series import SeriesSource
from ergodrift.datasets import Dataset, adult
from ergodrift.geometry import Ball
from ergodrift.peers.task import Optimum, Table, Task
from ergodrift.peers.tasks.scores import optimum
from ergodrift.peers.tasks.solvers import slsqp
from ergodrift.problem import Problem
from ergodrift.problems import scores
from ergodrift.problems.detection import compas_parts, compas_rows, false_alarm, miss, series

RADIUS = 5.0
PARITY = 0.1  # the largest difference of mean scores
BATCH = 32  # rows of Adult in a sample
FALSE_ALARMS = 0.5  # the largest mean of log(1 + exp(score)) over those not charged again; 0.69 for a score of 0
NUMBERS = ["age", "education_num", "capital_gain", "capital_loss", "hours_per_week"]
KINDS = ["workclass", "marital_status", "occupation", "relationship", "race"]


def compas_parity(quick: bool = False) -> Task:
    """COMPAS, row by row in the order of screening, with parity between African-American people and others."""
    data, train, later = compas_parts(quick)
    group = data["race"] == "African-American"
    model = scores.model_of(RADIUS)
    parts = [scores.Scores(*compas_rows(data, rows, train), scores.between(group[rows])) for rows in (train, later)]
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
        lambda: optimum(parts[0], PARITY, RADIUS),
        "time",
        tables[0]._replace(later=tables[1]),
    )


def neyman_pearson(quick: bool = False) -> Task:
    """A Neyman-Pearson classifier on COMPAS: the fewest misses while false alarms keep a limit, both as surrogates."""
    data, train, later = compas_parts(quick)
    parts = [compas_rows(data, rows, train) for rows in (train, later)]

    tables = [Table(*part, part[1] > 0, "false_positive_rate", FALSE_ALARMS) for part in parts]
    return Task(
        "neyman",
        "Neyman-Pearson on COMPAS by date",
        "The mean of log(1 + exp(-score)) over people who are charged again, while that of log(1 + exp(score)) over "
        f"the others is at most {FALSE_ALARMS}. One person a sample, by date of screening.",
        data.source,
        Problem(miss, false_alarm(FALSE_ALARMS), Ball(RADIUS)),
        series(*parts[0]),
        np.zeros(parts[0][0].shape[1]),
        len(train),
        series(*parts[1]),
        lambda: neyman_optimum(*parts[0], FALSE_ALARMS),
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
        lambda: optimum(parts[0].cut(slice(count)), PARITY, RADIUS),
        "any",
        tables[0]._replace(later=tables[1]),
    )


def _adult_rows(data: Dataset, train: Dataset) -> scores.Scores:
    """An intercept, five numbers in standard deviations, and a column for each value of five kinds."""
    numbers = scores.z_scores(data[NUMBERS], train[NUMBERS])
    kinds = [data[kind][:, None] == np.unique(train[kind])[None] for kind in KINDS]
    X = np.hstack([np.ones((len(data), 1)), numbers, *kinds])
    return scores.Scores(X, np.where(data["income"] == ">50K", 1.0, -1.0), scores.between(data["sex"] == "Male"))


def neyman_optimum(X: np.ndarray, y: np.ndarray, limit: float) -> Optimum:
    """In NumPy, by SLSQP."""
    charged, others = X[y > 0], X[y < 0]

    def mean(rows: np.ndarray, sign: float, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        margins = sign * (rows @ x)
        slopes = -sign / (1 + np.exp(margins))
        return np.array([np.logaddexp(0, -margins).mean()]), (slopes @ rows / len(rows))[None]

    def constraints(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, jac = mean(others, -1.0, x)
        return values - limit, jac

    return slsqp(lambda x: mean(charged, 1.0, x), constraints, np.zeros(X.shape[1]), RADIUS)
