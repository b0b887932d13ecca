"""A task whose optimum is known by hand, for the tests of the benchmark."""

import jax.numpy as jnp
import numpy as np

import ergodrift as ed
from ergodrift.peers.task import Optimum, Task

CHAIN = [[0.9, 0.1], [0.1, 0.9]]
POINTS = np.array([[1.0, 0.0], [0.0, 1.0]])


def loss(x, xi):
    return jnp.sum((x - xi) ** 2)


def constraints(x, xi):
    return x[:1] - 0.3


def small(quick=False, *, num_samples=200, title="two states"):
    """Minimise E |x - xi|^2 with E xi = (1/2, 1/2) and x_0 <= 0.3: x* = (0.3, 0.5), lambda* = 2 (0.5 - 0.3)."""
    source = ed.MarkovSource(ed.MarkovChain(CHAIN), POINTS)
    return Task(
        name="small",
        title=title,
        about="The squared distance from a state, with the first entry at most 0.3.",
        data="simulated",
        problem=ed.Problem(loss, constraints, ed.Ball(2.0)),
        source=source,
        x0=np.zeros(2),
        num_samples=num_samples,
        later=None,
        solve=lambda: Optimum(np.array([0.3, 0.5]), 0.54, np.array([0.4]), "by hand"),
        order="drawn",
    )
