"""Tasks on the flights from New York City: late or not with parity over carriers, and fifty airports on a graph."""

from __future__ import annotations

import functools

import numpy as np

from ergodrift.data.chain import MarkovChain
from ergodrift.data.series import SeriesSource
from ergodrift.data.tables import MarkovSource
from ergodrift.datasets import Dataset, airports, flights
from ergodrift.peers.task import Table, Task
from ergodrift.peers.tasks import scores

RADIUS = 5.0
LATE = 15  # minutes; a flight that was cancelled or diverted is late too
PARITY = 0.1  # how far the mean score of a carrier may be from the mean of all
LARGE = 0.05  # share of flights from which on a carrier counts
BATCH = 16  # flights in a sample, next to each other in time
OCTOBER = np.datetime64("2013-10-01")
REGIONAL = ("9E", "EV", "MQ", "OO", "YV")  # carriers that fly for others
AGENTS, ROWS, NEIGHBOURS = 50, 200, 3  # airports, flights that each keeps, and airports each is linked to


def carriers(quick: bool = False) -> Task:
    """Flights in the order of the schedule, 16 a sample, with parity over the larger carriers."""
    data, train, later = _parts()
    if quick:
        train, later = train[: 2000 * BATCH], later[: 500 * BATCH]
    names, counts = np.unique(data["carrier"][train], return_counts=True)
    names = names[counts > LARGE * len(train)]
    model = scores.model_of(RADIUS)
    parts, tables = [], []
    for rows in (train, later):
        rows = rows[: len(rows) // BATCH * BATCH]
        X, y = _features(data, train)[rows], _late(data)[rows]
        parts.append(scores.Scores(X, y, scores.from_all(data["carrier"][rows], names)))
        tables.append(Table(X, y, data["carrier"][rows], "demographic_parity", PARITY))
    series = [SeriesSource(scores.batches(model, part, BATCH, PARITY)) for part in parts]
    return Task(
        "flights",
        "Flights late or not, parity over carriers",
        f"The mean logistic loss of whether a flight arrives more than {LATE} minutes late, or not at all, while the "
        f"mean score of each of {len(names)} larger carriers is within {PARITY} of the mean of all. {BATCH} flights a "
        "sample, in the order of the schedule; January to September, and the rest of the year is later.",
        data.source,
        model,
        series[0],
        np.zeros(parts[0].X.shape[1]),
        series[0].length,
        series[1],
        lambda: scores.optimum(parts[0], PARITY, RADIUS),
        "time",
        tables[0]._replace(later=tables[1]),
    )


def network(quick: bool = False) -> Task:
    """Fifty airports that keep their own flights, each linked to the nearest: a walk goes from one to the next."""
    data, train, later = _parts()
    codes, graph = _graph()
    X, y = _features(data, train), _late(data)
    regional = np.isin(data["carrier"], REGIONAL)
    model, chain = scores.model_of(RADIUS), MarkovChain.from_graph(graph, kind="metropolis")

    def kept(rows: np.ndarray) -> list[np.ndarray]:
        """For each airport, flights spread evenly over the time."""
        own = [rows[data["dest"][rows] == code] for code in codes]
        return [held[np.linspace(0, len(held) - 1, ROWS).astype(int)] for held in own]

    def source(rows: list[np.ndarray]) -> tuple[MarkovSource, scores.Scores]:
        everyone = np.concatenate(rows)
        contrast = np.zeros((len(y), 1))
        contrast[everyone] = scores.between(regional[everyone])
        table = scores.states(model, [X[r] for r in rows], [y[r] for r in rows], [contrast[r] for r in rows], PARITY)
        return MarkovSource(chain, table), scores.Scores(X[everyone], y[everyone], contrast[everyone])

    (now, rows), (then, _) = source(kept(train)), source(kept(later))
    return Task(
        "network",
        "Fifty airports on a graph, parity of regional carriers",
        f"The mean logistic loss of whether a flight is late, over {AGENTS} airports of arrival that keep {ROWS} "
        "flights each, while mean scores of regional and of other carriers differ by at most "
        f"{PARITY}. A Metropolis walk over a graph of near airports visits one a sample.",
        data.source,
        model,
        now,
        np.zeros(X.shape[1]),
        3000 if quick else 20_000,
        then,
        lambda: scores.optimum(rows, PARITY, RADIUS),
        "drawn",
    )


def _parts() -> tuple[Dataset, np.ndarray, np.ndarray]:
    """The flights, the rows until September and those from October on."""
    data = flights()
    later = data["date"] >= OCTOBER
    return data, np.flatnonzero(~later), np.flatnonzero(later)


def _late(data: Dataset) -> np.ndarray:
    delay = data["arr_delay"]
    return np.where(np.isnan(delay) | (delay > LATE), 1.0, -1.0)


def _features(data: Dataset, train: np.ndarray) -> np.ndarray:
    """What is known at departure: the time of day, the distance, where from, a weekend or not, and the weather.

    Numbers are in standard deviations of the training part.
    """
    hour = 2 * np.pi * data["minutes"] / (24 * 60)
    numbers = data[["minutes", "distance", "temp", "humid", "wind_speed", "precip", "pressure", "visib"]]
    weekend = (data["date"].astype(int) + 3) % 7 >= 5  # 1 January 1970 was a Thursday
    columns = [
        np.ones(len(data)),
        *scores.z_scores(numbers, numbers[train]).T,
        np.sin(hour),
        np.cos(hour),
        data["origin"] == "EWR",
        data["origin"] == "LGA",
        weekend,
    ]
    return np.column_stack(columns).astype(float)


@functools.cache
def _graph() -> tuple[np.ndarray, np.ndarray]:
    """The airports of arrival that most flights go to, and who is linked to whom: three nearest ones, or nearest parts.

    Parts of the graph that hang together nowhere are joined by the shortest link between them.
    """
    data, train, later = _parts()
    places = airports()
    where = {code: (lat, lon) for code, lat, lon in zip(places["faa"], places["lat"], places["lon"], strict=True)}
    codes, counts = np.unique(data["dest"][train], return_counts=True)
    fewest = np.array([min(n, (data["dest"][later] == code).sum()) for code, n in zip(codes, counts, strict=True)])
    chosen = [code for code in codes[np.argsort(-fewest, kind="stable")] if code in where][:AGENTS]
    lat, lon = np.deg2rad([where[code] for code in chosen]).T
    unit = np.column_stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)])
    far = np.arccos(np.clip(unit @ unit.T, -1, 1)) + 9 * np.eye(AGENTS)
    graph = np.zeros((AGENTS, AGENTS), dtype=int)
    for i, near in enumerate(np.argsort(far, axis=1)[:, :NEIGHBOURS]):
        graph[i, near] = graph[near, i] = 1
    while len(inside := _reached(graph)) < AGENTS:
        outside = np.setdiff1d(np.arange(AGENTS), inside)
        i, j = np.unravel_index(np.argmin(far[np.ix_(inside, outside)]), (len(inside), len(outside)))
        graph[inside[i], outside[j]] = graph[outside[j], inside[i]] = 1
    return np.array(chosen), graph


def _reached(graph: np.ndarray) -> np.ndarray:
    """All that can be reached from the first."""
    seen = np.arange(len(graph)) == 0
    while (wider := seen | (graph[seen].sum(axis=0) > 0)).sum() > seen.sum():
        seen = wider
    return np.flatnonzero(seen)
