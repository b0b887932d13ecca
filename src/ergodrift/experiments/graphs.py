"""Graphs by name, with places to draw them."""

from __future__ import annotations

import numpy as np
import scipy

GRAPHS = ("ring", "grid", "star", "geometric", "complete")


def network(graph: str, agents: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A graph by its name: adjacency (agents, agents), and places (agents, 2) to draw it with.

    "geometric" joins agents at random places where they are near each other, and what that leaves apart by a least
    spanning tree.

    >>> adjacency, _ = network("star", 4)
    >>> adjacency[0].astype(int).tolist()
    [0, 1, 1, 1]
    """
    numbers = np.arange(agents)
    places = _circle(numbers / agents)
    if graph == "ring":
        joined = np.isin((numbers[:, None] - numbers) % agents, (1, agents - 1))
    elif graph == "complete":
        joined = ~np.eye(agents, dtype=bool)
    elif graph == "star":
        joined = (numbers[:, None] == 0) ^ (numbers == 0)
        places = np.where(numbers[:, None] == 0, 0.0, _circle(numbers / (agents - 1)))
    elif graph == "grid":
        places = np.stack(np.divmod(numbers, int(np.ceil(np.sqrt(agents))))[::-1], axis=1).astype(float)
        joined = np.abs(places[:, None] - places).sum(axis=2) == 1
    elif graph == "geometric":
        places = _scattered(np.random.default_rng([seed, agents]), agents)
        apart = np.linalg.norm(places[:, None] - places, axis=2)
        tree = scipy.sparse.csgraph.minimum_spanning_tree(apart).toarray()
        joined = (apart < np.sqrt(8 / (np.pi * agents))) & (apart > 0) | (tree + tree.T > 0)  # 4 neighbours or so
    else:
        raise ValueError(f"graph must be one of {', '.join(GRAPHS)}, got {graph!r}")
    return joined.astype(float), places


def _circle(turns: np.ndarray) -> np.ndarray:
    """Places on the unit circle, clockwise from the top of the picture, whose second axis points down."""
    return np.stack([np.sin(2 * np.pi * turns), -np.cos(2 * np.pi * turns)], axis=1)


def _scattered(rng: np.random.Generator, count: int) -> np.ndarray:
    """Random places in the unit square, none close to another: the farthest of ten candidates each (Mitchell 1991)."""
    places = rng.random((1, 2))
    while len(places) < count:
        candidates = rng.random((10, 2))
        apart = np.linalg.norm(candidates[:, None] - places, axis=2).min(axis=1)
        places = np.vstack([places, candidates[np.argmax(apart)]])
    return places
