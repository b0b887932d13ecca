"""A finite chain from one path: its transition matrix, stationary law and mixing time, with an interval."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
import scipy
from numpy.typing import ArrayLike

from ergodrift.data.chain import MarkovChain
from ergodrift.data.sampler import BLOCK, draw, split
from ergodrift.data.source import seed_keys

STRENGTHS = 2.0 ** np.arange(-4, 15)  # pseudo-counts that the common law may have in a row
EPS = 0.25
REPLICATES = 100


class ChainEstimate(NamedTuple):
    """What one path says about its chain.

    Attributes:
        states: (S,) the labels that were seen.
        counts: (S, S) transitions.
        P: (S, S) the estimate of the transition matrix.
        stationary: (S,) its stationary law.
        tau_mix: the mixing time at 1/4 in total variation, corrected for bias.
        tau_mix_interval: for it.
        relaxation_time: 1 / (1 - |lambda_2|) of P.
        reversible: whether it was taken to be so.
    """

    states: np.ndarray
    counts: np.ndarray
    P: np.ndarray
    stationary: np.ndarray
    tau_mix: float
    tau_mix_interval: tuple[float, float]
    relaxation_time: float
    reversible: bool


def estimate_chain(path: ArrayLike, confidence: float = 0.95, replicates: int = REPLICATES) -> ChainEstimate:
    """Estimate a chain from one path of integer states.

    Unless the counts N_ij and N_ji clearly differ, the chain is taken to be reversible and both stand for each other.
    Each row of counts is then drawn towards a law common to all rows, "stay with probability theta, else move to j with
    probability pi_j": P_ij = (N_ij + kappa m_ij) / (N_i + kappa), m_ij = theta 1[i=j] + (1 - theta) pi_j. kappa
    maximises the likelihood of the counts under Dirichlet rows, so it is large where rows do look alike and next to
    nothing where they do not. Without it, a path that visits each state a few times only would always look slow.

    The mixing time is the largest of those from each start, and `_largest` says how far it can be known; their errors
    come from a parametric bootstrap, paths drawn from the estimate and estimated in turn. (Hsu, Kontorovich and
    Szepesvari 2015 and Wolfer and Kontorovich 2019 give intervals that hold for every n; they need far longer paths to
    say anything.)
    """
    path = np.asarray(path)
    states, index = np.unique(path, return_inverse=True)
    size = len(states)
    counts = transition_counts(index[None], size)[0]
    visits = np.bincount(index, minlength=size) / len(index)
    reversible = _looks_reversible(counts)
    strength = _strength(counts, visits)
    P = _estimate(counts, visits, strength, reversible)
    taus = mixing_times(P[None])[0]
    tau = taus.max()
    # A start from which the chain mixes far sooner does not count: its logarithm must not run off towards tau = 0.
    floor = tau / 4

    # Paths of some 60 tau show bias and spread well enough: these scale as 1/n and 1/sqrt(n).
    drawn = _paths(P, int(min(len(path), max(60 * tau, 1000))), replicates)
    length = drawn.shape[1]
    shares = np.stack([np.bincount(row, minlength=size) for row in drawn]) / length
    again = transition_counts(drawn, size)
    scale = length / len(path)
    starts = np.log(np.maximum(taus, floor))
    logs = np.log(np.maximum(mixing_times(_estimate(again, shares, strength * scale, reversible)), floor))
    bias = (logs.mean(axis=0) - starts) * scale
    errors = (logs - logs.mean(axis=0)) * np.sqrt(scale)
    # What the common law changed is a model's word where rows do not look alike: half of it counts as an error.
    alike = strength / (strength + counts.sum() / size)
    alone = mixing_times(_estimate(counts, visits, 1e-3, reversible)[None])[0]
    moved = (1 - alike) * np.log(tau / alone.max()) / 2
    # One piece of information in some 16 mixing times: few of them know their spread badly.
    freedom = max(len(path) / (16 * tau), 3)
    doubt = float(np.hypot(bias[np.argmax(taus)], moved))
    middle, low, high = np.exp(_largest(starts - bias, errors, doubt, confidence, freedom))
    values = np.sort(np.abs(np.linalg.eigvals(P)))
    return ChainEstimate(
        states,
        counts,
        P,
        stationary_laws(P[None])[0],
        float(max(middle, 1.0)),
        (float(max(np.floor(low), 1.0)), float(max(np.ceil(high), 1.0))),
        float(1 / max(1 - values[-2], 1e-15)),
        reversible,
    )


def _largest(
    estimates: np.ndarray, errors: np.ndarray, doubt: float, confidence: float, freedom: float
) -> tuple[float, float, float]:
    """The largest of several means (k,): a middle value and an interval, from draws of their errors (replicates, k).

    Where several are nearly the largest, as in a chain whose states are alike, the largest estimate is too large, and a
    bootstrap of it does not show this: it draws from estimates that are already apart. Its error is that of max_i
    error_i over those that may be the largest (Fang and Santos 2019), which the middle value and the lower end take
    off. The upper end is that of the largest estimate alone, as if nothing else came near it: right in either case.

    `doubt` is one more error; `freedom` are the degrees of Student's quantile.
    """
    quantile, together = scipy.stats.t.isf((1 - confidence) / 2 / np.array([1, len(estimates)]), freedom)
    top = int(np.argmax(estimates))
    apart = (errors[:, [top]] - errors).std(axis=0, ddof=1)
    near = estimates >= estimates[top] - together * apart
    excess = errors[:, near].max(axis=1)
    middle = estimates[top] - excess.mean()
    low = middle - quantile * np.hypot(excess.std(ddof=1), doubt)
    return middle, low, estimates[top] + quantile * np.hypot(errors[:, top].std(ddof=1), doubt)


def _paths(P: np.ndarray, length: int, count: int) -> np.ndarray:
    """Stationary paths of a chain, (count, length or a little more); the same for the same arguments."""
    if length > 4096:
        blocks = 2 ** int(np.ceil(np.log2(length / BLOCK)))  # few lengths: few compilations
        sampler = MarkovChain(P).sampler()
        keys = split(seed_keys([0])[0], count)
        return np.asarray(jax.vmap(lambda key: draw(sampler, key, blocks))(keys))[:, :length]
    rng = np.random.default_rng(0)
    bounds = np.cumsum(P, axis=1)
    bounds[:, -1] = 1.0
    state = rng.choice(len(P), size=count, p=stationary_laws(P[None])[0])
    found = np.empty((length, count), dtype=np.int64)
    for t in range(length):
        found[t] = state
        state = np.sum(rng.random(count)[:, None] >= bounds[state], axis=1)
    return found.T


def transition_counts(paths: np.ndarray, size: int) -> np.ndarray:
    """N_ij of each path of a stack (B, n): (B, S, S)."""
    pairs = paths[:, :-1].astype(np.int64) * size + paths[:, 1:]
    found = np.stack([np.bincount(row, minlength=size * size) for row in pairs])
    return found.reshape(-1, size, size).astype(float)


def _looks_reversible(counts: np.ndarray) -> bool:
    """Whether N_ij and N_ji may be counts of the same flow: a chi-square test at 1 %."""
    i, j = np.triu_indices(len(counts), 1)
    total = counts[i, j] + counts[j, i]
    both = total > 0
    statistic = np.sum(np.square(counts[i, j] - counts[j, i])[both] / total[both])
    freedom = max(int(both.sum()) - (len(counts) - 1), 1)  # on a tree the flows are balanced by themselves
    return bool(statistic <= scipy.stats.chi2.ppf(0.99, freedom))


def _common(counts: np.ndarray, visits: np.ndarray) -> np.ndarray:
    """m: the law common to all rows, with theta from how often the path stays."""
    stays = np.trace(counts, axis1=-2, axis2=-1) / counts.sum(axis=(-2, -1))
    meets = np.square(visits).sum(axis=-1)
    theta = np.clip((stays - meets) / np.maximum(1 - meets, 1e-9), 0, 1 - 1e-9)[..., None, None]
    return theta * np.eye(visits.shape[-1]) + (1 - theta) * visits[..., None, :]


def _estimate(counts: np.ndarray, visits: np.ndarray, strength: float, reversible: bool) -> np.ndarray:
    P = _normal(counts + strength * _common(counts, visits))
    if not reversible:
        return P
    flow = np.maximum(visits, 1e-12)[..., :, None] * P
    return _normal(flow + np.swapaxes(flow, -1, -2))


def _strength(counts: np.ndarray, visits: np.ndarray) -> float:
    """kappa that maximises the Dirichlet-multinomial likelihood of the rows."""
    common, rows = _common(counts, visits), counts.sum(axis=1)
    seen = counts > 0
    kappa = STRENGTHS[:, None]
    likelihood = np.sum(scipy.special.gammaln(kappa) - scipy.special.gammaln(kappa + rows), axis=1) + np.sum(
        scipy.special.gammaln(counts[seen] + kappa * common[seen]) - scipy.special.gammaln(kappa * common[seen]),
        axis=1,
    )
    return float(STRENGTHS[np.argmax(likelihood)])


def stationary_laws(P: np.ndarray) -> np.ndarray:
    """mu of each matrix of a stack (..., S, S) of positive chains."""
    size = P.shape[-1]
    system = np.eye(size) - np.swapaxes(P, -1, -2) + 1.0
    law = np.linalg.solve(system, np.ones((*P.shape[:-1], 1)))[..., 0]
    return law / law.sum(axis=-1, keepdims=True)


def mixing_times(P: np.ndarray, eps: float = EPS) -> np.ndarray:
    """The first t at which each start of each matrix of a stack (B, S, S) is within eps of the stationary law, (B, S).

    The largest of a row is tau_mix(eps). Between whole numbers by the decay there; at least 1. P^t is doubled until all
    have mixed, then bisected in powers of two, as `MarkovChain.mixing_time` does for one.
    """
    laws = stationary_laws(P)[:, None, :]

    def distance(power: np.ndarray) -> np.ndarray:
        return np.abs(power - laws).sum(axis=2) / 2

    powers, last = [P], distance(P)
    while (last > eps).any() and len(powers) < 50:
        powers.append(_normal(powers[-1] @ powers[-1]))
        last = distance(powers[-1])
    # Row i of `at` is the law at time t_i from start i.
    at, t, far, near = np.broadcast_to(np.eye(P.shape[-1]), P.shape), np.zeros(last.shape), np.inf, last
    for k in reversed(range(len(powers))):
        ahead = _normal(at @ powers[k]) if k < len(powers) - 1 or len(powers) == 1 else powers[k]
        reached = distance(ahead)
        far_off = reached > eps
        near = np.where(far_off, near, reached)
        at, t, far = np.where(far_off[..., None], ahead, at), t + far_off * 2.0**k, np.where(far_off, reached, far)
    # d(t) = far > eps >= near = d(t + 1); at t = 0 there is nothing to interpolate from.
    far = np.where(t == 0, 1.0, far)
    part = np.log(far / eps) / np.log(far / np.clip(near, 1e-300, eps))
    return np.where(t == 0, 1.0, t + np.clip(part, 0, 1))


def _normal(P: np.ndarray) -> np.ndarray:
    """Rows summing to 1: squaring doubles the error of the row sums each time."""
    return P / P.sum(axis=-1, keepdims=True)
