"""Matrix completion from a stream of single cells: how late which carrier is at which hour."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import check
from ergodrift.data.series import SeriesSource
from ergodrift.datasets import flights
from ergodrift.geometry import NuclearBall
from ergodrift.problem import Problem
from ergodrift.problems.application import Application, solved
from ergodrift.types import PyTree

MINUTES, LATEST = 30.0, 180.0  # of a unit of delay, and a delay that counts no more than this
BATCH = 16  # flights in a sample, next to each other in time
FIRST, HOURS, BAND = 5, 20, 5  # departures from 5:00 on, in bands of five hours
BIAS = 0.02  # units by which the forecast for an airport may be off in the mean
CARRIERS = 6  # those with most flights
AIRPORTS = ("EWR", "JFK", "LGA")


def delay_cells() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The carriers, and for each flight in the order of time its cell, its delay and its airport."""
    data = flights()
    kept = ~np.isnan(data["arr_delay"])
    names, counts = np.unique(data["carrier"], return_counts=True)
    carriers = np.sort(names[np.argsort(-counts)[:CARRIERS]])
    kept &= np.isin(data["carrier"], carriers)
    row = np.searchsorted(carriers, data["carrier"][kept])
    band = np.clip((data["minutes"][kept] // 60 - FIRST) // BAND, 0, HOURS // BAND - 1)
    return carriers, {
        "row": row.astype(np.int32),
        "column": band.astype(np.int32),
        "delay": np.clip(data["arr_delay"][kept], -LATEST, LATEST) / MINUTES,
        "airport": (data["origin"][kept][:, None] == np.array(AIRPORTS)).astype(float),
        "date": data["date"][kept],
    }


def completion(*, radius: float = 2.0, bias: float = BIAS, days: int = 273) -> Application[Problem, SeriesSource]:
    """Delays of carriers by hour as a matrix of low rank, cell by cell from flights in the order in which they left.

    Minimise E[(X[carrier, hour] - delay)^2] / 2 over matrices whose singular values sum to at most `radius`, subject to
    |E[X[carrier, hour] - delay | airport]| <= bias for the three airports: what is forecast for an airport is right in
    the mean, although X does not know airports (Candès and Recht 2009 for the domain). The six carriers with most
    flights by four bands of five hours.

    Args:
        radius: of the nuclear ball, in half hours.
        bias: in half hours.
        days: of 2013 from which flights are taken; the rest may serve as a test.
    """
    bias, days = check.number("bias", bias, above=0), check.integer("days", days, at_least=1, at_most=365)
    carriers, cells = delay_cells()
    until = np.searchsorted(cells.pop("date"), np.datetime64("2013-01-01") + days) // BATCH * BATCH
    train = {name: column[:until] for name, column in cells.items()}
    train["airport"] = train["airport"] / train["airport"].mean(axis=0)
    batches = {name: column.reshape(-1, BATCH, *column.shape[1:]) for name, column in train.items()}

    def off(x: PyTree, xi: PyTree) -> jax.Array:
        return x[xi["row"], xi["column"]] - xi["delay"]

    def loss(x: PyTree, xi: PyTree) -> jax.Array:
        return jnp.mean(jnp.square(off(x, xi))) / 2

    def constraints(x: PyTree, xi: PyTree) -> jax.Array:
        each = off(x, xi) @ xi["airport"] / BATCH
        return jnp.concatenate([each - bias, -each - bias])

    shape = len(carriers), HOURS // BAND
    return solved(Problem(loss, constraints, NuclearBall(radius)), SeriesSource(batches), np.zeros(shape))
