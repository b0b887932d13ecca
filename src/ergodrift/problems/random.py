"""Small random convex problems with proven constants, for checks that must hold whatever the problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import check
from ergodrift.data.chain import MarkovChain
from ergodrift.data.tables import MarkovSource
from ergodrift.geometry import Ball, Box, EntropySimplex, Geometry, L1Ball, Simplex
from ergodrift.problem import Problem
from ergodrift.types import Array, Sizes

DIMENSION, STATES, PAIRS = 3, 3, 2
GEOMETRIES: tuple[Geometry, ...] = (Ball(1.5), Box(-1.0, 0.8), Simplex(), EntropySimplex(floor=0.05), L1Ball(1.2))


class RandomProblem(NamedTuple):
    """A problem on a chain, with a feasible point and constants that hold over the whole domain.

    Attributes:
        problem: quadratic loss, linear and quadratic constraints.
        source: a chain of three states.
        x0: a point to start from.
        feasible: a point that meets the constraints, in each sample if `per_sample`, otherwise on average.
        margin: by how much it meets them.
        per_sample: which of the two.
        bounds: F, and G and H constraint by constraint.
    """

    problem: Problem
    source: MarkovSource
    x0: np.ndarray
    feasible: np.ndarray
    margin: float
    per_sample: bool
    bounds: Sizes


def quadratic_loss(x: Array, xi: Mapping[str, Array]) -> jax.Array:
    """||A x - b||^2 / 2 + c.x."""
    return jnp.sum((xi["A"] @ x - xi["b"]) ** 2) / 2 + xi["c"] @ x


def mixed_limits(x: Array, xi: Mapping[str, Array]) -> jax.Array:
    """The linear a.x - e and the quadratic s ||x - o||^2 - rho."""
    squares = xi["s"] * jnp.sum((x[None] - xi["o"]) ** 2, axis=1)
    return jnp.concatenate([xi["a"] @ x - xi["e"], squares - xi["rho"]])


def random_problem(seed: int) -> RandomProblem:
    """A problem drawn at random: domain, scales, chain (mixing times 1 to about 100) and how feasible it is.

    Every second problem has a point that meets the constraints in every state, as appendix C needs; the others have
    one that meets them on average. F, G and H follow from ||x|| <= r over the domain by the triangle inequality.

    >>> one = random_problem(0)
    >>> bool((one.problem.constraints(one.feasible, one.source.example) <= 0).all())
    True
    """
    seed = check.integer("seed", seed, at_least=0)
    rng = np.random.default_rng(seed)
    geometry = GEOMETRIES[seed % len(GEOMETRIES)]
    per_sample, margin = (seed // len(GEOMETRIES)) % 2 == 0, float(rng.choice([1e-3, 0.05, 0.5]))
    loss_scale, limit_scale = 10.0 ** rng.uniform(-1, 1, size=2)
    stay = rng.choice([0.0, 0.5, 0.9, 0.97])
    P = stay * np.eye(STATES) + (1 - stay) * rng.dirichlet(np.ones(STATES), size=STATES)
    chain = MarkovChain(P)
    data = {
        "A": loss_scale**0.5 * rng.normal(size=(STATES, 2, DIMENSION)),
        "b": loss_scale**0.5 * rng.normal(size=(STATES, 2)),
        "c": loss_scale * rng.normal(size=(STATES, DIMENSION)),
        "a": limit_scale * rng.normal(size=(STATES, PAIRS, DIMENSION)),
        "e": limit_scale * rng.normal(size=(STATES, PAIRS)),
        "o": rng.normal(size=(STATES, PAIRS, DIMENSION)),
        "s": limit_scale * rng.uniform(0.1, 1.0, size=(STATES, PAIRS)),
        "rho": limit_scale * rng.normal(size=(STATES, PAIRS)),
    }
    feasible, x0 = (np.asarray(geometry.project(jnp.asarray(rng.normal(size=DIMENSION)))) for _ in range(2))
    values = np.stack([mixed_limits(feasible, {name: leaf[j] for name, leaf in data.items()}) for j in range(STATES)])
    level = values.max(axis=0) if per_sample else chain.stationary @ values
    shift = level + margin * limit_scale  # now g(feasible) <= -margin, in every state or on average
    data["e"], data["rho"] = data["e"] + shift[:PAIRS], data["rho"] + shift[PAIRS:]

    r = float(geometry.reach(x0))
    A, b, c = data["A"], data["b"], data["c"]
    hessian = np.linalg.norm(A, ord=2, axis=(1, 2)) ** 2
    F = (np.linalg.norm(np.einsum("jki,jk->ji", A, b) - c, axis=1) + r * hessian).max()
    slope, away = np.linalg.norm(data["a"], axis=2), r + np.linalg.norm(data["o"], axis=2)
    G = np.concatenate([slope.max(axis=0), (2 * data["s"] * away).max(axis=0)])
    low, high = -data["rho"], data["s"] * away**2 - data["rho"]
    H = np.concatenate([(r * slope + np.abs(data["e"])).max(axis=0), np.maximum(np.abs(low), np.abs(high)).max(axis=0)])
    problem = Problem(quadratic_loss, mixed_limits, geometry)
    bounds = Sizes(float(F), G, H)  # type: ignore[arg-type]  # bounds, not arrays of a round
    return RandomProblem(problem, MarkovSource(chain, data), x0, feasible, margin * limit_scale, per_sample, bounds)
