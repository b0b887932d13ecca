"""How far a chain is from its stationary law after t steps, to relative accuracy, and the first t at which it is near.

E_t = P^t - 1 mu is multiplicative, E_{s+t} = E_s E_t, since P 1 = 1 and mu P = mu; d_mix(t) is half its largest row
sum. While it is large, powers of P are multiplied, and rows scaled to sum 1: the errors of their sums do not add up,
and what weakly coupled parts exchange keeps its digits. Once it is small, E itself is: subtracting mu from a power of
P would leave nothing below 1e-15. The error is carried along.
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

import numpy as np
import scipy

NEAR = 0.1  # a distance below which E is multiplied in place of P
TIE = 1e-12  # a distance that exceeds eps by less than this, relatively, equals it
CLOSE = 1e-6  # to 1: an eigenvalue whose distance from it has lost digits
UNSURE = 1e-4  # of eps: how well a distance near it must be known
EPSILON = float(np.finfo(float).eps)
FEW = 512  # states up to which powers are quicker than a spectrum
COARSE = 1e-9  # a distance that is told by subtracting mu from a power of P
WORK = 3e10  # multiplications that steps from every start may take: about half a minute
LANCZOS = 1e-6  # residual of an eigenvector; its eigenvalue is good to about the square of that
LONGEST = 2**60  # steps after which a chain is said not to mix


class Power(NamedTuple):
    """P^t (None once E_t is small), E_t, its distance, a bound on the error of that, and the products it took."""

    P: np.ndarray | None
    E: np.ndarray
    distance: float
    error: float
    products: int


def _power(P: np.ndarray | None, E: np.ndarray, error: float, products: int) -> Power:
    return Power(P, E, float(np.abs(E).sum(axis=1).max() / 2), error, products)


def first_power(P: np.ndarray, law: np.ndarray) -> Power:
    """Of one step."""
    return _power(P, P - law, np.sqrt(len(P)) * EPSILON, 1)


def product(a: Power, b: Power, law: np.ndarray) -> Power:
    """Of s + t steps, from those of s and t."""
    products, rounding = max(a.products, b.products) + 1, np.sqrt(len(law)) * EPSILON
    if a.P is not None and b.P is not None and min(a.distance, b.distance) > NEAR:
        P = a.P @ b.P
        P /= P.sum(axis=1, keepdims=True)
        return _power(P, P - law, 2 * products * rounding, products)
    # The norms |E_s| and |E_t| are twice the distances.
    error = 2 * (a.distance * b.error + a.error * b.distance + a.error * b.error + rounding * a.distance * b.distance)
    return _power(None, a.E @ b.E, error, products)


def is_near(power: Power, eps: float, t: int) -> bool:
    """Whether d_mix(t) <= eps; refused where rounding hides it."""
    if power.error > UNSURE * eps and abs(power.distance - eps) <= power.error:
        raise ValueError(
            f"eps={eps:g} is below what double precision tells about this chain: after {t:,} steps its distance is "
            f"{power.distance:.1e} to within {power.error:.0e}; ask for a larger eps"
        )
    return power.distance <= eps * (1 + TIE)


def time_by_powers(P: np.ndarray, law: np.ndarray, eps: float) -> int:
    """The first t >= 1 with d_mix(t) <= eps: doubled until it is reached, then bisected, in 2 log2(t) products."""
    if np.ptp(P, axis=0).max() == 0:
        return 1  # independent draws, exactly
    powers = [first_power(P, law)]  # of 1, 2, 4, ... steps
    if is_near(powers[0], eps, 1):
        return 1
    while not is_near(square := product(powers[-1], powers[-1], law), eps, 2 ** len(powers)):
        powers.append(square)
        if 2 ** len(powers) > LONGEST:
            raise ValueError(f"mixing time exceeds 2^{len(powers) - 1} at eps={eps:g}: the chain hardly mixes")
    current, t = powers[-1], 2 ** (len(powers) - 1)
    for k in reversed(range(len(powers) - 1)):
        ahead = product(current, powers[k], law)
        if not is_near(ahead, eps, t + 2**k):
            current, t = ahead, t + 2**k
    return t + 1


def distance(P: np.ndarray, law: np.ndarray, t: int) -> float:
    """d_mix(t)."""
    found, square = None, first_power(P, law)
    while t:
        if t & 1:
            found = square if found is None else product(found, square, law)
        if t := t >> 1:
            square = product(square, square, law)
    return 0.0 if found is None else found.distance


def time_by_spectrum(values: np.ndarray, vectors: np.ndarray, law: np.ndarray, eps: float, bound: float) -> int:
    """The mixing time of a reversible chain, bisected below a bound; eigenvalues, largest first, and eigenvectors of
    sqrt(mu) P / sqrt(mu): P^t - 1 mu is the sum over those other than 1 of lambda^t v w."""
    root = np.sqrt(law)

    def near(t: int) -> bool:
        kept = 1 + np.flatnonzero(np.abs(values[1:]) ** t > 1e-17)  # the others are lost to rounding
        E = (vectors[:, kept] / root[:, None] * values[kept] ** t) @ (vectors[:, kept] * root[:, None]).T
        return bool(np.abs(E).sum(axis=1).max() / 2 <= eps * (1 + TIE))

    times = range(1, int(bound) + 2)
    return times[bisect.bisect_left(times, True, key=near)]


def time_by_steps(P: scipy.sparse.csr_array, law: np.ndarray, eps: float, block: int = 64) -> int | None:
    """The mixing time of a sparse chain from steps out of every state; None where that would take long."""
    if eps < COARSE:
        return None
    back, size, slowest = scipy.sparse.csr_array(P.T), P.shape[0], 1
    for first in range(0, size, block):
        here = np.arange(first, min(first + block, size))
        laws, t = np.zeros((size, len(here))), 0
        laws[here, here - first] = 1.0
        while t < slowest or np.abs(laws - law[:, None]).sum(axis=0).max() / 2 > eps * (1 + TIE):
            laws, t = back @ laws, t + 1
            if float(t) * P.nnz * size > WORK:
                return None
        slowest = t
    return slowest


def relaxation(P: np.ndarray, law: np.ndarray, values: np.ndarray, vectors: np.ndarray) -> float:
    """1 / (1 - lambda*) of a reversible chain, from the spectrum of `time_by_spectrum`.

    Near 1 and -1 an eigenvalue has fewer digits than its distance from there, which Dirichlet forms give instead, on
    the span of the eigenvectors in question: 1 -+ lambda = sum of mu_i P_ij (f_i -+ f_j)^2 / 2 over sum of mu_i f_i^2.
    """
    flow, found = P * law[:, None], [1 - np.abs(values[1:]).max(initial=0.0)]
    for sign, near in [(1, values[1:] > 1 - CLOSE), (-1, values[1:] < CLOSE - 1)]:
        f = (vectors[:, 1:] / np.sqrt(law)[:, None])[:, near]
        if not f.size:
            continue
        if sign > 0:
            f = f - law @ f
        rows, cols = np.nonzero(flow)
        change = f[rows] - sign * f[cols]
        form = change.T @ (change * flow[rows, cols][:, None]) / 2
        found.append(float(scipy.linalg.eigh(form, (f * law[:, None]).T @ f, eigvals_only=True)[0]))
    return 1 / min(found[1:] or found)


def relaxation_by_lanczos(P: scipy.sparse.csr_array, law: np.ndarray) -> float:
    """1 / (1 - lambda*) of a large reversible chain, by Lanczos on the symmetric matrix without its eigenvalue 1."""
    root = np.sqrt(law)
    similar = scipy.sparse.csr_array(P.multiply(P.T)).sqrt()
    rest = scipy.sparse.linalg.LinearOperator(P.shape, lambda v: similar @ v - root * (root @ v), dtype=float)
    start = np.random.default_rng(0).normal(size=P.shape[0])
    try:
        (found,) = scipy.sparse.linalg.eigsh(
            rest, k=1, which="LM", v0=start, ncv=20, maxiter=300, tol=LANCZOS, return_eigenvectors=False
        )
    except scipy.sparse.linalg.ArpackNoConvergence:
        found = 1.0
    if 1 - abs(found) < 1e3 * LANCZOS:
        raise ValueError(
            f"the relaxation time of these {P.shape[0]:,} states was not found: the gap below their eigenvalue 1 is "
            "too small for Lanczos; pass the tau_mix that you know, or estimate it from a path, ed.diagnose(source)"
        )
    return float(1 / (1 - abs(found)))
