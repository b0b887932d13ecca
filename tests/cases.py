"""What several test files share: small random problems (quadratic losses, linear and quadratic constraints), series."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.signal
from hypothesis import settings
from jax.flatten_util import ravel_pytree

import ergodrift as ed

# The same examples on every run and every machine; the first example of a test compiles, so there is no deadline.
deterministic = settings(derandomize=True, deadline=None)

# Every kind of domain, with a point that shows the structure of x.
GEOMETRIES: dict[str, tuple[ed.Geometry, Any]] = {
    "ball": (ed.Ball(1.5), np.zeros(3)),
    "box": (ed.Box(-1.0, np.array([0.5, 1.0, 2.0])), np.zeros(3)),
    "simplex": (ed.Simplex(), np.zeros(3)),
    "entropy": (ed.EntropySimplex(floor=0.02), np.zeros(3)),
    "l1": (ed.L1Ball(1.2), np.zeros(3)),
    "product": (
        ed.Product({"w": ed.Ball(1.0), "p": ed.EntropySimplex(floor=0.05)}),
        {"w": np.zeros(2), "p": np.zeros(3)},
    ),
}


def loss(x: Any, xi: Any) -> Any:
    """||A x - b||^2 / 2 + c.x, with the leaves of x as one vector."""
    flat = ravel_pytree(x)[0]
    return jnp.sum((xi["A"] @ flat - xi["b"]) ** 2) / 2 + xi["c"] @ flat


def constraints(x: Any, xi: Any) -> Any:
    """The linear a.x - e, and then the quadratic ||x - o||^2 - rho."""
    flat = ravel_pytree(x)[0]
    return jnp.concatenate([xi["a"] @ flat - xi["e"], jnp.sum((flat[None] - xi["o"]) ** 2, axis=1) - xi["rho"]])


def random_data(rng: np.random.Generator, num_states: int, dimension: int, pairs: int, scale: float = 1.0) -> Any:
    """Data of so many states for `loss` and `constraints`, with `pairs` constraints of each kind."""
    shapes = {
        "A": (2, dimension),
        "b": (2,),
        "c": (dimension,),
        "a": (pairs, dimension),
        "e": (pairs,),
        "o": (pairs, dimension),
        "rho": (pairs,),
    }
    data = {name: rng.normal(size=(num_states, *shape)) for name, shape in shapes.items()}
    factors = {"A": scale**0.5, "b": scale**0.5, "c": scale, "a": scale, "e": scale}
    return {name: factors.get(name, 1.0) * leaf for name, leaf in data.items()}


def random_point(rng: np.random.Generator, geometry: ed.Geometry, like: Any) -> Any:
    """A point of the domain, often on its boundary."""
    return _project(geometry, jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), like))


@jax.jit
def _project(geometry: ed.Geometry, x: Any) -> Any:
    return geometry.project(x)


def ar1(lam, n, columns=1, seed=0):
    """Stationary AR(1) series of variance 1, (n, columns)."""
    noise = np.random.default_rng(seed).normal(size=(n, columns)) * np.sqrt(1 - lam**2)
    noise[0] /= np.sqrt(1 - lam**2)
    return np.asarray(scipy.signal.lfilter([1], [1, -lam], noise, axis=0))
