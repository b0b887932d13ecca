"""Chains against brute force, golden values, closed forms and the frequencies of long paths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from ergodrift import MarkovChain

PROPERTY = settings(derandomize=True, database=None, deadline=None, max_examples=30)
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "golden.json").read_text())["chains"]

every_golden = pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["name"])


@st.composite
def matrices(draw: Any, symmetric: bool = False) -> np.ndarray:
    """Transition matrices of 2 to 5 states, some of them slow; reversible where their weights are symmetric."""
    size = draw(st.integers(2, 5))
    weights = draw(hnp.arrays(float, (size, size), elements=st.floats(0.01, 1.0)))
    weights = weights + weights.T if symmetric else weights
    P = weights / weights.sum(axis=1, keepdims=True)
    speed = draw(st.sampled_from([1.0, 0.3, 0.02]))
    return speed * P + (1 - speed) * np.eye(size)


def distances(P: np.ndarray, law: np.ndarray, count: int) -> np.ndarray:
    """d_mix(0), ..., d_mix(count), one step at a time."""
    power, found = np.eye(len(P)), []
    for _ in range(count + 1):
        found.append(0.5 * np.abs(power - law).sum(axis=1).max())
        power = power @ P
    return np.array(found)


# Stationary law


@PROPERTY
@given(P=matrices())
def test_the_stationary_law_is_a_law_that_a_step_leaves_alone(P):
    for matrix in (P, sp.csr_array(P)):
        law = MarkovChain(matrix).stationary
        assert law.min() > 0
        np.testing.assert_allclose(law.sum(), 1.0, rtol=1e-15)
        np.testing.assert_allclose(law @ P, law, rtol=1e-13)


def birth_death(size: int, up: float, down: float) -> tuple[np.ndarray, np.ndarray]:
    """A walk on a line with drift, and its law: proportional to (up / down)^i."""
    P = up * np.eye(size, k=1) + down * np.eye(size, k=-1)
    law = (up / down) ** np.arange(size)
    return P + np.diag(1 - P.sum(axis=1)), law / law.sum()


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(("up", "down"), [(0.1, 0.7), (0.7, 0.1)], ids=["first state likely", "first state rare"])
def test_rare_states_get_their_share(up, down, sparse):
    P, law = birth_death(30, up, down)
    chain = MarkovChain(sp.csr_array(P) if sparse else P)
    np.testing.assert_allclose(chain.stationary, law, rtol=0, atol=1e-14)
    np.testing.assert_allclose(chain.stationary, law, rtol=1e-9)
    # The spectrum of this walk is that of the symmetric matrix sqrt(P_ij P_ji).
    np.testing.assert_allclose(chain.eigenvalues, np.linalg.eigvalsh(np.sqrt(P * P.T))[::-1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("matrix", [np.array, sp.csr_array], ids=["dense", "sparse"])
def test_the_law_of_a_slow_chain_has_all_its_digits(matrix):
    p = 1e-9
    chain = MarkovChain(matrix([[1 - p, p], [2 * p, 1 - 2 * p]]))
    np.testing.assert_allclose(chain.stationary, [2 / 3, 1 / 3], rtol=1e-12)


def test_one_state_is_a_chain():
    for P in ([[1.0]], sp.csr_array([[1.0]])):
        chain = MarkovChain(P)
        assert chain.num_states == 1
        np.testing.assert_array_equal(chain.stationary, [1.0])
        assert chain.mixing_time() == 1
        np.testing.assert_array_equal(chain.sample_path(jax.random.key(0), 3), [0, 0, 0])


def test_rows_are_scaled_to_sum_exactly_one_and_the_given_matrix_is_left_alone():
    P = np.array([[0.9, 0.1000001], [0.3, 0.7]])
    np.testing.assert_allclose(MarkovChain(P).P.sum(axis=1), 1.0, rtol=1e-15)
    np.testing.assert_array_equal(P, [[0.9, 0.1000001], [0.3, 0.7]])


# Mixing


@PROPERTY
@given(P=matrices(), eps=st.floats(0.001, 0.6))
def test_mixing_time_equals_brute_force(P, eps):
    chain = MarkovChain(P)
    t = chain.mixing_time(eps)
    assert isinstance(t, int)
    assert t >= 1
    by_hand = distances(P, chain.stationary, t)
    # Equality up to rounding where eps happens to be a value of d_mix.
    assert by_hand[t] <= eps + 1e-12
    assert t == 1 or by_hand[t - 1] > eps - 1e-12


@PROPERTY
@given(P=matrices(), t=st.integers(1, 40))
def test_distance_equals_brute_force(P, t):
    chain = MarkovChain(P)
    np.testing.assert_allclose(chain.distance(t), distances(P, chain.stationary, t)[t], rtol=0, atol=1e-12)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("size", [20, 60])
@pytest.mark.parametrize(("up", "down"), [(0.1, 0.7), (0.7, 0.1)], ids=["first state likely", "first state rare"])
def test_mixing_time_counts_starts_in_rare_states(up, down, size, sparse):
    P, law = birth_death(size, up, down)  # the rarest state has probability 1e-16 or 1e-50
    chain, by_hand = MarkovChain(sp.csr_array(P) if sparse else P), distances(P, law, 200)
    for eps in (0.25, 0.001):
        assert chain.mixing_time(eps) == np.argmax(by_hand <= eps)


def test_a_rare_directed_cycle_is_not_reversible():
    # Two states flip; once in 10^12 steps the chain is sent round a one-way ring of 40 states before it comes back.
    P, rare = np.zeros((42, 42)), 1e-12
    P[0, :3], P[1, :2] = [0.5 - rare, 0.5, rare], [0.5, 0.5]
    P[range(2, 41), range(3, 42)], P[range(2, 42), range(2, 42)] = 0.9, 0.1
    P[41, [0, 2]] = 0.45
    chain = MarkovChain(P)
    assert not chain.is_reversible
    by_hand = distances(P, chain.stationary, 300)
    assert chain.mixing_time() == np.argmax(by_hand <= 0.25)


@pytest.mark.parametrize("eps", [0.9, 0.25, 1e-9])
def test_independent_draws_mix_in_one_step(eps):
    chain = MarkovChain(np.tile([0.5, 0.3, 0.2], (3, 1)))
    assert chain.mixing_time(eps) == 1
    assert chain.relaxation_time == pytest.approx(1.0, rel=1e-12)


@every_golden
def test_golden_chains(golden):
    chain = MarkovChain(golden["P"])
    np.testing.assert_allclose(chain.stationary, golden["stationary"], rtol=1e-12)
    assert {eps: chain.mixing_time(float(eps)) for eps in golden["tau_mix"]} == golden["tau_mix"]
    got = [chain.distance(int(t)) for t in golden["d_mix"]]
    np.testing.assert_allclose(got, list(golden["d_mix"].values()), rtol=0, atol=1e-12)
    assert chain.is_reversible == golden["reversible"]


@pytest.mark.parametrize("golden", [g for g in GOLDEN if "spectral" in g], ids=lambda golden: golden["name"])
def test_golden_spectra(golden):
    chain, spectral = MarkovChain(golden["P"]), golden["spectral"]
    np.testing.assert_allclose(chain.eigenvalues, spectral["eigenvalues"], rtol=0, atol=1e-13)
    # 1 / (1 - lambda*) magnifies rounding by up to 1 / (1 - 0.997)^2.
    np.testing.assert_allclose(chain.relaxation_time, spectral["t_rel"], rtol=1e-10)
    np.testing.assert_allclose(chain.mixing_time_bounds(), (spectral["lower"], spectral["upper"]), rtol=1e-10)


def test_the_symmetric_chain_has_its_closed_forms():
    p = 0.001  # d_mix(t) = 2/3 (1 - 3p)^t
    chain = MarkovChain(np.full((3, 3), p) + np.eye(3) * (1 - 3 * p))
    np.testing.assert_allclose(chain.relaxation_time, 1 / (3 * p), rtol=1e-10)
    for t in (1, 50, 3000):
        np.testing.assert_allclose(chain.distance(t), 2 / 3 * (1 - 3 * p) ** t, rtol=1e-9)
    for eps in (0.25, 0.01, 1e-8):
        assert chain.mixing_time(eps) == int(np.ceil(np.log(1.5 * eps) / np.log(1 - 3 * p)))


@PROPERTY
@given(P=matrices(symmetric=True), eps=st.floats(0.001, 0.99))
@example(P=np.full((2, 2), 0.5), eps=0.9)
def test_spectral_bounds_bracket_the_mixing_time(P, eps):
    chain = MarkovChain(P)
    assert chain.is_reversible
    lower, upper = chain.mixing_time_bounds(eps)
    assert lower <= chain.mixing_time(eps) <= upper


@PROPERTY
@given(P=matrices(symmetric=True))
def test_eigenvalues_are_those_of_the_matrix(P):
    np.testing.assert_allclose(MarkovChain(P).eigenvalues, np.sort(np.linalg.eigvals(P).real)[::-1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("ask", ["eigenvalues", "relaxation_time", "mixing_time_bounds"])
def test_spectra_are_refused_for_chains_that_are_not_reversible(ask):
    chain = MarkovChain([[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]])
    assert not chain.is_reversible
    with pytest.raises(ValueError, match="not reversible"):
        chain.mixing_time_bounds() if ask == "mixing_time_bounds" else getattr(chain, ask)


def test_mixing_time_of_a_ring_is_where_the_distance_crosses():
    chain = MarkovChain.from_graph(nx.cycle_graph(100), "lazy")
    t = chain.mixing_time()
    assert t > 500
    assert chain.distance(t) <= 0.25 < chain.distance(t - 1)


@pytest.mark.slow
def test_mixing_time_of_a_thousand_states():
    chain = MarkovChain.from_graph(nx.random_regular_graph(4, 1000, seed=1), "lazy")
    t = chain.mixing_time()
    lower, upper = chain.mixing_time_bounds()
    assert 1 < lower <= t <= upper


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda chain: chain.mixing_time(0), "eps must be .*> 0, got 0"),
        (lambda chain: chain.mixing_time(-0.1), "eps must be .*> 0, got -0.1"),
        (lambda chain: chain.mixing_time(float("nan")), "eps must be .*got nan"),
        (lambda chain: chain.mixing_time_bounds(0), "eps must be .*> 0, got 0"),
        (lambda chain: chain.distance(0), "t must be between 1 and .*got 0"),
        (lambda chain: chain.sample_path(jax.random.key(0), 0), "length must be between 1 and .*got 0"),
        (lambda chain: chain.sample_path(jax.random.key(0), 5, start=2), "start must be between 0 and 1, got 2"),
        (lambda chain: chain.sample_path(jax.random.key(0), 5, start=-1), "start must be between 0 and 1, got -1"),
    ],
)
def test_arguments_out_of_range_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(MarkovChain([[0.9, 0.1], [0.3, 0.7]]))


# What is refused as a transition matrix

NOT_CHAINS = [
    ([[0.5, 0.5]], r"P must be a square matrix, got shape \(1, 2\)"),
    ([0.5, 0.5], r"P must be a square matrix, got shape \(2,\)"),
    (np.zeros((0, 0)), r"P must be a square matrix, got shape \(0, 0\)"),
    ([[0.5, 0.5], [1.5, -0.5]], "P must not be negative, got -0.5 as its smallest entry"),
    ([[0.5, np.nan], [0.5, 0.5]], "P holds NaN or infinite entries"),
    ([[0.5, np.inf], [0.5, 0.5]], "P holds NaN or infinite entries"),
    ([[0.5, 0.5], [0.5, 0.4]], "P must be row-stochastic: row 1 sums to 0.9; divide each row by its sum"),
    ([[0.5, 0.5], [0.0, 0.0]], "P must be row-stochastic: row 1 sums to 0"),
    ([[0.5, 0.6, 0.0], [0.1, 0.1, 0.1], [0.2, 0.4, 0.4]], "row 1 sums to 0.3"),
    (np.eye(2), "P is reducible: it splits into 2 classes .*states 0 and 1"),
    ([[0.5, 0.5], [0.0, 1.0]], "P is reducible: it splits into 2 classes"),
    (
        [[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5]],
        "P is reducible: it splits into 2 classes .*states 0 and 2 do not reach each other",
    ),
    ([[0.0, 1.0], [1.0, 0.0]], r"P is periodic with period 2, .*\(P \+ I\) / 2"),
    (np.roll(np.eye(3), 1, axis=1), "P is periodic with period 3"),
]


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(("P", "message"), NOT_CHAINS)
def test_what_is_no_ergodic_chain_is_refused(P, message, sparse):
    with pytest.raises(ValueError, match=message):
        MarkovChain(sp.coo_array(np.array(P)) if sparse else P)


def cycles(*lengths: int) -> np.ndarray:
    """Directed cycles of these lengths that all pass through state 0."""
    size = 1 + sum(length - 1 for length in lengths)
    P, at = np.zeros((size, size)), 1
    for length in lengths:
        nodes = [0, *range(at, at + length - 1), 0]
        P[nodes[:-1], nodes[1:]] = 1.0
        at += length - 1
    return P / P.sum(axis=1, keepdims=True)


@PROPERTY
@given(lengths=st.lists(st.integers(2, 9), min_size=1, max_size=3))
def test_the_period_is_the_gcd_of_the_cycles(lengths):
    period = int(np.gcd.reduce(lengths))
    if period > 1:
        with pytest.raises(ValueError, match=f"periodic with period {period},"):
            MarkovChain(cycles(*lengths))
    else:
        assert MarkovChain(cycles(*lengths)).num_states == 1 + sum(length - 1 for length in lengths)


# Walks over graphs

WEIGHTED = nx.Graph()
WEIGHTED.add_weighted_edges_from([("a", "b", 2.0), ("b", "c", 0.5), ("c", "a", 1.0), ("c", "d", 3.0)])
GRAPHS = {
    "path": nx.path_graph(6),
    "star": nx.star_graph(5),
    "random": nx.random_regular_graph(3, 10, seed=3),
    "weighted": WEIGHTED,
    "self loop": nx.Graph([(0, 1), (1, 2), (2, 2)]),
}
FORMS = {
    "networkx": lambda graph: graph,
    "dense": nx.to_numpy_array,
    "list": lambda graph: nx.to_numpy_array(graph).tolist(),
    "csr": nx.to_scipy_sparse_array,
    "coo matrix": lambda graph: sp.coo_matrix(nx.to_scipy_sparse_array(graph)),
}
KINDS = ["metropolis", "max_degree", "lazy", "simple"]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", GRAPHS)
def test_walks_have_their_formula_and_their_law(name, kind, form):
    weights = nx.to_numpy_array(GRAPHS[name])
    degree = weights.sum(axis=1)
    if kind == "simple" and nx.is_bipartite(GRAPHS[name]):
        weights, degree = weights + np.eye(len(degree)), degree + 1  # loops make the walk aperiodic
        graph = nx.from_numpy_array(weights)
    else:
        graph = GRAPHS[name]
    wanted = {
        "metropolis": weights / (1 + np.maximum.outer(degree, degree)),
        "max_degree": weights / (1 + degree.max()),
        "lazy": weights / degree[:, None] / 2,
        "simple": weights / degree[:, None],
    }[kind]
    wanted = wanted + np.diag(1 - wanted.sum(axis=1))
    chain = MarkovChain.from_graph(form(graph), kind)
    np.testing.assert_allclose(chain.P, wanted, rtol=1e-13, atol=1e-15)
    uniform = np.full(len(degree), 1 / len(degree))
    law = uniform if kind in ("metropolis", "max_degree") else degree / degree.sum()
    np.testing.assert_allclose(chain.stationary, law, rtol=1e-12)
    assert chain.is_reversible
    assert not chain.P[(weights == 0) & ~np.eye(len(degree), dtype=bool)].any()


@pytest.mark.parametrize("kind", ["simple", "lazy"])
def test_walks_on_directed_graphs_follow_the_arrows(kind):
    graph = nx.DiGraph([(0, 1), (1, 2), (2, 0), (2, 1)])
    chain = MarkovChain.from_graph(graph, kind)
    steps = np.array([[0, 1, 0], [0, 0, 1], [0.5, 0.5, 0]])
    np.testing.assert_allclose(chain.P, steps if kind == "simple" else (steps + np.eye(3)) / 2)
    np.testing.assert_allclose(chain.stationary, [0.2, 0.4, 0.4], rtol=1e-13)


def test_states_are_nodes_in_the_order_of_the_graph():
    graph = nx.Graph([("hub", "x"), ("hub", "y"), ("hub", "z")])
    np.testing.assert_allclose(MarkovChain.from_graph(graph, "lazy").stationary, [1 / 2, 1 / 6, 1 / 6, 1 / 6])


def test_a_large_graph_stays_sparse_and_a_small_one_is_dense():
    assert sp.issparse(MarkovChain.from_graph(nx.cycle_graph(3001)).P)
    assert isinstance(MarkovChain.from_graph(nx.cycle_graph(11)).P, np.ndarray)


def test_the_given_graph_is_left_alone():
    weights = sp.csr_array(([1.0, 1.0, 1.0, 1.0, 0.0], ([0, 1, 1, 2, 0], [1, 0, 2, 1, 2])), shape=(3, 3))
    data, indices, indptr = weights.data.copy(), weights.indices.copy(), weights.indptr.copy()
    MarkovChain.from_graph(weights)
    np.testing.assert_array_equal(weights.indptr, indptr)
    np.testing.assert_array_equal(weights.indices, indices)
    np.testing.assert_array_equal(weights.data, data)


ISOLATED = nx.empty_graph(3)
ISOLATED.add_edge(0, 1)
GRAPH_ERRORS = [
    (nx.cycle_graph(6), "simple", ValueError, r"periodic with period 2.*make it lazy.*kind='lazy'"),
    (nx.Graph([(0, 1), (2, 3)]), "metropolis", ValueError, "splits into 2 classes"),
    (nx.DiGraph([(0, 1), (1, 2), (2, 1)]), "lazy", ValueError, "splits into 2 classes"),
    (ISOLATED, "metropolis", ValueError, "graph: node 2 has no edge"),
    (np.array([[0.0, 1.0], [0.0, 0.0]]), "simple", ValueError, "graph: node 1 has no edge"),
    (nx.cycle_graph(5), "random", ValueError, "kind must be one of 'metropolis', .*'simple', got 'random'"),
    (nx.DiGraph([(0, 1), (1, 2), (2, 0)]), "metropolis", ValueError, "kind='metropolis' needs a symmetric adjacency"),
    ([[0, 1], [2, 0]], "max_degree", ValueError, "kind='max_degree' needs a symmetric adjacency .*'simple' or 'lazy'"),
    ([[0, -1], [-1, 0]], "lazy", ValueError, "graph: edge weights must be finite and not negative"),
    ([[0, np.nan], [1, 0]], "lazy", ValueError, "graph: edge weights must be finite and not negative"),
    (np.ones((2, 3)), "lazy", ValueError, r"graph: an adjacency matrix must be square, got shape \(2, 3\)"),
    ("ring", "lazy", TypeError, "graph must be a networkx graph or an adjacency matrix, got str"),
    (None, "lazy", TypeError, "graph must be a networkx graph or an adjacency matrix, got NoneType"),
]


@pytest.mark.parametrize(("graph", "kind", "error", "message"), GRAPH_ERRORS)
def test_graphs_without_a_walk_are_refused(graph, kind, error, message):
    with pytest.raises(error, match=message):
        MarkovChain.from_graph(graph, kind)


# Paths

CHAIN = MarkovChain([[0.7, 0.2, 0.1, 0.0], [0.0, 0.5, 0.25, 0.25], [0.9, 0.0, 0.0, 0.1], [0.05, 0.0, 0.0, 0.95]])


def assert_follows(path: np.ndarray, P: np.ndarray) -> None:
    """Transition frequencies within 4.5 standard errors of P: of a given count of visits, moves are independent."""
    counts = np.zeros(P.shape)
    np.add.at(counts, (path[:-1], path[1:]), 1)
    visits = counts.sum(axis=1, keepdims=True)
    assert visits.min() > 1000
    assert not counts[P == 0].any()
    errors = np.abs(counts / visits - P) / np.sqrt(np.maximum(P * (1 - P) / visits, 1e-300))
    assert errors[(P > 0) & (P < 1)].max() < 4.5


@pytest.mark.parametrize("matrix", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_paths_have_the_transition_frequencies_of_the_chain(matrix):
    path = MarkovChain(matrix(CHAIN.P)).sample_path(jax.random.key(0), 200_000)
    assert path.dtype == jnp.int32
    assert_follows(np.asarray(path), CHAIN.P)


@pytest.mark.parametrize("position", [0, 1, 10])
def test_every_state_of_a_path_has_the_stationary_law(position):
    keys = jax.random.split(jax.random.key(1), 20_000)
    states = jax.vmap(lambda key: CHAIN.sample_path(key, 11)[position])(keys)
    counts = np.bincount(states, minlength=4)
    assert stats.chisquare(counts, CHAIN.stationary * 20_000).pvalue > 1e-3


@pytest.mark.parametrize("start", range(4))
def test_a_path_starts_where_it_is_told_to(start):
    keys = jax.random.split(jax.random.key(3), 20_000)
    paths = np.asarray(jax.vmap(lambda key: CHAIN.sample_path(key, 2, start=start))(keys))
    assert (paths[:, 0] == start).all()
    counts, law = np.bincount(paths[:, 1], minlength=4), CHAIN.P[start]
    assert not counts[law == 0].any()
    assert stats.chisquare(counts[law > 0], law[law > 0] * 20_000).pvalue > 1e-3


def test_a_path_is_a_function_of_its_key():
    one, again, other = (np.asarray(CHAIN.sample_path(jax.random.key(seed), 500)) for seed in (4, 4, 5))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_a_short_path_is_the_beginning_of_a_long_one():
    long = np.asarray(CHAIN.sample_path(jax.random.key(6), 1000))
    for length in (1, 63, 64, 65, 100):
        np.testing.assert_array_equal(CHAIN.sample_path(jax.random.key(6), length), long[:length])


def test_paths_are_the_same_in_float32_and_float64():
    wide = np.asarray(CHAIN.sample_path(jax.random.key(7), 5000))
    with jax.enable_x64(False):
        narrow = np.asarray(CHAIN.sample_path(jax.random.key(7), 5000))
    np.testing.assert_array_equal(narrow, wide)


def test_five_thousand_sparse_states():
    size = 5000
    ring = nx.cycle_graph(size)
    ring.add_edge(0, size - 1, weight=0.5)
    chain = MarkovChain.from_graph(ring, "lazy")
    degree = np.where(np.isin(np.arange(size), [0, size - 1]), 1.5, 2.0)
    # The relaxation time is about 10^6, and magnifies rounding as much.
    np.testing.assert_allclose(chain.stationary, degree / degree.sum(), rtol=1e-9)
    path = np.asarray(chain.sample_path(jax.random.key(8), 20_000, start=17))
    assert path[0] == 17
    moves = (path[1:] - path[:-1]) % size
    assert set(moves) == {0, 1, size - 1}
    assert abs(np.mean(moves == 0) - 0.5) < 4.5 * np.sqrt(0.25 / 20_000)


def test_a_large_walk_knows_its_law_and_refuses_what_needs_a_dense_matrix():
    size = 30_000
    here, there = np.arange(size), (np.arange(size) + 1) % size
    ones = np.ones(2 * size)
    ring = sp.csr_array((ones, (np.append(here, there), np.append(there, here))), shape=(size, size))
    chain = MarkovChain.from_graph(ring)
    np.testing.assert_array_equal(chain.stationary, np.full(size, 1 / size))
    with pytest.raises(ValueError, match="30000 states are too many"):
        chain.mixing_time()


@pytest.mark.parametrize("kind", ["metropolis", "max_degree", "lazy", "simple"])
def test_the_law_that_a_walk_knows_is_the_one_its_matrix_has(kind):
    weights = np.array([[0, 1, 2, 0], [1, 0, 1, 0], [2, 1, 0, 3], [0, 0, 3, 0]], dtype=float)
    chain = MarkovChain.from_graph(weights, kind=kind)
    np.testing.assert_allclose(chain.stationary, MarkovChain(chain.P).stationary, rtol=1e-10)
