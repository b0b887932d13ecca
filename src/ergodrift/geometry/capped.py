"""The capped simplex: a total shared out so that nobody gets more than a cap."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ergodrift._core import check, tree
from ergodrift.geometry.base import Geometry, size
from ergodrift.geometry.region import Region
from ergodrift.types import PyTree, Scalar

X = TypeVar("X")


class CappedSimplex(Geometry):
    """{x : 0 <= x_i <= cap, sum x = total}, with the Euclidean prox.

    Portfolios with a largest weight; the convex hull of all choices of k among d, with cap 1 and total k (Warmuth and
    Kuzmin 2008).

    >>> import jax.numpy as jnp
    >>> CappedSimplex(0.5).project(jnp.array([3.0, 0.2, 0.1, -1.0])).round(6)
    Array([0.5, 0.3, 0.2, 0. ], dtype=float64)
    """

    cap: Scalar
    total: Scalar = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "cap", check.number("cap", self.cap, above=0))
        object.__setattr__(self, "total", check.number("total", self.total, above=0))

    def project(self, x: X) -> X:
        flat, unravel = ravel_pytree(x)
        return unravel(project_capped(flat, self.cap, self.total))

    def diameter(self, x: PyTree) -> Scalar:
        """Two vertices with as little in common as can be; x and cap - x are equally far apart, so take the smaller."""
        kind = tree.dtype(x)
        mass = jnp.minimum(jnp.asarray(self.total, kind), size(x) * self.cap - self.total)
        full, rest = self._vertex(mass)
        apart = jnp.where(2 * full + 2 <= size(x), rest**2, 0)  # else both have their rest in the same place
        return jnp.sqrt(2 * (full * self.cap**2 + apart)).astype(kind)

    def reach(self, x: PyTree) -> Scalar:
        full, rest = self._vertex(jnp.asarray(self.total, tree.dtype(x)))
        return jnp.sqrt(full * self.cap**2 + rest**2)

    def _vertex(self, mass: jax.Array) -> tuple[jax.Array, jax.Array]:
        """How many entries of a vertex are full, and what is left for one more."""
        full = jnp.floor(mass / self.cap)
        return full, mass - full * self.cap

    def region(self, x: PyTree) -> Region:
        cap, total = float(self.cap), float(self.total)
        simplex = Region.simplex(x, where=lambda y: ravel_pytree(y)[0] - cap)
        return simplex._replace(lift=total * simplex.lift)

    def check(self, x: PyTree) -> None:
        if not tree.is_traced(self.cap, self.total) and self.cap * size(x) < self.total * (1 - 1e-6):
            raise ValueError(
                f"CappedSimplex: {size(x)} entries of at most cap={self.cap} cannot make a total of {self.total}; "
                f"a cap of {self.total / size(x):.3g} or more is needed"
            )


def project_capped(x: jax.Array, cap: Scalar, total: Scalar) -> jax.Array:
    """The nearest point of {0 <= y <= cap, sum y = total}: y = clip(x - t, 0, cap), with t found by sorting.

    sum clip(x - t) falls with t, linearly between the places where an entry leaves the cap (x_i - cap) or gets to 0
    (x_i). Entries further apart than the cap never share a stretch: gaps are cut to it, so that numbers stay of the
    size of the cap however far x lies.
    """
    order = jnp.argsort(-x)
    gaps = jnp.minimum(-jnp.diff(x[order]), cap)
    near = jnp.zeros_like(x).at[order[1:]].set(-jnp.cumsum(gaps))
    count = x.size
    places = jnp.concatenate([near - cap, near])
    ahead = jnp.argsort(places)
    free = jnp.cumsum(jnp.where(ahead < count, 1, -1).astype(x.dtype))  # entries between 0 and cap, beyond each place
    places = places[ahead]
    left = count * cap - jnp.cumsum(free[:-1] * jnp.diff(places))  # the sum at each place but the first
    sums = jnp.concatenate([jnp.asarray(count * cap, x.dtype)[None], left])
    at = jnp.maximum(jnp.sum(sums >= total, dtype=np.int32) - 1, 0)
    level = places[at] + (sums[at] - total) / jnp.maximum(free[at], 1)
    inside = jnp.clip(near - level, 0, cap)
    spare = (total - jnp.sum(inside)) / jnp.maximum(jnp.sum((inside > 0) & (inside < cap), dtype=x.dtype), 1)
    return jnp.where((inside > 0) & (inside < cap), jnp.clip(inside + spare, 0, cap), inside)  # once more, for rounding
