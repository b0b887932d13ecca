"""The simplex with the entropy mirror map."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.special import kl_div

from ergodrift._core import check, tree
from ergodrift.geometry.base import Geometry, size
from ergodrift.geometry.euclidean import project_simplex
from ergodrift.geometry.region import Region
from ergodrift.types import PyTree, Scalar

X = TypeVar("X")


def softmax_above(logits: jax.Array, floor: Scalar | None) -> jax.Array:
    """The law proportional to exp(logits), with entries that would fall below the floor on it."""
    # An entry that underflows to 0 would stay there for ever, so none gets near the smallest number there is.
    least = 0.9 * np.log(jnp.finfo(logits.dtype).tiny)
    scaled = jnp.exp(jnp.maximum(logits - jnp.max(logits), least))
    if floor is None:
        return scaled / jnp.sum(scaled)
    # Keep the k largest free and the rest on the floor, for the largest k whose smallest free entry clears it.
    ordered = jnp.sort(scaled, descending=True)
    ranks = jnp.arange(1, logits.size + 1, dtype=logits.dtype)
    factors = (1 - (logits.size - ranks) * floor) / jnp.cumsum(ordered)
    kept = jnp.maximum(jnp.sum(factors * ordered > floor), 1)
    return jnp.maximum(factors[kept - 1] * scaled, floor)


class EntropySimplex(Geometry):
    """{x : x_i >= floor, sum x = 1} with Phi = 2 sum x log x, so D = 2 KL, the norm is l1 and the dual norm l-infinity.

    The prox multiplies: y_i is proportional to x_i exp(-direction_i / (2 proximity)), and entries that would fall
    below the floor stay on it. With floor = 0 (the default) D is unbounded, so the schedules that need R ask for it.

    >>> import jax.numpy as jnp
    >>> EntropySimplex().prox(jnp.array([0.5, 0.5]), jnp.array([0.0, jnp.log(9.0)]), 0.5).round(6)
    Array([0.9, 0.1], dtype=float64)
    """

    floor: Scalar | None = 0.0

    def __post_init__(self) -> None:
        floor = check.number("floor", self.floor, at_least=0)
        # None is no leaf: without a floor the prox needs no sort, and XLA need not compile one.
        object.__setattr__(self, "floor", None if isinstance(floor, float) and not floor else floor)

    def prox(self, x: X, direction: X, proximity: Scalar) -> X:
        flat, unravel = ravel_pytree(x)
        return unravel(softmax_above(jnp.log(flat) - ravel_pytree(direction)[0] / (2 * proximity), self.floor))

    def project(self, x: X) -> X:
        flat, unravel = ravel_pytree(x)
        floor = 0 if self.floor is None else self.floor
        return unravel(jnp.asarray(floor + project_simplex(flat - floor, 1 - flat.size * floor)))

    def bregman(self, x: X, y: X) -> Scalar:
        return 2 * jnp.sum(kl_div(ravel_pytree(x)[0], ravel_pytree(y)[0]))

    def norm(self, x: PyTree) -> Scalar:
        return jnp.sum(jnp.abs(ravel_pytree(x)[0]))

    def dual_norm(self, x: PyTree) -> Scalar:
        return jnp.max(jnp.abs(ravel_pytree(x)[0]))

    def diameter(self, x: PyTree) -> Scalar:
        """KL is convex in both arguments, so its largest value is at two vertices: 2 (top - floor) log(top / floor)."""
        if self.floor is None:
            return jnp.asarray(jnp.inf, tree.dtype(x))
        top = 1 - (size(x) - 1) * self.floor
        return jnp.sqrt(2 * (top - self.floor) * jnp.log(top / self.floor)).astype(tree.dtype(x))

    def factor_diameters(self, x: PyTree) -> Scalar:
        """In l1, which is what `factor_norms` are in: D may have no bound."""
        return jnp.asarray(2 * (1 - size(x) * (0.0 if self.floor is None else self.floor)), tree.dtype(x))

    def reach(self, x: PyTree) -> Scalar:
        if self.floor is None:
            return 1.0
        top = 1 - (size(x) - 1) * self.floor
        return jnp.sqrt(jnp.asarray(top**2 + (size(x) - 1) * self.floor**2, tree.dtype(x)))

    def region(self, x: PyTree) -> Region:
        return Region.simplex(x, 0.0 if self.floor is None else self.floor)

    def check(self, x: PyTree) -> None:
        if size(x) < 2:
            raise ValueError(f"EntropySimplex needs a point with at least two entries, got {size(x)}")
        if self.floor is not None and not tree.is_traced(self.floor) and self.floor * size(x) >= 1:
            raise ValueError(f"floor must be below 1/{size(x)} for a point with {size(x)} entries, got {self.floor}")
