"""Finite Markov chains: stationary law, mixing time, spectral bounds and paths."""

from __future__ import annotations

import functools

import jax
import numpy as np
import scipy
from numpy.typing import ArrayLike

from ergodrift._core import check
from ergodrift.data import mixing
from ergodrift.data.sampler import BLOCK, Categorical, Transitions, draw
from ergodrift.data.stationary import stationary_law
from ergodrift.types import PyTree

DENSE_LIMIT = 2048  # states up to which a graph's walk is held as a dense matrix
LARGEST = 4096  # states up to which powers and spectra are computed; each takes seconds there


class MarkovChain:
    """A time-homogeneous, irreducible and aperiodic chain on states 0..S-1 (Kim and Lee, section 2.1).

    Args:
        P: transition matrix, row-stochastic, dense or scipy.sparse.

    >>> chain = MarkovChain([[0.9, 0.1], [0.3, 0.7]])
    >>> chain.stationary.round(6)
    array([0.75, 0.25])
    >>> chain.mixing_time()
    3
    """

    def __init__(self, P: ArrayLike | scipy.sparse.sparray) -> None:
        self.P = _validated(P)

    def __repr__(self) -> str:
        return f"MarkovChain({self.num_states} states)"

    @staticmethod
    def from_graph(graph: object, kind: str = "metropolis") -> MarkovChain:
        """A random walk over a network.

        With d_i the degree (the sum of the edge weights w_ij at node i):

        - "metropolis": P_ij = w_ij / (1 + max(d_i, d_j)), the rest stays; uniform law (Xiao, Boyd and Lall 2005);
        - "max_degree": P_ij = w_ij / (1 + max_k d_k), the rest stays; uniform law;
        - "lazy": stay with probability 1/2, else as "simple"; law proportional to degree;
        - "simple": P_ij = w_ij / d_i; refused where it is periodic, as on an even ring.

        The 1 in the first two keeps every node's holding probability positive, so they are never periodic.

        Args:
            graph: a networkx graph, or an adjacency matrix, dense or scipy.sparse. State i is its i-th node.
            kind: which walk.

        >>> ring = np.roll(np.eye(5), 1, axis=1) + np.roll(np.eye(5), -1, axis=1)
        >>> MarkovChain.from_graph(ring).P[0].round(4)
        array([0.3333, 0.3333, 0.    , 0.    , 0.3333])
        """
        check.choice("kind", kind, ("metropolis", "max_degree", "lazy", "simple"))
        weights = _adjacency(graph)
        degree = np.asarray(weights.sum(axis=1)).ravel()
        if (degree == 0).any():
            raise ValueError(f"graph: node {int(np.argmin(degree))} has no edge out of it; a walk cannot leave it")
        rows, cols = weights.nonzero()
        values = np.asarray(weights[rows, cols]).ravel()
        symmetric = abs(weights - weights.T).max() <= 1e-12 * abs(weights).max()
        if kind in ("metropolis", "max_degree"):
            if not symmetric:
                raise ValueError(f"graph: kind={kind!r} needs a symmetric adjacency matrix; use 'simple' or 'lazy'")
            bound = np.maximum(degree[rows], degree[cols]) if kind == "metropolis" else degree.max()
            moves = scipy.sparse.csr_array((values / (1 + bound), (rows, cols)), shape=weights.shape)
            P = moves + scipy.sparse.diags_array(1 - np.asarray(moves.sum(axis=1)).ravel())
        else:
            P = scipy.sparse.csr_array((values / degree[rows], (rows, cols)), shape=weights.shape)
            P = (P + scipy.sparse.eye_array(len(degree))) / 2 if kind == "lazy" else P
        P = scipy.sparse.csr_array(P)
        chain = MarkovChain(P.toarray() if len(degree) <= DENSE_LIMIT else P)
        if symmetric:  # the law is known, and on a large graph costs much to find
            law = np.ones(len(degree)) if kind in ("metropolis", "max_degree") else degree
            chain.__dict__["stationary"] = law / law.sum()
        return chain

    @property
    def num_states(self) -> int:
        return self.P.shape[0]

    @functools.cached_property
    def stationary(self) -> np.ndarray:
        """mu, the law with mu P = mu, to relative rounding in every state."""
        return stationary_law(self.P)

    @functools.cached_property
    def is_reversible(self) -> bool:
        """Whether mu_i P_ij = mu_j P_ji."""
        flow = scipy.sparse.csr_array(
            scipy.sparse.csr_array(self.P) * self.stationary[:, None]
        )  # edge by edge: rare cycles count too
        gap = scipy.sparse.coo_array(abs(flow - flow.T) - 1e-8 * (flow + flow.T))
        return not (gap.data > 0).any()

    @functools.cached_property
    def eigenvalues(self) -> np.ndarray:
        """The real spectrum of a reversible chain, largest first."""
        if not self.is_reversible:
            raise ValueError("the spectrum is real for reversible chains only; this chain is not reversible")
        return self._spectrum[0]

    @functools.cached_property
    def _spectrum(self) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues, largest first, and eigenvectors of the symmetric matrix similar to P of a reversible chain."""
        P = self._dense()  # by detailed balance sqrt(mu_i / mu_j) P_ij = sqrt(P_ij P_ji), whatever is rare
        values, vectors = scipy.linalg.eigh(np.sqrt(P * P.T), driver="evd")
        return values[::-1], vectors[:, ::-1]

    @functools.cached_property
    def relaxation_time(self) -> float:
        """1 / (1 - lambda*), with lambda* the largest modulus of an eigenvalue other than 1."""
        if self.num_states <= LARGEST or not self.is_reversible:
            return float(mixing.relaxation(self._dense(), self.stationary, self.eigenvalues, self._spectrum[1]))
        return mixing.relaxation_by_lanczos(scipy.sparse.csr_array(self.P), self.stationary)

    def distance(self, t: int) -> float:
        """d_mix(t) = max over starts i of || P^t(i, .) - mu ||_TV."""
        return mixing.distance(self._dense(), self.stationary, check.integer("t", t, at_least=1))

    def mixing_time(self, eps: float = 0.25) -> int:
        """tau_mix(eps) = the smallest t >= 1 with d_mix(t) <= eps, exactly, for any eps that doubles can tell.

        d_mix does not increase: t is doubled until d_mix is small enough and then bisected, in about 2 log2(tau) matrix
        products whose relative error is known (see `mixing`). For a large reversible chain it is bisected below the
        spectral bound; for more than 2,048 sparse states, starts are followed step by step if that takes seconds.
        Beyond 1e12 steps the last digits are lost to rounding. Refused by name: more states than can be multiplied out,
        and an eps at which rounding hides the answer.
        """
        eps = check.number("eps", eps, above=0)
        if scipy.sparse.issparse(self.P) and self.num_states > DENSE_LIMIT:
            t = mixing.time_by_steps(self.P, self.stationary, eps)
            if t is not None:
                return t
        P = self._dense()
        # Eigenvectors are divided by sqrt(mu): where a state is rare that magnifies their rounding too much. A long
        # relaxation time magnifies that of eigenvalues.
        if (
            self.num_states > mixing.FEW
            and eps > mixing.COARSE
            and self.stationary.min() > 1e-10
            and self.is_reversible
            and self.relaxation_time < 1e6
        ):
            return mixing.time_by_spectrum(*self._spectrum, self.stationary, eps, self.mixing_time_bounds(eps)[1])
        return mixing.time_by_powers(P, self.stationary, eps)

    def mixing_time_bounds(self, eps: float = 0.25) -> tuple[float, float]:
        """Spectral bounds (lower, upper) on the mixing time of a reversible chain.

        (t_rel - 1) log(1 / (2 eps)) <= tau_mix(eps) <= t_rel log(1 / (eps mu_min)), with t_rel the relaxation time
        (Levin and Peres 2017, theorems 12.4 and 12.5).
        """
        eps = check.number("eps", eps, above=0)
        relaxation = self.relaxation_time
        lower = (relaxation - 1) * np.log(1 / (2 * eps))
        upper = relaxation * np.log(1 / (eps * self.stationary.min()))
        return float(max(lower, 0.0)), float(max(upper, 1.0))

    def sample_path(self, key: jax.Array, length: int, start: int | None = None) -> jax.Array:
        """`length` consecutive states, int32; the first from the stationary law unless `start` names it."""
        length = check.integer("length", length, at_least=1)
        return draw(self.sampler(start), key, -(-length // BLOCK))[:length]

    def sampler(self, start: int | None = None) -> Transitions:
        """The chain as tables on the device, for drawing paths inside a compiled loop."""
        if start is None:
            first = self._start_table
        else:
            start = check.integer("start", start, at_least=0, at_most=self.num_states - 1)
            first = Categorical.from_weights(np.arange(self.num_states) == start)
        return self._transitions._replace(first=first)

    @functools.cached_property
    def _start_table(self) -> Categorical:
        return Categorical.from_weights(self.stationary)

    @functools.cached_property
    def _transitions(self) -> Transitions:
        return Transitions.from_matrix(self.P)

    def _dense(self) -> np.ndarray:
        if self.num_states > LARGEST:
            raise ValueError(
                f"exact distances, mixing times and spectra multiply dense matrices out, and {self.num_states} states "
                f"are too many for that (at most {LARGEST}): pass the tau_mix that you know to what asks for it; "
                "bound it by chain.mixing_time_bounds(), if the chain is reversible; or estimate it "
                "from a path, ed.diagnose(source)"
            )
        return self.P.toarray() if scipy.sparse.issparse(self.P) else self.P


def _validated(given: ArrayLike | scipy.sparse.sparray) -> PyTree:
    """P as a float64 array, or CSR where it came sparse, after all the checks."""
    sparse = scipy.sparse.issparse(given)
    P: PyTree = scipy.sparse.csr_array(given, dtype=float) if sparse else np.array(given, dtype=float)
    if P.ndim != 2 or P.shape[0] != P.shape[1] or P.shape[0] == 0:
        raise ValueError(f"P must be a square matrix, got shape {P.shape}")
    values = P.data if sparse else P
    if not np.isfinite(values).all():
        raise ValueError("P holds NaN or infinite entries")
    if values.size and values.min() < 0:
        raise ValueError(f"P must not be negative, got {values.min():g} as its smallest entry")
    sums = np.asarray(P.sum(axis=1)).ravel()
    worst = int(np.argmax(np.abs(sums - 1)))
    if abs(sums[worst] - 1) > 1e-6:
        raise ValueError(f"P must be row-stochastic: row {worst} sums to {sums[worst]:.6g}; divide each row by its sum")
    P = scipy.sparse.csr_array(P / sums[:, None]) if sparse else P / sums[:, None]
    pattern = scipy.sparse.csr_array(P)
    pattern.eliminate_zeros()
    count, labels = scipy.sparse.csgraph.connected_components(pattern, directed=True, connection="strong")
    if count > 1:
        other = int(np.argmax(labels != labels[0]))
        raise ValueError(
            f"P is reducible: it splits into {count} classes (states 0 and {other} do not reach each other both ways); "
            "keep one class or add transitions between them"
        )
    period = _period(pattern)
    if period > 1:
        raise ValueError(
            f"P is periodic with period {period}, so it has no mixing time; make it lazy with (P + I) / 2, "
            "or use MarkovChain.from_graph(graph, kind='lazy')"
        )
    return P


def _period(pattern: scipy.sparse.csr_array) -> int:
    """The period of an irreducible chain: the gcd of level(i) + 1 - level(j) over edges, levels breadth first."""
    order, parents = scipy.sparse.csgraph.breadth_first_order(pattern, 0, directed=True)
    level = np.zeros(pattern.shape[0], dtype=np.int64)
    for node in order[1:]:
        level[node] = level[parents[node]] + 1
    rows, cols = pattern.nonzero()
    return int(np.gcd.reduce(level[rows] + 1 - level[cols]))


def _adjacency(graph: PyTree) -> scipy.sparse.csr_array:
    """The weighted adjacency matrix in CSR form, of a networkx graph or a matrix."""
    if hasattr(graph, "adjacency") and hasattr(graph, "number_of_nodes"):
        import networkx

        graph = networkx.to_scipy_sparse_array(graph, format="csr")
    try:
        matrix = scipy.sparse.csr_array(graph, dtype=float, copy=True)
    except (TypeError, ValueError) as error:
        raise TypeError(f"graph must be a networkx graph or an adjacency matrix, got {type(graph).__name__}") from error
    shape: PyTree = matrix.shape
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] == 0:
        raise ValueError(f"graph: an adjacency matrix must be square, got shape {shape}")
    if not np.isfinite(matrix.data).all() or (matrix.data < 0).any():
        raise ValueError("graph: edge weights must be finite and not negative")
    matrix.eliminate_zeros()
    return matrix
