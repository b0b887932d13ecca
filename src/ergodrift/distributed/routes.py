"""Ways for tokens to go: chains for any law, jumps out of corners, walks that avoid where they were, changing graphs.

`walk(..., law=...)` weighs the answer of agent i by law_i / stationary_i: so means are under the law that is asked for
whatever the chain's own, as on directed graphs, with jumps, or where slow agents are visited less.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike

from ergodrift._core import check
from ergodrift.data.chain import DENSE_LIMIT, MarkovChain
from ergodrift.types import PyTree


def hastings(graph: object, law: ArrayLike) -> MarkovChain:
    """The Metropolis-Hastings walk on a graph with a given stationary law (Hastings 1970).

    A neighbour j of i is proposed with probability w_ij / (1 + d_i), and taken with min(1, law_j q_ji / law_i q_ij).

    Args:
        graph: as in `MarkovChain.from_graph`, each edge in both directions.
        law: (agents,) positive weights.

    >>> ring = np.roll(np.eye(5), 1, axis=1) + np.roll(np.eye(5), -1, axis=1)
    >>> hastings(ring, [1, 2, 3, 2, 2]).stationary.round(6)
    array([0.1, 0.2, 0.3, 0.2, 0.2])
    """
    wanted = _law(law, "law")
    weights = _sparse(graph)
    if weights.shape[0] != len(wanted):
        raise ValueError(f"law has {len(wanted)} entries, the graph {weights.shape[0]} nodes")
    if abs(weights - weights.T).max() > 0:
        raise ValueError("graph: edges must have the same weight in both directions; for others use walk(law=...)")
    degree = np.asarray(weights.sum(axis=1)).ravel()
    rows, cols = weights.nonzero()
    proposed = np.asarray(weights[rows, cols]).ravel() / (1 + degree[rows])
    back = np.asarray(weights[cols, rows]).ravel() / (1 + degree[cols])
    moves = np.minimum(proposed, wanted[cols] * back / wanted[rows])
    P = scipy.sparse.csr_array((moves, (rows, cols)), shape=weights.shape)
    P = scipy.sparse.csr_array(P + scipy.sparse.diags_array(1 - np.asarray(P.sum(axis=1)).ravel()))
    chain = MarkovChain(P.toarray() if len(wanted) <= DENSE_LIMIT else P)
    chain.__dict__["stationary"] = wanted  # by detailed balance
    return chain


def paced(graph: object, seconds: ArrayLike) -> MarkovChain:
    """A walk that visits slow agents less: law_i ~ 1 / sqrt(seconds_i), with seconds_i how long agent i takes.

    Of all laws it has the least variance of an importance-weighted mean for the time spent, where agents differ alike
    (Cochran 1977, section 5.5). Use it with walk(law="uniform"), which weighs the rarer answers up.

    >>> ring = np.roll(np.eye(4), 1, axis=1) + np.roll(np.eye(4), -1, axis=1)
    >>> paced(ring, [0.01, 0.01, 0.01, 0.04]).stationary.round(4)
    array([0.2857, 0.2857, 0.2857, 0.1429])
    """
    return hastings(graph, 1 / np.sqrt(_law(seconds, "seconds")))


def levy(graph: object, jump: float = 0.1, reach: int = 4, kind: str = "metropolis") -> MarkovChain:
    """A walk that now and then makes several steps at once, and so leaves corners that it would be trapped in.

    P = (1 - jump) W + jump sum_k q_k W^k, k = 2, ..., reach, with q_k ~ 2^-k: as the Levy jumps of Liu, El Rouayheb and
    Dwyer (2024), but with the walk W itself, so that its stationary law stays what it is. The hub sends a token
    wherever it goes, so a jump costs no more than a step.

    >>> ring = np.roll(np.eye(9), 1, axis=1) + np.roll(np.eye(9), -1, axis=1)
    >>> MarkovChain.from_graph(ring).mixing_time(), levy(ring, 0.5).mixing_time()
    (6, 4)
    """
    jump, reach = check.number("jump", jump, above=0, below=1), check.integer("reach", reach, at_least=2, at_most=16)
    base = MarkovChain.from_graph(graph, kind)
    W = scipy.sparse.csr_array(base.P)
    shares = 0.5 ** np.arange(2, reach + 1)
    P, power = (1 - jump) * W, W
    for share in shares / shares.sum():
        power = scipy.sparse.csr_array(power @ W)
        P = P + jump * share * power
    chain = MarkovChain(P.toarray() if base.num_states <= DENSE_LIMIT else scipy.sparse.csr_array(P))
    chain.__dict__["stationary"] = base.stationary
    return chain


class Route(Protocol):
    """A way that no Markov chain on the agents describes: its paths are drawn before a walk begins."""

    @property
    def chain(self) -> MarkovChain:
        """A chain with the same long-run law, on the same agents."""
        ...

    def paths(self, seeds: Sequence[int], hops: int) -> np.ndarray:
        """(seeds, hops) agents to visit."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class SelfRepellent:
    """A walk that avoids agents it has visited much (Doshi, Hu and Eun 2023).

    From i it goes to j with probability ~ P_ij (visits_j / mu_j)^-strength. In the long run it visits agents as P does,
    by mu, and its averages have less variance: a factor of 1 + 2 strength at least.

    Attributes:
        chain: P, reversible.
        strength: alpha of the paper; 0 is P itself.
    """

    chain: MarkovChain
    strength: float = 2.0

    def paths(self, seeds: Sequence[int], hops: int) -> np.ndarray:
        strength = check.number("strength", self.strength, at_least=0)
        mu = self.chain.stationary
        P: PyTree = scipy.sparse.csr_array(self.chain.P)
        out = np.zeros((len(seeds), hops), np.int32)
        for row, seed in enumerate(seeds):
            rng = np.random.default_rng([int(seed), 1])
            visits, place = mu * len(mu), int(rng.choice(len(mu), p=mu))  # as if each had been visited once or so
            for hop in range(hops):
                out[row, hop] = place
                visits[place] += 1
                near = slice(P.indptr[place], P.indptr[place + 1])
                often = visits[P.indices[near]] / mu[P.indices[near]]
                weights = P.data[near] * (often / often.min()) ** -strength
                place = int(P.indices[near][_drawn(weights, rng.random() * weights.sum())])
        return out


