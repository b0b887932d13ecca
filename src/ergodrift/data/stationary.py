"""Stationary laws of finite chains, to relative rounding in every state.

Nothing is ever subtracted: what leaves a state is a sum of its transitions to others, never 1 - P_ii. So every entry of
the law keeps its digits, however rare a state is and however weakly parts of the chain hang together (Grassmann, Taksar
and Heyman 1985; O'Cinneide 1993 for the error bound).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import scipy

SMALL = 2048  # states up to which elimination is done on a dense matrix, and costs little
BLOCK = 128  # states eliminated at once
AGREED = 1e-12  # to how much laws from different starts must agree, relatively, in every state
STEPS = 4000  # of the power method, at most
WORK = 4e11  # multiplications that elimination within a band may take: about half a minute
GROUPS = 200  # parts that hang together weakly, at most


def stationary_law(P: np.ndarray | scipy.sparse.csr_array) -> np.ndarray:
    """mu with mu P = mu, of an irreducible chain; dense or CSR.

    Small chains are eliminated. In large ones the law is found from detailed balance where it holds; by the power
    method where the chain mixes fast; by aggregation where it falls into weakly coupled parts that do; and by
    elimination within a band where its graph is narrow. What none of them finds to 1e-12, relatively, is refused.
    """
    size = P.shape[0]
    if size == 1:
        return np.ones(1)
    if size <= SMALL:
        return gth(P if isinstance(P, np.ndarray) else P.toarray())
    moves = scipy.sparse.csr_array(P)
    moves = scipy.sparse.csr_array(moves - scipy.sparse.diags_array(moves.diagonal()))
    moves.eliminate_zeros()
    leaving = np.asarray(moves.sum(axis=1)).ravel()
    jumps = scipy.sparse.csr_array(moves / leaving[:, None])
    for find, of_jumps in [(_balanced, False), (_powers, True), (_aggregated, True), (_banded, False)]:
        law = find(jumps if of_jumps else moves)
        if law is not None:
            law = law / leaving if of_jumps else law  # a state holds for 1 / leaving steps
            return law / law.sum()
    if not scipy.sparse.issparse(P):
        return gth(P)  # minutes, but whoever holds so large a dense matrix has them
    raise ValueError(
        f"the stationary law of these {size:,} states was not found: the chain mixes too slowly for the power method, "
        "does not fall into weakly coupled parts that mix fast, and its graph is too wide to eliminate; lump states "
        "together, add a little restart, such as 0.999 P + 0.001 / S, or use MarkovChain.from_graph for walks, "
        "whose law is known"
    )


def gth(P: np.ndarray, block: int = BLOCK) -> np.ndarray:
    """The law by elimination of states, the last ones first, `block` at a time.

    With P = [[A, B], [C, D]], the chain watched on the first states moves by A + B (I - D)^-1 C, and
    mu_2 = mu_1 B (I - D)^-1.
    """
    A, size = np.array(P, dtype=float), len(P)
    with np.errstate(all="ignore"):  # looked at below
        for low, high in reversed(_stretches(size, block)):
            into = A[:low, low:high] @ _visits(A[low:high, low:high], A[low:high, :low].sum(axis=1))
            A[:low, :low] += into @ A[low:high, :low]
            A[:low, low:high] = into
        law = np.zeros(size)
        law[0] = 1.0
        for low, high in _stretches(size, block):
            law[low:high] = law[:low] @ A[:low, low:high]
            law[:high] /= law[:high].max()  # no likely state may overflow
    return _sound(law, block, lambda: gth(P, 1))


def _stretches(size: int, block: int) -> list[tuple[int, int]]:
    """1..size-1 in stretches of `block`: the first state is left to the end."""
    return [(low, min(low + block, size)) for low in range(1, size, block)]


def _visits(inside: np.ndarray, leaving: np.ndarray) -> np.ndarray:
    """(I - D)^-1, the expected visits to states that are left with these probabilities: elimination without a minus."""
    inside, leaving, size = inside.copy(), leaving.copy(), len(inside)
    right, out = np.eye(size), np.zeros(size)
    for k in reversed(range(size)):
        out[k] = inside[k, :k].sum() + leaving[k]  # in place of 1 - D_kk
        share = inside[:k, k] / out[k]
        inside[:k, :k] += np.outer(share, inside[k, :k])
        leaving[:k] += share * leaving[k]
        right[:k] += np.outer(share, right[k])
    found = np.zeros((size, size))
    for k in range(size):
        found[k] = (right[k] + inside[k, :k] @ found[:k]) / out[k]
    return found


def _sound(law: np.ndarray, block: int, singly: Callable[[], np.ndarray]) -> np.ndarray:
    """The law, scaled; state by state where a block of them spans more than double precision does."""
    if np.isfinite(law).all():
        return law / law.sum()
    if block > 1:
        return singly()
    raise ValueError(
        "the stationary law cannot be held in double precision: probabilities of moves between parts of the chain "
        "underflow; scale the smallest transitions up, or leave out the states that are never reached"
    )


def _balanced(moves: scipy.sparse.csr_array) -> np.ndarray | None:
    """The law of a reversible chain, by mu_j = mu_i P_ij / P_ji along a spanning tree; None where some edge disagrees.

    Entries are kept as a fraction and a power of two: along a tree they may leave the range of a float.
    """
    back = scipy.sparse.csr_array(moves.T)
    back.sort_indices()
    moves.sort_indices()
    if not (np.array_equal(moves.indptr, back.indptr) and np.array_equal(moves.indices, back.indices)):
        return None
    order, parents = scipy.sparse.csgraph.breadth_first_order(moves, 0, directed=True)
    level = np.zeros(len(order), dtype=np.int64)
    for node in order[1:]:
        level[node] = level[parents[node]] + 1
    fraction, power = np.full(len(order), 0.5), np.zeros(len(order), dtype=np.int64)
    up = order[1:]
    ratio = np.zeros(len(order))
    ratio[up] = _entries(moves, parents[up], up) / _entries(moves, up, parents[up])
    ends = np.searchsorted(level[order], np.arange(level.max() + 2))  # a breadth-first order ascends in level
    for first, last in itertools.pairwise(ends[1:]):
        nodes = order[first:last]
        fraction[nodes], grown = np.frexp(fraction[parents[nodes]] * ratio[nodes])
        power[nodes] = power[parents[nodes]] + grown
    rows = np.repeat(np.arange(len(order)), np.diff(moves.indptr))
    there = fraction[rows] * moves.data
    with np.errstate(over="ignore"):  # what is so far out of balance is no tie
        again = np.ldexp(fraction[moves.indices] * back.data, np.clip(power[moves.indices] - power[rows], -2000, 2000))
    if (np.abs(there - again) > 4e-15 * (level.max() + 1) * there).any():
        return None
    law = np.ldexp(fraction, np.clip(power - power.max(), -2000, 0))
    return law / law.sum()


def _entries(matrix: scipy.sparse.csr_array, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
    return np.asarray(matrix[rows, cols]).ravel()


def _starts(size: int) -> np.ndarray:
    """Four laws to start from, far from each other: what slow modes keep of them tells them apart."""
    rng = np.random.default_rng(0)
    starts = np.zeros((size, 4))
    starts[:, 0], starts[:, 1] = 1.0, rng.lognormal(0.0, 2.0, size)
    starts[0, 2] = starts[rng.integers(1, size), 3] = 1.0
    return starts / starts.sum(axis=0)


def _spread(laws: np.ndarray) -> float:
    """How far the columns are apart, relatively, in the state where they are most."""
    most, least = laws.max(axis=1), laws.min(axis=1)
    return float(np.max((most - least) / np.where(most > 0, most, 1.0))) if least.min() > 0 else 1.0


def _agreed(laws: np.ndarray, spread: float) -> np.ndarray | None:
    return laws.mean(axis=1) if spread <= AGREED else None


def _smoothed(back: scipy.sparse.csr_array, laws: np.ndarray, steps: int) -> np.ndarray:
    """Steps of the jumps, held with probability 1/2: never periodic, and indifferent to how long states hold."""
    for _ in range(steps):
        laws = (laws + back @ laws) / 2
    return laws / laws.sum(axis=0)


def _powers(jumps: scipy.sparse.csr_array) -> np.ndarray | None:
    """The law of the jumps by the power method, from several starts until they agree; None where that would take long.

    A small change from one step to the next proves nothing: weakly coupled parts keep what they were given. Starts that
    differ do.
    """
    back = scipy.sparse.csr_array(jumps.T)
    laws, spread, taken, every = _starts(jumps.shape[0]), 1.0, 0, 50
    patience = 500 if jumps.nnz < 1e6 else 100
    while taken < STEPS:
        laws, before = _smoothed(back, laws, every), spread
        spread, taken = _spread(laws), taken + every
        if spread <= AGREED / 100 or AGREED >= spread >= before / 2:  # as near as rounding lets them come
            return _agreed(laws, spread)
        slope = np.log(before / spread) / every if spread < before else 0.0
        if taken >= patience and slope * (STEPS - taken) < np.log(spread / AGREED):
            return None
    return _agreed(laws, spread)


def _banded(moves: scipy.sparse.csr_array) -> np.ndarray | None:
    """Elimination as in `gth` on the states in the order of reverse Cuthill and McKee: only a band is ever filled."""
    size = moves.shape[0]
    order = scipy.sparse.csgraph.reverse_cuthill_mckee(scipy.sparse.csr_array(moves + moves.T), symmetric_mode=True)
    P = scipy.sparse.csr_array(moves[order][:, order])
    both = scipy.sparse.csr_array(P + P.T)
    first = np.minimum.reduceat(both.indices, both.indptr[:-1])
    first = np.minimum.accumulate(np.minimum(first, np.arange(size))[::-1])[::-1]  # what states from here on touch
    wide = np.arange(size) - first
    if 2.0 * np.square(wide.astype(float)).sum() > WORK or 8.0 * wide.sum() > 4e9:
        return None
    law = _eliminated(P, first, BLOCK // 2)
    found = np.zeros(size)
    found[order] = law
    return found


def _eliminated(P: scipy.sparse.csr_array, first: np.ndarray, block: int) -> np.ndarray:
    size, law = P.shape[0], np.zeros(P.shape[0])
    front, known, behind = np.zeros((0, 0)), size, []
    with np.errstate(all="ignore"):
        for low, high in reversed(_stretches(size, block)):
            left = min(int(first[low]), low - 1) if low else 0
            A = P[left:high, left:high].toarray()
            A[known - left :, known - left :] = front[: high - known, : high - known]  # already filled in
            part = low - left
            into = A[:part, part:] @ _visits(A[part:, part:], A[part:, :part].sum(axis=1))
            front, known = A[:part, :part] + into @ A[part:, :part], left
            behind.append((left, low, high, into))
        law[0] = 1.0
        for left, low, high, into in reversed(behind):
            law[low:high] = law[left:low] @ into
            law[:high] /= law[left:high].max() if law[left:high].max() > 1 else 1.0
    return _sound(law, block, lambda: _eliminated(P, first, 1))


def _aggregated(jumps: scipy.sparse.csr_array) -> np.ndarray | None:
    """The law of the jumps where parts hang together weakly: their shares by elimination, what is within by steps.

    Iterative aggregation and disaggregation (Koury, McAllister and Stewart 1984); parts are the strong components that
    are left without the moves below a threshold.
    """
    back, tried = scipy.sparse.csr_array(jumps.T), set()
    for cut in 10.0 ** -np.arange(1, 17):
        strong = jumps.copy()
        strong.data[strong.data < cut] = 0
        strong.eliminate_zeros()
        count, labels = scipy.sparse.csgraph.connected_components(strong, directed=True, connection="strong")
        if count == 1:
            break
        if count > GROUPS or count in tried:
            continue
        tried.add(count)
        if (found := _coarse_and_fine(jumps, back, labels, count)) is not None:
            return found
    return None


def _coarse_and_fine(
    jumps: scipy.sparse.csr_array, back: scipy.sparse.csr_array, labels: np.ndarray, count: int
) -> np.ndarray | None:
    size = len(labels)
    member = scipy.sparse.csr_array((np.ones(size), (np.arange(size), labels)), shape=(size, count))
    to_part = scipy.sparse.csr_array(jumps @ member)
    laws, spread = _smoothed(back, (_starts(size) + 1e-3 / size), 50), 1.0
    for _ in range(40):
        for column in range(laws.shape[1]):
            share = member.T @ laws[:, column]
            flow = (member.T @ (to_part * laws[:, [column]])).toarray() / share[:, None]
            laws[:, column] *= (gth(flow) / share)[labels]
        laws, before = _smoothed(back, laws, 25), spread
        spread = _spread(laws)
        if spread <= AGREED / 100 or AGREED >= spread >= before / 2:
            break
    return _agreed(laws, spread)
