"""Bounds with every constant written out: theorems 1 to 3 in expectation, appendix C on every path.

The derivation, step by step and with the paper's slips mended, is in docs/laboratory/theory.md; the names here are its
names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ergodrift._core import check
from ergodrift._core.compiled import compiled
from ergodrift._core.precision import double
from ergodrift.data.expectation import wide
from ergodrift.data.source import Law, Source
from ergodrift.problem import Problem
from ergodrift.types import PyTree, Scalar

PresetWeights = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # t -> (V_t, alpha_t), t in any order


class Bounds(Protocol):
    """Proven bounds on a problem: F, G and H, as `Constants` names them."""

    @property
    def loss_grad(self) -> ArrayLike: ...
    @property
    def constraint_jac(self) -> ArrayLike: ...
    @property
    def constraints(self) -> ArrayLike: ...


class Constants(NamedTuple):
    """F, G, H and R of assumptions 1 and 2, constraint by constraint.

    Attributes:
        loss_grad: F, at least the dual norm of every loss gradient over X and all samples.
        constraint_jac: G, (n,), likewise for each constraint.
        constraints: H, (n,), at least every |g_i|.
        diameter: R, with D(x, y) <= R^2 over X.
        certified: whether F, G and H are known to hold; False where they are only the largest values seen.
    """

    loss_grad: float
    constraint_jac: np.ndarray
    constraints: np.ndarray
    diameter: float
    certified: bool


def constants(
    problem: Problem, source: Source, x0: PyTree, bounds: Bounds | None = None, probes: int = 200
) -> Constants:
    """The constants of a problem: yours, or the largest values seen at `probes` points of X for every sample.

    What is seen is a lower estimate: nothing certifies that no point of X does worse. Pass `bounds` for a proof.

    Args:
        problem: loss, constraints and domain.
        source: its samples are all tried.
        x0: a point of the domain, for its shape.
        bounds: anything with `loss_grad`, `constraint_jac` and `constraints` (F, G, H; numbers, or one per constraint),
            such as what `problems.fairness` returns.
        probes: how many points of X to try where no bounds are given.
    """
    with double():
        x0 = wide(x0)
        count = problem.check(x0, wide(source.example))
        radius = float(problem.geometry.diameter(x0))
        if not np.isfinite(radius):
            raise ValueError(f"{type(problem.geometry).__name__} has no finite diameter R, which every bound needs")
        if bounds is not None:
            F = check.number("bounds.loss_grad", bounds.loss_grad, at_least=0)
            rows = []
            for name in ("constraint_jac", "constraints"):
                value = np.asarray(getattr(bounds, name), dtype=float)
                if value.shape not in ((), (count,)) or not (np.isfinite(value).all() and (value >= 0).all()):
                    raise ValueError(f"bounds.{name} must be a number >= 0, or {count} of them, got {value}")
                rows.append(np.broadcast_to(value, count).copy())
            return Constants(float(F), rows[0], rows[1], radius, True)
        reach, rng = float(problem.geometry.reach(x0)), np.random.default_rng(0)
        spread = reach * 10.0 ** rng.uniform(-1, 2, size=probes)  # most land on the boundary, where sizes are largest
        draws = jax.tree.map(
            lambda leaf: rng.normal(size=(probes, *leaf.shape)) * spread.reshape(-1, *[1] * leaf.ndim), x0
        )
        losses, rows, values = _largest(problem, wide(source.loss_law), wide(source.constraint_law), draws)
        return Constants(float(losses), np.asarray(rows), np.asarray(values), radius, False)


@compiled()
def _largest(problem: Problem, loss_law: Law, constraint_law: Law, draws: PyTree) -> tuple[jax.Array, ...]:
    geometry = problem.geometry

    def at(draw: PyTree) -> tuple[jax.Array, ...]:
        x = geometry.project(draw)

        def steepness(xi: PyTree) -> Scalar:
            return geometry.dual_norm(jax.grad(problem.loss)(x, xi))

        def sizes(xi: PyTree) -> tuple[Scalar, Scalar]:
            jac = jax.jacrev(problem.constraints)(x, xi)
            return jax.vmap(geometry.dual_norm)(jac), jnp.abs(problem.constraints(x, xi))

        losses = jax.lax.map(steepness, loss_law.points)
        rows, values = jax.lax.map(sizes, constraint_law.points)
        return losses.max(), rows.max(axis=0), values.max(axis=0)

    found = jax.lax.map(at, draws)
    return jax.tree.map(lambda leaf: leaf.max(axis=0), found)


class Expected(NamedTuple):
    """Bounds on expectations after t = 1, ..., T rounds, each an array over t (and constraints).

    Attributes:
        queue: on E||Q_{t+1}||.
        regret: on E[sum of f_s(x_s) - f_s(x)] over s <= t, for any fixed x with ḡ(x) <= 0.
        violation: on E[sum of g_s(x_s)], (T, n).
        gap: on E[f̄(x̄_t) - f̄(x)], likewise.
        infeasibility: on E[ḡ(x̄_t)], (T, n).
    """

    queue: np.ndarray
    regret: np.ndarray
    violation: np.ndarray
    gap: np.ndarray
    infeasibility: np.ndarray


def expected(
    size: Constants, preset: PresetWeights, T: int, tau: int = 1, distance: float = 0.0, margin: float | None = None
) -> Expected:
    """Theorems 1, 2 and (with a margin) 3 with their constants, for every t <= T at once.

    They hold for drift-plus-penalty with any V_t, alpha_t set beforehand such that V_t, alpha_t and alpha_t / V_t do
    not decrease: EDPP and DPP, with and without a horizon. Nothing in them is larger than the trivial bounds
    t ||H||, t F R, t H, F R and H.

    Args:
        size: F, G, H and R.
        preset: t -> (V_t, alpha_t).
        T: how many rounds.
        tau: a lag in samples; the theorems take tau_mix(1/T).
        distance: at least d_mix(tau), the distance from the stationary law after that lag.
        margin: Slater's epsilon, if there is one.

    >>> size = Constants(1.0, np.ones(1), np.ones(1), 2.0, True)
    >>> bound = expected(size, ergodic(tau_mix=1.0), T=10_000)
    >>> round(float(bound.regret[-1]) / 100, 2), round(float(bound.gap[-1]), 3)  # in units of sqrt T; of one
    (13.43, 0.134)
    """
    T, tau = check.integer("T", T, at_least=1), check.integer("tau", tau, at_least=1)
    distance = check.number("distance", distance, at_least=0, at_most=1)
    F, G, H, R = size.loss_grad, size.constraint_jac, size.constraints, size.diameter
    t = np.arange(1, T + 1, dtype=float)
    V, alpha = preset(t)
    before = np.maximum(t - tau + 1, 0)  # rounds for which a sample tau later has been seen

    b2, h, g = ((H + G * R) ** 2).sum(), np.linalg.norm(H), np.linalg.norm(G)
    cross = np.minimum((t - 1) * (H**2).sum(), (tau - 1) * (H * (H + G * R)).sum())  # Q_t.g_t(x) less its shifted part
    c = t * b2 + 2 * R * F * np.cumsum(V) + 2 * R**2 * alpha + 2 * np.cumsum(cross)
    kappa = h * distance * before
    queue = np.minimum(2 * kappa + np.sqrt(4 * kappa**2 + c), t * h)
    if margin is not None:
        queue = np.minimum(queue, slater_queue(size, preset, t + 1, tau, distance, margin))
    start = np.concatenate([[0.0], queue[:-1]])  # on E||Q_t||, of which Q_1 = 0

    step = np.minimum(R, (V * F + g * start) / (2 * alpha))
    travelled = np.cumsum(step)
    violation = np.minimum(queue[:, None] + G * travelled[:, None], t[:, None] * H)

    lagged = np.concatenate([np.zeros(min(tau - 1, T)), start[: max(T - tau + 1, 0)]])  # on E||Q_{t-tau+1}||
    regret = (
        R**2 * alpha / V
        + F**2 / 4 * np.cumsum(V / alpha)
        + b2 / 2 * np.cumsum(1 / V)
        + np.cumsum(cross / V)
        + 2 * distance * h * np.cumsum(lagged / V)
    )
    regret = np.minimum(regret, t * F * R)

    # sum over s <= t - tau + 1 of the way from x_s to x_{s+tau-1}
    sums = np.concatenate([[0.0], np.cumsum(np.concatenate([[0.0], travelled]))])  # sums[k] = P_0 + ... + P_{k-1}
    m = before.astype(int)
    drifted = np.where(m > 0, sums[t.astype(int)] - sums[np.minimum(tau - 1, T)] - sums[m], 0.0)
    edges = 2 * np.minimum(tau - 1, t) + 2 * distance * before
    gap = np.minimum((regret + edges * F * R + F * drifted) / t, F * R)
    infeasibility = np.minimum((violation + edges[:, None] * H + drifted[:, None] * G) / t[:, None], H)
    return Expected(queue, regret, violation, gap, infeasibility)


def slater_queue(
    size: Constants, preset: PresetWeights, t: ArrayLike, tau: int, distance: float, margin: float
) -> np.ndarray:
    """A bound on E||Q_t|| under Slater's condition with margin epsilon (theorem 3), infinite where it says nothing.

    The drift lemma over t_0 rounds (appendix D) with t_0 = 2 (tau - 1)(1 + 2||H|| / epsilon) + w; the smallest over a
    grid of w.
    """
    eps = check.number("margin", margin, above=0)
    F, G, H, R = size.loss_grad, size.constraint_jac, size.constraints, size.diameter
    b, h = np.linalg.norm(H + G * R), np.linalg.norm(H)
    t = np.asarray(t, dtype=float)
    if 2 * h * distance > eps / 2:  # the chain is too far from its law after tau steps
        return np.full(t.shape, np.inf)
    best = np.full(t.shape, np.inf)
    for w in 2.0 ** np.arange(0, 2 + int(np.ceil(np.log2(10 * t.max() + 1)))):
        t0 = np.ceil(2 * (tau - 1) * (1 + 2 * h / eps) + w)
        V, alpha = preset(t + t0 - 1)
        C = (
            t0 * b**2 + 2 * R * F * t0 * V + 2 * R**2 * alpha + h * b * (tau - 1) * (tau - 2)
            + 2 * (t0 - tau + 1) * (tau - 1) * b * h + eps / 2 * b * (t0 - tau) * (t0 - tau + 1)
        )  # fmt: skip
        theta = np.maximum(eps * t0 / 4, 2 * C / (eps * w))
        best = np.minimum(best, theta + t0 * b + 16 * t0 * b**2 / eps * np.log(128 * b**2 / eps**2))
    return best


def theorem1_bounds(
    size: Constants, T: float, tau_mix: float, beta: float = 0.5, tau: float = 1.0
) -> tuple[float, np.ndarray]:
    """Theorem 1 of EDPP in closed form: bounds on E[Regret(T)] and E[Violation(T)], looser than `expected`.

    With h = ||H||, g = ||G||, b^2 = sum (H_i + G_i R)^2, k = sum H_i (H_i + G_i R), tau = tau_mix(1/T):

        c1 = b^2 + 2 R^2 tau_mix + 2 (tau - 1) k,  c2 = 2 R F tau_mix^beta / (1 + beta)
        B = 4 h + sqrt(c1 T + c2 (T + 1)^(1 + beta))
        Regret <= R^2 (tau_mix T)^(1-beta) + F^2 T^beta / (4 beta tau_mix^(1-beta))
                  + [b^2 / 2 + (tau - 1) k + 2 h B / T] T^(1-beta) / ((1 - beta) tau_mix^beta)
        Violation_i <= B + F G_i T^beta / (2 beta tau_mix^(1-beta))
                  + G_i g / (2 tau_mix) [4 h (1 + log T) + 2 sqrt(c1 T) + 2 sqrt(c2) T^((1+beta)/2) / (1 + beta)]
    """
    F, G, H, R = size.loss_grad, size.constraint_jac, size.constraints, size.diameter
    h, g = np.linalg.norm(H), np.linalg.norm(G)
    b2, k = ((H + G * R) ** 2).sum(), (H * (H + G * R)).sum()
    c1, c2 = b2 + 2 * R**2 * tau_mix + 2 * (tau - 1) * k, 2 * R * F * tau_mix**beta / (1 + beta)
    B = 4 * h + np.sqrt(c1 * T + c2 * (T + 1) ** (1 + beta))
    loss_part = F * T**beta / (2 * beta * tau_mix ** (1 - beta))
    inverse = T ** (1 - beta) / ((1 - beta) * tau_mix**beta)  # at least the sum of 1 / V_t
    regret = R**2 * (tau_mix * T) ** (1 - beta) + F / 2 * loss_part + (b2 / 2 + (tau - 1) * k + 2 * h * B / T) * inverse
    queues = 4 * h * (1 + np.log(T)) + 2 * np.sqrt(c1 * T) + 2 * np.sqrt(c2) * T ** ((1 + beta) / 2) / (1 + beta)
    return float(regret), B + G * loss_part + G * g / (2 * tau_mix) * queues


class Adversarial(NamedTuple):
    """Bounds of appendix C on every path, given S_T: on the regret against x°, on ||Q_{T+1}|| and on the violation."""

    regret: np.ndarray
    queue: np.ndarray
    violation: np.ndarray


def appendix_c_bounds(energy: ArrayLike, T: ArrayLike, diameter: float, beta: float = 0.5) -> Adversarial:
    """ADPP against any x° with g_t(x°) <= 0 for all t (Kim and Lee, appendix C, for several constraints).

    Regret <= R S^(1-beta) (1 + 1/(1-beta)) + R S^beta / beta
    ||Q_{T+1}|| <= 2 sqrt(S + sqrt(T) S^(beta + 1/2))
    Violation_i <= ||Q_{T+1}|| + S^beta / (2 beta) + 2 S^(1/2) + T^(1/4) S^(beta/2 + 1/4) / (beta/2 + 1/4)

    Args:
        energy: S_T, the sum of F_t^2 / 4 + sum_i (R^2 G_ti^2 + H_ti^2).
        T: rounds.
        diameter: R.
        beta: of the algorithm.
    """
    S, T = np.asarray(energy, dtype=float), np.asarray(T, dtype=float)
    regret = diameter * (S ** (1 - beta) * (1 + 1 / (1 - beta)) + S**beta / beta)
    queue = 2 * np.sqrt(S + np.sqrt(T) * S ** (beta + 0.5))
    power = beta / 2 + 0.25
    return Adversarial(regret, queue, queue + S**beta / (2 * beta) + 2 * np.sqrt(S) + T**0.25 * S**power / power)


def ergodic(tau_mix: float, beta: float = 0.5) -> PresetWeights:
    """V_t = (tau_mix t)^beta, alpha_t = tau_mix t (EDPP-t; with tau_mix = 1, DPP-t)."""
    return lambda t: ((tau_mix * t) ** beta, tau_mix * t)


def constant(penalty: float, proximity: float) -> PresetWeights:
    """V_t = penalty, alpha_t = proximity (EDPP-T and DPP-T)."""
    return lambda t: (np.full(np.shape(t), float(penalty)), np.full(np.shape(t), float(proximity)))