@dataclasses.dataclass(frozen=True, eq=False)
class Changing:
    """A graph that changes: the walk on graphs[0] for `every` hops, then on graphs[1], and so on, over and over.

    "metropolis" walks have the uniform law on every graph, so it stays the law while graphs change, even where single
    ones are not connected, as long as all together are (Nedic and Ozdaglar 2009).

    Attributes:
        graphs: on the same nodes, each with an edge at every node.
        every: hops between changes.
    """

    graphs: Sequence[object]
    every: int = 1

    @property
    def chain(self) -> MarkovChain:
        together = sum((_sparse(graph) for graph in self.graphs[1:]), start=_sparse(self.graphs[0]))
        return MarkovChain.from_graph(together, "metropolis")

    def paths(self, seeds: Sequence[int], hops: int) -> np.ndarray:
        every = check.integer("every", self.every, at_least=1)
        moves = [_metropolis(graph) for graph in self.graphs]
        count = moves[0].shape[0]
        rngs = [np.random.default_rng([int(seed), 2]) for seed in seeds]
        places = np.array([rng.integers(count) for rng in rngs])
        out = np.zeros((len(seeds), hops), np.int32)
        for hop in range(hops):
            out[:, hop] = places
            P = moves[hop // every % len(moves)]
            places = np.array([_step(P, int(at), rng.random()) for at, rng in zip(places, rngs, strict=True)])
        return out


def _step(P: scipy.sparse.csr_array, place: int, uniform: float) -> int:
    first, last = P.indptr[place], P.indptr[place + 1]
    return int(P.indices[first + _drawn(P.data[first:last], uniform)])


def _drawn(weights: np.ndarray, at: float) -> int:
    """In whose share of the weights, one after the other, this lies; rounding may take it beyond the last."""
    return min(int(np.searchsorted(np.cumsum(weights), at, side="right")), len(weights) - 1)


def _metropolis(graph: object) -> PyTree:
    """The walk of `MarkovChain.from_graph`, on a graph that need not be connected."""
    weights = _sparse(graph)
    if abs(weights - weights.T).max() > 0:
        raise ValueError("graphs must have each edge in both directions, for the law to stay uniform")
    degree = np.asarray(weights.sum(axis=1)).ravel()
    rows, cols = weights.nonzero()
    values = np.asarray(weights[rows, cols]).ravel() / (1 + np.maximum(degree[rows], degree[cols]))
    moves = scipy.sparse.csr_array((values, (rows, cols)), shape=weights.shape)
    return scipy.sparse.csr_array(moves + scipy.sparse.diags_array(1 - np.asarray(moves.sum(axis=1)).ravel()))


def _sparse(graph: PyTree) -> PyTree:
    if hasattr(graph, "number_of_nodes"):
        import networkx

        graph = networkx.to_scipy_sparse_array(graph)
    return scipy.sparse.csr_array(graph, dtype=float)


def _law(law: ArrayLike, name: str) -> np.ndarray:
    law = np.asarray(law, float)
    if law.ndim != 1 or not np.isfinite(law).all() or not (law > 0).all():
        raise ValueError(f"{name} must be positive numbers, one for each agent, got {law!r}")
    return law / law.sum()
