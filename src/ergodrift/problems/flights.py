"""Flights from New York City: late or not with parity over carriers, in time order and as a walk over airports."""

from __future__ import annotations

import functools

import numpy as np

from ergodrift import datasets
from ergodrift._core import check
from ergodrift.data.chain import MarkovChain
from ergodrift.data.series import SeriesSource
from ergodrift.data.tables import MarkovSource
from ergodrift.datasets import Dataset
from ergodrift.problem import LinearModel
from ergodrift.problems import scores
from ergodrift.problems.application import Application, solved
from ergodrift.problems.scores import Scores

RADIUS = 5.0
LATE = 15  # minutes; a flight that was cancelled or diverted is late too
PARITY = 0.1  # how far the mean score of a carrier may be from the mean of all
LARGE = 0.05  # share of flights from which on a carrier counts
BATCH = 16  # flights in a sample, next to each other in time
OCTOBER = np.datetime64("2013-10-01")
REGIONAL = ("9E", "EV", "MQ", "OO", "YV")  # carriers that fly for others
AGENTS, ROWS, NEIGHBOURS = 50, 200, 3  # airports, flights that each keeps, and airports each is linked to


def flight_parity(limit: float = PARITY) -> Application[LinearModel, SeriesSource]:
    """Whether a flight will be late, while no carrier is suspected more than the others, in the order of the schedule.

    Minimise the mean logistic loss of whether a flight arrives more than 15 minutes late, or not at all, subject to
    |mean score of carrier c - mean score of all| <= limit for each larger carrier. Sixteen flights a sample, January to
    September 2013; x weighs what is known at departure: time of day, distance, airport, weekend and weather.

    Args:
        limit: of the differences, in units of the score.
    """
    _, train, _ = parts()
    limit = check.number("limit", limit, above=0)
    model = scores.model_of(RADIUS)
    _, (rows,) = carrier_scores(train)
    return solved(model, SeriesSource(scores.batches(model, rows, BATCH, limit)), np.zeros(rows.X.shape[1]))


def airport_walk(limit: float = PARITY) -> Application[LinearModel, MarkovSource]:
    """The same question for fifty airports that keep their flights: a random walk visits one after the other.

    Parity is between regional and other carriers. The graph links near airports; the walk is Metropolis's, so that
    every airport counts alike.

    Args:
        limit: of the difference of mean scores.
    """
    _, train, _ = parts()
    model = scores.model_of(RADIUS)
    source, rows = airports_source(model, train, check.number("limit", limit, above=0))
    return solved(model, source, np.zeros(rows.X.shape[1]))


def carrier_scores(train: np.ndarray, *others: np.ndarray) -> tuple[np.ndarray, list[Scores]]:
    """The larger carriers, and the rows of each part with their contrasts."""
    data = parts()[0]
    names, counts = np.unique(data["carrier"][train], return_counts=True)
    names = names[counts > LARGE * len(train)]
    found = []
    for rows in (train, *others):
        rows = rows[: len(rows) // BATCH * BATCH]
        contrasts = scores.from_all(data["carrier"][rows], names)
        found.append(Scores(features(data, train)[rows], late(data)[rows], contrasts))
    return names, found


def airports_source(model: LinearModel, rows: np.ndarray, limit: float) -> tuple[MarkovSource, Scores]:
    """A walk over the airports, each with some of the flights of `rows` to it, spread evenly over the time."""
    data, train, _ = parts()
    codes, links = graph()
    X, y = features(data, train), late(data)
    own = [rows[data["dest"][rows] == code] for code in codes]
    kept = [held[np.linspace(0, len(held) - 1, ROWS).astype(int)] for held in own]
    everyone = np.concatenate(kept)
    contrast = np.zeros((len(y), 1))
    contrast[everyone] = scores.between(np.isin(data["carrier"][everyone], REGIONAL))
    table = scores.states(model, [X[r] for r in kept], [y[r] for r in kept], [contrast[r] for r in kept], limit)
    chain = MarkovChain.from_graph(links, kind="metropolis")
    return MarkovSource(chain, table), Scores(X[everyone], y[everyone], contrast[everyone])


def parts() -> tuple[Dataset, np.ndarray, np.ndarray]:
    """The flights, the rows until September and those from October on."""
    data = datasets.flights()
    later = data["date"] >= OCTOBER
    return data, np.flatnonzero(~later), np.flatnonzero(later)


def late(data: Dataset) -> np.ndarray:
    """1 for a flight that is late or does not arrive, else -1."""
    delay = data["arr_delay"]
    return np.where(np.isnan(delay) | (delay > LATE), 1.0, -1.0)


def features(data: Dataset, train: np.ndarray) -> np.ndarray:
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
def graph() -> tuple[np.ndarray, np.ndarray]:
    """The airports of arrival that most flights go to, and who is linked to whom: three nearest ones, or nearest parts.

    Parts of the graph that hang together nowhere are joined by the shortest link between them.
    """
    data, train, later = parts()
    places = datasets.airports()
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
