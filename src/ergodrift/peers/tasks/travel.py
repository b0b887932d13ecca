"""Tasks on the flights from New York City: late or not with parity over carriers, and fifty airports on a graph."""

from __future__ import annotations

import numpy as np

from ergodrift.data.series import SeriesSource
from ergodrift.peers.task import Table, Task
from ergodrift.peers.tasks.scores import optimum
from ergodrift.problems import flights, scores
from ergodrift.problems.flights import AGENTS, BATCH, LATE, PARITY, RADIUS, ROWS


def carriers(quick: bool = False) -> Task:
    """Flights in the order of the schedule, 16 a sample, with parity over the larger carriers."""
    data, train, later = flights.parts()
    if quick:
        train, later = train[: 2000 * BATCH], later[: 500 * BATCH]
    names, both = flights.carrier_scores(train, later)
    model = scores.model_of(RADIUS)
    tables = [
        Table(part.X, part.y, data["carrier"][rows[: len(part.y)]], "demographic_parity", PARITY)
        for part, rows in zip(both, (train, later), strict=True)
    ]
    series = [SeriesSource(scores.batches(model, part, BATCH, PARITY)) for part in both]
    return Task(
        "flights",
        "Flights late or not, parity over carriers",
        f"The mean logistic loss of whether a flight arrives more than {LATE} minutes late, or not at all, while the "
        f"mean score of each of {len(names)} larger carriers is within {PARITY} of the mean of all. {BATCH} flights a "
        "sample, in the order of the schedule; January to September, and the rest of the year is later.",
        data.source,
        model,
        series[0],
        np.zeros(both[0].X.shape[1]),
        series[0].length,
        series[1],
        lambda: optimum(both[0], PARITY, RADIUS),
        "time",
        tables[0]._replace(later=tables[1]),
    )


def network(quick: bool = False) -> Task:
    """Fifty airports that keep their own flights, each linked to the nearest: a walk goes from one to the next."""
    data, train, later = flights.parts()
    model = scores.model_of(RADIUS)
    (now, rows), (then, _) = (flights.airports_source(model, part, PARITY) for part in (train, later))
    return Task(
        "network",
        "Fifty airports on a graph, parity of regional carriers",
        f"The mean logistic loss of whether a flight is late, over {AGENTS} airports of arrival that keep {ROWS} "
        "flights each, while mean scores of regional and of other carriers differ by at most "
        f"{PARITY}. A Metropolis walk over a graph of near airports visits one a sample.",
        data.source,
        model,
        now,
        np.zeros(rows.X.shape[1]),
        3000 if quick else 20_000,
        then,
        lambda: optimum(rows, PARITY, RADIUS),
        "drawn",
    )
