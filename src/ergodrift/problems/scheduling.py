"""Power against delay: two queues share a transmitter whose sky changes, and arrivals come in calm and busy times."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from ergodrift._core import check
from ergodrift.data.source import Law, Source
from ergodrift.geometry import Box, Product, Simplex
from ergodrift.problem import Problem
from ergodrift.problems.application import Application, solved
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


def arrivals() -> np.ndarray:
    """(2,) packets that arrive at each queue in the mean."""
    busy = CHANGE[0] / CHANGE.sum()
    return USERS * ((1 - busy) * RATES[0] + busy * RATES[1])


def chances(x: PyTree, xi: PyTree) -> jax.Array:
    """(actions,) how likely each action is under the sky of a sample."""
    return xi["sky"] @ jnp.stack([x[sky] for sky in SKIES])


def watts_spent(x: PyTree, xi: PyTree) -> jax.Array:
    """The power that a random policy spends in the mean."""
    return chances(x, xi) @ jnp.asarray(WATTS, xi["sky"].dtype)


def backlog(x: PyTree, xi: PyTree) -> jax.Array:
    """(2,) what arrives, less what is sent in the mean."""
    under = jnp.einsum("s,sai->ai", xi["sky"], jnp.asarray(service(), xi["sky"].dtype))
    return xi["arrivals"] - chances(x, xi) @ under


def scheduling() -> Application[Problem, Skies]:
    """The least power with which two queues are stable: the classic use of drift-plus-penalty (Neely 2010).

    Minimise the mean power in watts, subject to E[arrivals_i - service_i] <= 0 for both queues. x is, for each of three
    skies, the probability of each of five actions: serve nobody, or one of the queues with 1 or 4 watts, which sends
    log2(1 + gain watts) packets. The sky stays for 50 samples, calm times last 500 and busy ones 170: arrivals are
    Markov-modulated, and the virtual queues of the algorithm look at them as the real ones do.

    >>> problem, source, reference = scheduling()
    >>> round(reference.value, 4), (reference.multipliers > 0).all()
    (0.5067, np.True_)
    """
    problem = Problem(watts_spent, backlog, Product({sky: Simplex() for sky in SKIES}))
    return solved(problem, Skies(), {sky: np.full(len(ACTIONS), 1 / len(ACTIONS)) for sky in SKIES})


def _power(x: PyTree, xi: PyTree) -> jax.Array:
    return xi["sky"] @ jnp.sum(x, axis=1)


def _power_backlog(x: PyTree, xi: PyTree) -> jax.Array:
    gain = xi["sky"] @ jnp.asarray(GAIN, xi["sky"].dtype)
    return xi["arrivals"] - jnp.log2(1 + gain * (xi["sky"] @ x))


def water_filling(load: float = 3.0) -> Application[Problem, Skies]:
    """The same two queues with channels of their own and power without a limit: any x >= 0, so X has no bound.

    Minimise the mean power E[sum_i x(sky, i)] subject to E[load arrivals_i - log2(1 + gain(sky) x(sky, i))] <= 0, with
    x (3, 2) the power for each sky and queue. The methods need a compact X, and the problem has one: the policy that
    sends the mean arrivals whatever the sky is feasible and spends P watts, so no optimum spends more than P in the
    mean, and none has x(sky, i) > 3 P, since each sky has probability 1/3. The box up to there leaves nothing out.

    Args:
        load: a factor on what the queues have to send.

    >>> problem, source, reference = water_filling()
    >>> bool((reference.x < problem.geometry.project(np.full((3, 2), 1e9))).all())
    True
    """
    load = check.number("load", load, above=0)
    most = 3 * float(np.mean((2 ** (load * arrivals()[None]) - 1) / GAIN[:, None], axis=0).sum())

    def constraints(x: PyTree, xi: PyTree) -> jax.Array:
        return _power_backlog(x, {**xi, "arrivals": load * xi["arrivals"]})

    return solved(Problem(_power, constraints, Box(np.zeros((3, 2)), np.full((3, 2), most))), Skies(), np.ones((3, 2)))
