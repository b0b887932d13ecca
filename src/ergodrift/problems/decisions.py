"""A constrained Markov decision process with average costs, from the trajectory of a simulator alone."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import check
from ergodrift.data.chain import MarkovChain
from ergodrift.data.tables import MarkovSource
from ergodrift.geometry import Box
from ergodrift.problem import Problem
from ergodrift.problems.application import Application, solved
from ergodrift.types import PyTree

ARRIVAL = 0.4  # the probability that a customer comes in a slot
SERVED = np.array([0.2, 0.5, 0.8])  # by each action: the probability that the one in front leaves
POWER = np.array([0.0, 1.0, 3.0])  # of each action


class Room(NamedTuple):
    """A waiting room as a decision process.

    Attributes:
        P: (states, actions, states) transition probabilities; the state is how many wait.
        power: (actions,) the cost of a slot.
        waiting: (states,) what is limited.
    """

    P: np.ndarray
    power: np.ndarray
    waiting: np.ndarray


def room(places: int = 5) -> Room:
    """At most so many wait; who finds no place goes away."""
    states = check.integer("places", places, at_least=1, at_most=50) + 1
    P = np.zeros((states, len(SERVED), states))
    for s, (a, served) in itertools.product(range(states), enumerate(SERVED)):
        for comes, leaves in itertools.product((0, 1), (0, 1)):
            chance = (ARRIVAL if comes else 1 - ARRIVAL) * (served if leaves else 1 - served)
            P[s, a, min(max(s - leaves, 0) + comes, states - 1)] += chance
    return Room(P, POWER, np.arange(states, dtype=float))


def occupation(
    *, places: int = 5, limit: float = 1.5, slack: float = 2e-4, most: float = 20.0
) -> Application[Problem, MarkovSource]:
    """The least power with which few wait in the mean, learned from the trajectory of a policy that acts at random.

    Of the linear program over occupation measures m(s, a) (Manne 1960; Altman 1999), min <power, m> subject to flow
    balance and <waiting, m> <= limit, only samples (s, a, s') are seen. The variable is how much more often the best
    policy is in (s, a) than the random one, w = m / m_random (Nachum and Dai 2020), so that all is an expectation along
    the trajectory, and nobody needs to know the transitions:

        min E[w(s, a) power(a)]  subject to  |E[w(s, a) (1{s' = j} - 1{s = j})]| <= slack for every state j,
        |E[w(s, a)] - 1| <= slack,  E[w(s, a) (waiting(s) - limit)] <= 0,  0 <= w <= most.

    Args:
        places: in the waiting room.
        limit: of the mean number that waits.
        slack: by how much flows may be out of balance.
        most: a bound on w.

    >>> problem, source, reference = occupation(places=2)
    >>> policy(reference.x).shape
    (3, 3)
    """
    limit, slack = check.number("limit", limit, above=0), check.number("slack", slack, above=0)
    world = room(places)
    states, actions = world.P.shape[:2]
    moves = np.argwhere(world.P > 0)  # (s, a, s')
    s, a, after = moves.T
    chance = world.P[s, a, after] / actions
    chain = MarkovChain(np.where(s[None] == after[:, None], chance[None], 0.0))
    pair = (s[:, None, None] == np.arange(states)[None, :, None]) & (a[:, None, None] == np.arange(actions))
    flow = (after[:, None] == np.arange(states)).astype(float) - (s[:, None] == np.arange(states))
    data = {"pair": pair.astype(float), "flow": flow, "power": world.power[a], "over": world.waiting[s] - limit}

    def ratio(x: PyTree, xi: PyTree) -> jax.Array:
        return jnp.sum(x * xi["pair"])

    def loss(x: PyTree, xi: PyTree) -> jax.Array:
        return ratio(x, xi) * xi["power"]

    def constraints(x: PyTree, xi: PyTree) -> jax.Array:
        w = ratio(x, xi)
        balance = jnp.append(w * xi["flow"], w - 1)
        return jnp.concatenate([balance - slack, -balance - slack, jnp.stack([w * xi["over"]])])

    geometry = Box(np.zeros((states, actions)), np.full((states, actions), most))
    return solved(Problem(loss, constraints, geometry), MarkovSource(chain, data), np.ones((states, actions)))


def policy(w: np.ndarray) -> np.ndarray:
    """(states, actions) the probabilities of actions that w stands for; alike where it never goes."""
    total = np.asarray(w).sum(axis=1, keepdims=True)
    return np.where(total > 0, np.asarray(w) / np.where(total > 0, total, 1), 1 / w.shape[1])


def average(world: Room, chances: np.ndarray) -> tuple[float, float]:
    """The mean power and the mean number that waits under a policy, exactly."""
    law = MarkovChain(np.einsum("sa,sat->st", chances, world.P)).stationary
    return float(law @ chances @ world.power), float(law @ world.waiting)
