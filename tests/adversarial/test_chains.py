"""Chains against rational arithmetic: laws of weakly coupled parts, mixing times at any eps, large sparse ones."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from ergodrift import MarkovChain
from ergodrift.data import chain as chain_module
from ergodrift.data import mixing, stationary

PROPERTY = settings(derandomize=True, database=None, deadline=None, max_examples=40)


def rational(P: np.ndarray) -> list[list[Fraction]]:
    """The chain that the transitions between states say; what is left stays."""
    rows = [[Fraction(float(value)) for value in row] for row in P]
    for i, row in enumerate(rows):
        row[i] = 1 - (sum(row) - row[i])
    return rows


def rational_law(rows: list[list[Fraction]]) -> list[Fraction]:
    """mu by elimination, without rounding."""
    A, law = [list(row) for row in rows], [Fraction(1)]
    for k in reversed(range(1, len(A))):
        out = sum(A[k][:k])
        for i in range(k):
            A[i][k] /= out
            for j in range(k):
                A[i][j] += A[i][k] * A[k][j]
    for k in range(1, len(A)):
        law.append(sum((law[i] * A[i][k] for i in range(k)), Fraction(0)))
    return [value / sum(law) for value in law]


def rational_distances(rows: list[list[Fraction]], law: list[Fraction], count: int) -> list[Fraction]:
    """d_mix(1), ..., d_mix(count)."""
    size, power, found = range(len(rows)), rows, []
    for _ in range(count):
        found.append(max(sum((abs(power[i][j] - law[j]) for j in size), Fraction(0)) / 2 for i in size))
        power = [[sum((power[i][k] * rows[k][j] for k in size), Fraction(0)) for j in size] for i in size]
    return found


@st.composite
def coupled(draw: Any) -> np.ndarray:
    """Parts that mix fast, joined by transitions of 1e-3 down to 1e-200, in any order of states."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=2, max_size=3))
    size, labels = sum(sizes), np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    exponents = draw(st.sampled_from([(3, 5), (10, 16), (14, 18), (30, 200)]))
    weak = 10.0 ** -rng.uniform(*exponents, size=(size, size)) * (rng.uniform(size=(size, size)) < 0.6)
    ring = np.roll(np.eye(size), 1, axis=1) * 10.0 ** -float(exponents[0])
    P = np.where(labels[:, None] == labels, rng.uniform(0.05, 1, size=(size, size)), weak + ring)
    shuffle = rng.permutation(size)
    P = P[shuffle][:, shuffle]
    return P / P.sum(axis=1, keepdims=True)


@PROPERTY
@given(P=coupled())
def test_laws_of_weakly_coupled_parts_are_right_to_relative_rounding(P):
    for matrix in (P, sp.csr_array(P)):
        chain = MarkovChain(matrix)
        dense = chain.P.toarray() if sp.issparse(chain.P) else chain.P
        law = [float(value) for value in rational_law(rational(dense))]
        np.testing.assert_allclose(chain.stationary, law, rtol=1e-14)


@PROPERTY
@given(P=coupled())
def test_every_route_of_large_chains_finds_the_same_law(P):
    moves = sp.csr_array(P * (1 - np.eye(len(P))))
    moves.eliminate_zeros()
    leaving = np.asarray(moves.sum(axis=1)).ravel()
    wanted = stationary.gth(P)
    np.testing.assert_allclose(stationary.gth(P, block=2), wanted, rtol=1e-14)
    banded: Any = stationary._banded(moves)
    np.testing.assert_allclose(banded, wanted, rtol=1e-13)
    for find in (stationary._powers, stationary._aggregated):
        found = find(sp.csr_array(moves / leaving[:, None]))
        if found is not None:  # what it cannot find it does not claim
            law = found / leaving
            np.testing.assert_allclose(law / law.sum(), wanted, rtol=1e-11)
    if (balanced := stationary._balanced(moves)) is not None:
        np.testing.assert_allclose(balanced, wanted, rtol=1e-13)


