"""A simulated task: two queues share a transmitter whose sky changes, and arrivals come in calm and in busy times."""

from __future__ import annotations

import numpy as np

from ergodrift.geometry import Product, Simplex
from ergodrift.peers.task import Optimum, Task
from ergodrift.peers.tasks.solvers import linear_program
from ergodrift.problem import Problem
from ergodrift.problems.scheduling import ACTIONS, SKIES, WATTS, Skies, arrivals, backlog, service, watts_spent


def queues(quick: bool = False) -> Task:
    """The least power with which both queues are stable, over random policies that see the sky."""
    return Task(
        "queue",
        "Two queues under a changing sky",
        "The mean power in watts of a transmitter that serves two queues, one at a time, while as many packets are "
        "sent as arrive on average at each (Neely 2010). x is, for each of three skies, the probability of each of "
        "five actions. Arrivals come in calm times of about 500 samples and in busy ones of about 170.",
        "simulated",
        Problem(watts_spent, backlog, Product({sky: Simplex() for sky in SKIES})),
        Skies(),
        {sky: np.full(len(ACTIONS), 1 / len(ACTIONS)) for sky in SKIES},
        3000 if quick else 20_000,
        None,
        optimum,
        "drawn",
    )


def optimum() -> Optimum:
    """A linear program in the probabilities, under the stationary law in closed form."""
    size = len(SKIES) * len(ACTIONS)
    z, multipliers = linear_program(
        np.tile(WATTS, 3) / 3,
        -service().reshape(size, 2).T / 3,
        -arrivals(),
        [(0, 1)] * size,
        budgets=2,
        equal=(np.kron(np.eye(3), np.ones(len(ACTIONS))), np.ones(3)),
    )
    x = dict(zip(SKIES, z.reshape(3, -1), strict=True))
    return Optimum(x, float(np.tile(WATTS, 3) @ z / 3), multipliers, "HiGHS, interior point (SciPy)")
