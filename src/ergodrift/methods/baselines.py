"""Algorithms of other authors for the same problem, to compare with; no bound of ours is about them."""

from __future__ import annotations

import numpy as np

from ergodrift._core import check
from ergodrift.methods.algorithms import Algorithm
from ergodrift.methods.augmented import AugmentedLagrangian, Fixed, Smoothed
from ergodrift.methods.surrogate import HardPotential, SoftPotential, Surrogate
from ergodrift.methods.switching import Halves, Relaxing, Switching
from ergodrift.types import Scalar

NEVER = float(np.finfo(np.float32).max)  # weights are finite numbers


def sinha_vaze(horizon: Scalar, gradient_bound: Scalar, diameter: Scalar | None = None) -> Algorithm:
    """Online descent on f_t + Phi'(Q_t) [max_i g_ti]_+ with AdaGrad's steps (Sinha and Vaze 2024, algorithm 1).

    Phi(Q) = exp(Q / (2 sqrt T)) - 1, and Q_t sums the violations of all samples so far, over 2 G D. Samples that keep
    a constraint make up for none that do not: it asks for a point that keeps the constraints of every sample, and where
    there is none, only on average, Q_t grows with t and the loss is given up in the end.

    Args:
        horizon: T, the number of samples.
        gradient_bound: G, a bound on the norms of all gradients.
        diameter: D, the Euclidean diameter of the domain; found unless given.

    >>> sinha_vaze(horizon=10_000, gradient_bound=5.0).name
    'Sinha-Vaze'
    """
    schedule = HardPotential(
        check.number("horizon", horizon, at_least=1),
        check.number("gradient_bound", gradient_bound, above=0),
        None if diameter is None else check.number("diameter", diameter, above=0),
    )
    return Algorithm("Sinha-Vaze", Surrogate, schedule)


def yu_lee_lee(
    gradient_bound: Scalar,
    constraint_bound: Scalar,
    diameter: Scalar | None = None,
    gamma_scale: Scalar = 1.0,
    regularizer_scale: Scalar = 1.0,
) -> Algorithm:
    """Descent on f_t + Phi_t'(Q_t) g_t with a regulariser in the dual update, for constraints that hold on average and
    need not have a Slater point (Yu, Lee and Lee 2026, algorithm 1, with the choices (4) and (6)).

    gamma_t = min(1 / (12 G sqrt t), 1 / (24 D L), 1), Phi_t(Q) = exp(gamma_t Q) - 1, and Q_{t+1} = Q_t + g_t(x_t) - R_t
    with R_t >= 0; anytime. Theirs is one constraint; with several, each has its own Q_i here, and the potentials add.

    With the theorem's gamma_t the potential is all but linear on runs of usual length: after 10,000 samples that each
    violate by a tenth of G, the multiplier is at most e^(5/6) gamma_t, or 0.002 / G. The experiments that the authors
    publish take 300 times that gamma_t and a thousandth of R_t (and leave its term 12 gamma_t G^2 out); hence the
    scales.

    Args:
        gradient_bound: L, a bound on the norms of all gradients.
        constraint_bound: G, a bound on all |g_i|.
        diameter: D, the Euclidean diameter of the domain; found unless given.
        gamma_scale: by which gamma_t is multiplied; the theorem's is 1.
        regularizer_scale: by which R_t is multiplied; the theorem's is 1.

    >>> yu_lee_lee(gradient_bound=5.0, constraint_bound=2.0).name
    'Yu-Lee-Lee'
    """
    schedule = SoftPotential(
        check.number("gradient_bound", gradient_bound, above=0),
        check.number("constraint_bound", constraint_bound, above=0),
        None if diameter is None else check.number("diameter", diameter, above=0),
        check.number("gamma_scale", gamma_scale, above=0),
        check.number("regularizer_scale", regularizer_scale, at_least=0),
    )
    return Algorithm("Yu-Lee-Lee", Surrogate, schedule)


def switching(step: Scalar, tolerance: Scalar, batch: int = 10, horizon: Scalar | None = None) -> Algorithm:
    """Switching subgradients (Polyak 1967) for constraints known by samples: CSA of Lan and Zhou (2020, algorithm 1).

    Step k is on the loss where the means of all g_i over a batch are at most eta_k = tolerance / sqrt k, else on the
    worst constraint, and has length gamma_k = step / sqrt k. The average is over the points of the steps on the loss,
    those of the latest half to three quarters of the samples; with a horizon, gamma and eta are those of the last step
    throughout, and the average is over all steps on the loss. Lan and Zhou weigh points by gamma_k, here equally.

    Args:
        step: gamma_1; theirs is of the order of the diameter over the gradients.
        tolerance: eta_1; theirs is of the order of the diameter times the gradients.
        batch: J, the samples of a step for the constraints; as many follow for the loss.
        horizon: the number of samples.

    >>> switching(step=0.5, tolerance=0.5).name
    'CSA'
    """
    size = check.integer("batch", batch, at_least=1)
    step, tolerance = check.number("step", step, above=0), check.number("tolerance", tolerance, at_least=0)
    if horizon is None:
        return Algorithm("CSA", Switching, Relaxing(step, tolerance), Halves(size), average="suffix")
    steps = check.number("horizon", horizon, at_least=2 * size) / (2 * size)
    return Algorithm("CSA", Switching, Relaxing(step, tolerance, steps), Halves(size))


def augmented_lagrangian(
    horizon: Scalar,
    step: Scalar = 1.0,
    dual_step: Scalar = 1.0,
    rho: Scalar = 1.0,
    mu: Scalar = 2.0,
    smoothing: Scalar = 1.0,
    multiplier_bound: Scalar | None = None,
    decay: Scalar = 50.0,
) -> Algorithm:
    """A stochastic, linearised, proximal augmented Lagrangian (after Huang, Zhang and Alacaoglu 2025, SSL-ALM).

    Each round steps on the multipliers and on x, and moves the proximal centre z, by steps of order 1 / sqrt T. Their
    algorithm 2 is for linear equations, with a slack for every inequality and two independent samples a round; here
    slacks are minimised over in closed form, and the constraints are averaged over a window that grows
    (`GrowingWindow`), since consecutive samples are not independent. They return a random iterate, this the average.

    Args:
        horizon: T, the number of samples.
        step: tau sqrt T, for x.
        dual_step: eta sqrt T, for the multipliers.
        rho: the weight of the quadratic penalty.
        mu: of mu |x - z|^2 / 2; theirs is max(2, 4 L) for a loss with L-Lipschitz gradients. 0 leaves it out.
        smoothing: beta sqrt T, the speed of z, which is at most 1 a round.
        multiplier_bound: M_y, at which the multipliers start again from 0; never unless given.
        decay: most of the window's weight is on the last 2 / decay of the samples.

    >>> augmented_lagrangian(horizon=10_000, step=0.5).name
    'ALM'
    """
    length = check.number("horizon", horizon, at_least=1)
    schedule = Fixed(
        length,
        check.number("step", step, above=0),
        check.number("dual_step", dual_step, above=0),
        check.number("rho", rho, above=0),
        NEVER if multiplier_bound is None else check.number("multiplier_bound", multiplier_bound, above=0),
    )
    speed = check.number("smoothing", smoothing, at_least=0) / length**0.5
    window = Smoothed(check.number("decay", decay, at_least=1), check.number("mu", mu, at_least=0), speed)
    return Algorithm("ALM", AugmentedLagrangian, schedule, window)