@st.composite
def small_chains(draw: Any) -> np.ndarray:
    size = draw(st.integers(2, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    weights = rng.integers(0, 9, size=(size, size)) * rng.integers(0, 2, size=(size, size))
    weights = weights + weights.T if draw(st.booleans()) else weights
    weights = weights + np.eye(size) + np.roll(np.eye(size), 1, axis=1)
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.slow
@PROPERTY
@given(P=small_chains(), digits=st.floats(0.5, 60))
def test_mixing_times_are_right_at_every_eps(P, digits):
    chain, eps = MarkovChain(P), 10.0**-digits
    rows = rational(chain.P)
    t = chain.mixing_time(eps)
    if t > 250:
        return  # fractions grow with t
    found = rational_distances(rows, rational_law(rows), t)
    # Rows of doubles sum to 1 only to rounding; distances are compared to a relative 1e-10.
    slack = Fraction(1, 10**10)
    assert found[t - 1] <= Fraction(eps) * (1 + slack)
    assert t == 1 or found[t - 2] > Fraction(eps) * (1 - slack)


@pytest.mark.parametrize("p", [1e-3, 1e-8, 1e-14], ids=str)
@pytest.mark.parametrize("eps", [0.25, 1e-6, 1e-12, 1e-13, 1e-20, 1e-100, 1e-300], ids=str)
def test_two_states_have_their_closed_form_at_every_eps_and_coupling(p, eps):
    chain = MarkovChain([[1 - p, p], [2 * p, 1 - 2 * p]])  # d_mix(t) = 2/3 (1 - 3p)^t
    wanted = np.ceil((np.log(eps) - np.log(2 / 3)) / np.log1p(-3 * p))
    np.testing.assert_allclose(chain.mixing_time(eps), wanted, rtol=2e-12, atol=0)
    np.testing.assert_allclose(chain.relaxation_time, 1 / (3 * p), rtol=1e-10)
    np.testing.assert_allclose(chain.stationary, [2 / 3, 1 / 3], rtol=1e-15)


@pytest.mark.parametrize("eps", [1e-9, 1e-17, 1e-300], ids=str)
def test_independent_draws_mix_in_one_step_and_what_rounding_hides_is_refused(eps):
    law = np.array([0.5, 0.3, 0.2])
    assert MarkovChain(np.tile(law, (3, 1))).mixing_time(eps) == 1
    nearly = np.tile(law, (3, 1))
    nearly[0] += [2e-16, -2e-16, 0.0]
    if eps >= 1e-12:
        assert MarkovChain(nearly).mixing_time(eps) == 1
    else:
        with pytest.raises(ValueError, match=f"eps={eps:g} is below what double precision tells"):
            MarkovChain(nearly).mixing_time(eps)


def test_nearly_periodic_chains_have_their_relaxation_time():
    for hold in (1e-3, 1e-10, 1e-15):
        chain = MarkovChain([[hold, 1 - hold], [1 - hold, hold]])
        np.testing.assert_allclose(chain.relaxation_time, 1 / (2 * hold), rtol=1e-9)


# Large sparse chains


def directed(size: int, degree: int, seed: int, lazy: float = 0.0) -> Any:
    """A random directed graph that hangs together, with random weights."""
    rng = np.random.default_rng(seed)
    rows, cols = np.repeat(np.arange(size), degree), rng.integers(0, size, size * degree)
    ring = sp.csr_array((np.ones(size), (np.arange(size), np.roll(np.arange(size), -1))), shape=(size, size))
    weights = sp.csr_array((rng.uniform(0.1, 1, size * degree), (rows, cols)), shape=(size, size)) + ring
    P = sp.csr_array(weights / np.asarray(weights.sum(axis=1)).ravel()[:, None])
    return sp.csr_array((1 - lazy) * P + lazy * sp.eye_array(size))


def out_of_balance(chain: MarkovChain) -> float:
    """The largest relative difference between what enters and what leaves a state."""
    moves = sp.csr_array(chain.P - sp.diags_array(chain.P.diagonal()))
    law = chain.stationary
    return float(np.abs((moves.T @ law) / (law * np.asarray(moves.sum(axis=1)).ravel()) - 1).max())


@pytest.mark.parametrize("lazy", [0.0, 0.999, 1 - 1e-9], ids=["quick", "lazy", "hardly moving"])
def test_a_directed_chain_of_20_000_states(lazy):
    chain = MarkovChain(directed(20_000, 5, 0, lazy))
    assert out_of_balance(chain) < 1e-13
    assert chain.stationary.min() > 0


def test_large_weakly_coupled_parts_share_as_their_exchange_says():
    half, p, q = 4000, 1e-14, 3e-14
    P = sp.lil_array(sp.block_diag([directed(half, 4, 1), directed(half, 4, 2)]))
    P[3, half + 5], P[half + 77, 11] = p, q
    chain = MarkovChain(sp.csr_array(P))
    law = chain.stationary
    inside = [MarkovChain(directed(half, 4, seed)).stationary for seed in (1, 2)]
    share = (q * inside[1][77]) / (p * inside[0][3] + q * inside[1][77])  # what leaves one part enters the other
    np.testing.assert_allclose(law[:half].sum(), share, rtol=1e-10)
    np.testing.assert_allclose(law[:half] / law[:half].sum(), inside[0], rtol=1e-10)


@pytest.mark.parametrize("up", [0.5, 0.21], ids=["fast", "slow"])
def test_a_large_ring_with_a_drift_is_eliminated_within_its_band(up):
    size, rates = 5000, np.random.default_rng(0).uniform(0.5, 1, 5000)
    here = np.arange(size)
    moves = sp.csr_array(
        (np.append(up * rates, 0.2 * rates), (np.tile(here, 2), np.append((here + 1) % size, (here - 1) % size))),
        shape=(size, size),
    )
    chain = MarkovChain(moves + sp.diags_array(1 - np.asarray(moves.sum(axis=1)).ravel()))
    np.testing.assert_allclose(chain.stationary, (1 / rates) / (1 / rates).sum(), rtol=1e-11)


def test_a_large_walk_with_a_drift_is_balanced_edge_by_edge():
    size, ratio = 6000, 0.9
    P = 0.45 * sp.eye_array(size, k=1) + 0.5 * sp.eye_array(size, k=-1)
    chain = MarkovChain(sp.csr_array(P + sp.diags_array(1 - np.asarray(P.sum(axis=1)).ravel())))
    shown = slice(0, 3000)
    np.testing.assert_allclose(chain.stationary[shown], (1 - ratio) * ratio ** np.arange(3000), rtol=1e-11)


def test_what_no_route_finds_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(stationary, "WORK", 1e3)
    monkeypatch.setattr(stationary, "STEPS", 50)
    size = 2500
    moves = sp.csr_array(0.5 * np.roll(np.eye(size), 1, axis=1) + 0.2 * np.roll(np.eye(size), -1, axis=1))
    with pytest.raises(ValueError, match="stationary law of these 2,500 states was not found"):
        MarkovChain(sp.csr_array(moves + 0.3 * sp.eye_array(size))).stationary  # noqa: B018


def test_mixing_times_of_large_sparse_chains_come_in_seconds_or_are_refused(monkeypatch):
    few = directed(300, 5, 4)
    by_products = MarkovChain(few.toarray()).mixing_time()
    with monkeypatch.context() as patch:
        patch.setattr(chain_module, "DENSE_LIMIT", 200)
        patch.setattr(mixing, "time_by_powers", None)
        assert MarkovChain(few).mixing_time() == by_products
    assert 1 < MarkovChain(directed(3000, 5, 4)).mixing_time() < 20
    slow = MarkovChain(directed(5000, 5, 4, lazy=0.9999))
    with pytest.raises(ValueError, match=r"5000 states are too many .*tau_mix that you know.*diagnose"):
        slow.mixing_time()
    with pytest.raises(ValueError, match="5000 states are too many"):
        MarkovChain(directed(5000, 5, 4)).mixing_time(1e-14)


def test_the_relaxation_time_of_a_large_walk_is_that_of_its_matrix():
    weights = directed(4500, 3, 5)
    chain = MarkovChain.from_graph(sp.csr_array(weights + weights.T), "lazy")
    law, P = chain.stationary, chain.P
    similar = sp.diags_array(np.sqrt(law)) @ P @ sp.diags_array(1 / np.sqrt(law))
    top = np.sort(sp.linalg.eigsh(sp.csr_array((similar + similar.T) / 2), k=2, which="LA")[0])
    np.testing.assert_allclose(chain.relaxation_time, 1 / (1 - top[0]), rtol=1e-7)
    size = 5000
    ring = sp.csr_array(np.roll(np.eye(size), 1, axis=1) + np.roll(np.eye(size), -1, axis=1))
    with pytest.raises(ValueError, match="relaxation time of these 5,000 states was not found"):
        MarkovChain.from_graph(ring, "lazy").relaxation_time  # noqa: B018
