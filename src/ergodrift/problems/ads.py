"""Advertisers with budgets for a day: what a place is worth changes with the hour, what it costs with the crowd."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import check
from ergodrift.data.chain import MarkovChain
from ergodrift.data.series import SeriesSource
from ergodrift.data.tables import MarkovSource
from ergodrift.data.zip import Zip
from ergodrift.geometry import Simplex
from ergodrift.problem import Problem
from ergodrift.problems.application import Application, solved
from ergodrift.types import PyTree

ADVERTISERS = ("news", "dinner", "games")
PEAKS = np.array([17.5, 19.0, 21.5])  # hours at which their clicks are worth most
WORTH = np.array([1.0, 1.2, 0.9])  # cents, at the peak; a third of it far from there
PRICES = np.array([[0.3, 0.35, 0.25], [0.6, 0.7, 0.5], [1.1, 1.2, 0.9]])  # cents in a small, usual and large crowd
CROWD = np.array([[0.99, 0.01, 0.0], [0.005, 0.99, 0.005], [0.0, 0.02, 0.98]])
BUDGETS = np.array([0.12, 0.15, 0.1])  # cents an auction, on average over the day


def pacing(num_auctions: int = 20_000, *, seed: int = 0) -> Application[Problem, Zip]:
    """Whose advertisement to show, when budgets are to last the day (adversarial losses, stochastic constraints).

    Auction t is worth v_ti cents to advertiser i and costs c_ti. Minimise the sum of -<v_t, x>, x a law over the three
    advertisers and nobody, subject to E[c_i x_i] <= budget_i. Values follow the hours of one day, which comes once:
    no law, so the benchmark is the best fixed x in hindsight (Kim and Lee, section 2.2). Prices follow a Markov chain.

    Args:
        num_auctions: of the day.
        seed: of the noise in the values.

    >>> problem, source, reference = pacing(2000)
    >>> reference.x.shape
    (4,)
    """
    count = check.integer("num_auctions", num_auctions, at_least=100)
    rng = np.random.default_rng(check.integer("seed", seed, at_least=0))
    hour = 24 * np.arange(count) / count
    away = np.abs((hour[:, None] - PEAKS + 12) % 24 - 12)
    values = WORTH * (1 / 3 + 2 / 3 * np.exp(-((away / 3) ** 2))) * rng.gamma(4, 1 / 4, size=(count, len(PEAKS)))
    source = Zip(SeriesSource(values), MarkovSource(MarkovChain(CROWD), PRICES))

    def loss(x: PyTree, xi: PyTree) -> jax.Array:
        return -(xi[0] @ x[:-1])

    def constraints(x: PyTree, xi: PyTree) -> jax.Array:
        return xi[1] * x[:-1] - jnp.asarray(BUDGETS, x.dtype)

    return solved(Problem(loss, constraints, Simplex()), source, np.full(len(PEAKS) + 1, 1 / (len(PEAKS) + 1)))
