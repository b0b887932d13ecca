"""A simulated task: two queues share a transmitter whose sky changes, and arrivals come in calm and in busy times."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from ergodrift.data.source import Law, Source
from ergodrift.geometry import Product, Simplex
from ergodrift.peers.task import Optimum, Task
from ergodrift.peers.tasks.solvers import linear_program
from ergodrift.problem import Problem
from ergodrift.types import Key, PyTree

SKIES = ("clear", "haze", "storm")
GAIN = np.array([3.0, 1.0, 0.3])  # of the channel
STAY = 0.98  # the probability that the sky stays; else it becomes one of the two others
ACTIONS = [(None, 0.0), (0, 1.0), (0, 4.0), (1, 1.0), (1, 4.0)]  # whom to serve, and with how many watts
CHANGE = np.array([0.002, 0.006])  # the probability that a calm time ends, and that a busy one does
USERS = 4  # behind each queue
RATES = np.array([[0.05, 0.08], [0.3, 0.15]])  # (times, queues): the probability that a user sends a packet
WATTS = np.array([watts for _, watts in ACTIONS])


class Skies(Source):
    """xi: how many packets arrive at each queue, and the sky, as one entry of three that is 1. All start stationary."""

    def init(self, key: Key) -> PyTree:
        first, second = jax.random.split(key)
        busy = jax.random.bernoulli(first, CHANGE[0] / CHANGE.sum())
        return busy.astype(jnp.int32), jax.random.randint(second, (), 0, len(SKIES), jnp.int32)

    def sample(self, key: Key, state: PyTree) -> tuple[PyTree, PyTree]:
        busy, sky = state
        change, rates = jnp.asarray(CHANGE), jnp.asarray(RATES)
        chance = jax.random.uniform(key, (2 + 2 * USERS,), change.dtype)  # one draw for all: several cost time
        busy = jnp.where(chance[0] < change[busy], 1 - busy, busy)
        moved = (chance[1] > STAY).astype(jnp.int32) + (chance[1] > (1 + STAY) / 2).astype(jnp.int32)
        sky = (sky + moved) % len(SKIES)
        sent = chance[2:].reshape(USERS, 2) < rates[busy][None]
        here = (sky == jnp.arange(len(SKIES), dtype=jnp.int32)).astype(rates.dtype)
        return (busy, sky), {"arrivals": jnp.sum(sent, axis=0).astype(rates.dtype), "sky": here}

    @property
    def starts_stationary(self) -> bool:
        return True

    @functools.cached_property
    def _law(self) -> Law:
        """Each number of packets, each sky and each time: all the samples there are, with their probabilities."""
        times, counts = CHANGE[::-1] / CHANGE.sum(), np.arange(USERS + 1)
        sent = scipy.stats.binom.pmf(counts[:, None, None], USERS, RATES)  # (counts, times, queues)
        both = np.einsum("t,at,bt->ab", times, sent[..., 0], sent[..., 1])
        first, second, sky = (i.ravel() for i in np.meshgrid(counts, counts, np.arange(3), indexing="ij"))
        points = {"arrivals": np.column_stack([first, second]).astype(float), "sky": np.eye(3)[sky]}
        return Law(points, both[first, second] / 3)

    @property
    def loss_law(self) -> Law:
        return self._law


def service() -> np.ndarray:
    """(skies, actions, queues): packets that an action sends, log2(1 + gain watts)."""
    sent = np.zeros((len(SKIES), len(ACTIONS), 2))
    for action, (served, watts) in enumerate(ACTIONS):
        if served is not None:
            sent[:, action, served] = np.log2(1 + GAIN * watts)
    return sent


def queues(quick: bool = False) -> Task:
    """The least power with which both queues are stable, over random policies that see the sky."""
    sent = service()

    def chances(x: PyTree, xi: PyTree) -> jax.Array:
        """(actions,) how likely each action is under this sky."""
        return xi["sky"] @ jnp.stack([x[sky] for sky in SKIES])

    def loss(x: PyTree, xi: PyTree) -> jax.Array:
        return chances(x, xi) @ jnp.asarray(WATTS, xi["sky"].dtype)

    def constraints(x: PyTree, xi: PyTree) -> jax.Array:
        under = jnp.einsum("s,sai->ai", xi["sky"], jnp.asarray(sent, xi["sky"].dtype))
        return xi["arrivals"] - chances(x, xi) @ under

    return Task(
        "queue",
        "Two queues under a changing sky",
        "The mean power in watts of a transmitter that serves two queues, one at a time, while as many packets are "
        "sent as arrive on average at each (Neely 2010). x is, for each of three skies, the probability of each of "
        "five actions. Arrivals come in calm times of about 500 samples and in busy ones of about 170.",
        "simulated",
        Problem(loss, constraints, Product({sky: Simplex() for sky in SKIES})),
        Skies(),
        {sky: np.full(len(ACTIONS), 1 / len(ACTIONS)) for sky in SKIES},
        3000 if quick else 20_000,
        None,
        _optimum,
        "drawn",
    )


def _optimum() -> Optimum:
    """A linear program in the probabilities, under the stationary law in closed form."""
    busy = CHANGE[0] / CHANGE.sum()
    arrivals = USERS * ((1 - busy) * RATES[0] + busy * RATES[1])
    size = len(SKIES) * len(ACTIONS)
    z, multipliers = linear_program(
        np.tile(WATTS, 3) / 3,
        -service().reshape(size, 2).T / 3,
        -arrivals,
        [(0, 1)] * size,
        budgets=2,
        equal=(np.kron(np.eye(3), np.ones(len(ACTIONS))), np.ones(3)),
    )
    x = dict(zip(SKIES, z.reshape(3, -1), strict=True))
    return Optimum(x, float(np.tile(WATTS, 3) @ z / 3), multipliers, "HiGHS, interior point (SciPy)")
