"""Geometries with Phi = ||x||_2^2, so D(x, y) = ||x - y||_2^2 and the prox is a projected gradient step."""

from __future__ import annotations

import functools
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ergodrift._core import check, tree
from ergodrift._core.arrays import listed
from ergodrift.geometry.base import Geometry, size
from ergodrift.geometry.region import Region
from ergodrift.types import Array, PyTree, Scalar

X = TypeVar("X")

NEWTON = 12  # steps: enough for weights of any sizes, and more than most need


class Ball(Geometry):
    """{x : ||x||_2 <= radius}; R is its diameter, 2 radius.

    >>> import jax.numpy as jnp
    >>> Ball(1.0).project(jnp.array([3.0, 4.0]))
    Array([0.6, 0.8], dtype=float64)
    """

    radius: Scalar

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", check.number("radius", self.radius, above=0))

    def project(self, x: X) -> X:
        return tree.scale(x, self.radius / jnp.maximum(jnp.sqrt(tree.squared_norm(x)), self.radius))

    def diameter(self, x: PyTree) -> Scalar:
        return 2 * self.radius

    def reach(self, x: PyTree) -> Scalar:
        return self.radius

    def region(self, x: PyTree) -> Region:
        return Region.ball(x, self.radius)

    def by_coordinates(self) -> BallByCoordinates:
        return BallByCoordinates(self.radius)


class BallByCoordinates(Ball):
    """The same ball where each coordinate has an alpha_t of its own.

    A prox step is then the point of the ball that is nearest to x_j - direction_j / (2 alpha_j) in the norm with the
    weights alpha_j, which for a point outside is not the one that the projection has.
    """

    def prox(self, x: X, direction: X, proximity: PyTree) -> X:
        if jax.tree.structure(proximity) != jax.tree.structure(x):  # one number for all
            return super().prox(x, direction, proximity)
        moved = jax.tree.map(lambda a, b, own: a - b / (2 * own), x, direction, proximity)
        return self._nearest(moved, proximity)

    def _nearest(self, z: X, weights: X) -> X:
        """z_j w_j / (w_j + nu), with the nu >= 0 that brings it to the radius: by Newton's method on 1 / norm, which
        comes from below and never passes it (Conn, Gould and Toint 2000, section 7.3)."""
        largest = functools.reduce(jnp.maximum, [jnp.max(leaf) for leaf in jax.tree.leaves(weights)])
        shares = tree.scale(weights, 1 / largest)

        def at(nu: jax.Array) -> X:
            return jax.tree.map(lambda a, w: a * (w / (w + nu)), z, shares)

        def outside(state: tuple[jax.Array, jax.Array]) -> jax.Array:
            return (state[0] < NEWTON) & (tree.squared_norm(at(state[1])) > jnp.square(self.radius))

        def better(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            y = at(state[1])
            square = tree.squared_norm(y)
            slope = tree.squared_norm(jax.tree.map(lambda a, w: a * jax.lax.rsqrt(w + state[1]), y, shares))
            further = square / slope * (jnp.sqrt(square) / self.radius - 1)
            return state[0] + 1, state[1] + further

        nu = jax.lax.while_loop(outside, better, (jnp.int32(0), jnp.zeros_like(largest)))[1]
        return self.project(at(nu))

    def factor_norms(self, x: X) -> X:
        return jax.tree.map(jnp.abs, x)

    def factor_dual_norms(self, x: X) -> X:
        return jax.tree.map(jnp.abs, x)

    def factor_diameters(self, x: X) -> X:
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, 2 * self.radius), x)


class Box(Geometry):
    """{x : lower <= x <= upper}, entry by entry; bounds are numbers, or pytrees with the structure of x.

    >>> import jax.numpy as jnp
    >>> Box(-1.0, 1.0).project(jnp.array([3.0, -0.5]))
    Array([ 1. , -0.5], dtype=float64)
    """

    lower: PyTree
    upper: PyTree

    def __post_init__(self) -> None:
        if tree.is_traced(self.lower, self.upper):
            return
        for name in ("lower", "upper"):
            bound = listed(name, getattr(self, name))
            object.__setattr__(self, name, bound)
            numbers = jax.tree.map(lambda leaf: np.asarray(leaf, dtype=float), bound)
            check.finite(name, numbers, "a domain is bounded: write a number that x does not go beyond")
        lower, upper = self.lower, self.upper
        if _is_number(lower):
            lower = jax.tree.map(lambda _: lower, upper)
        elif _is_number(upper):
            upper = jax.tree.map(lambda _: upper, lower)
        if jax.tree.structure(lower) != jax.tree.structure(upper):
            raise ValueError(f"lower and upper must have the same structure, got {self.lower!r} and {self.upper!r}")
        for low, high in zip(jax.tree.leaves(lower), jax.tree.leaves(upper), strict=True):
            if np.ndim(low) and np.ndim(high) and np.shape(low) != np.shape(high):
                raise ValueError(f"lower and upper differ in shape: {np.shape(low)} and {np.shape(high)}")
            if (np.asarray(low) > np.asarray(high)).any():
                raise ValueError(f"lower must not exceed upper anywhere, got lower={low!r}, upper={high!r}")
        for name in ("lower", "upper"):
            object.__setattr__(self, name, jax.tree.map(_lasting, getattr(self, name)))

    def bounds(self, x: X) -> tuple[X, X]:
        """Lower and upper bounds with the structure of x."""

        def like(bound: PyTree) -> X:
            if jax.tree.structure(bound) == jax.tree.structure(x):
                return jax.tree.map(lambda b, leaf: jnp.asarray(b, tree.dtype(leaf)), bound, x)
            return jax.tree.map(lambda leaf: jnp.asarray(bound, tree.dtype(leaf)), x)

        return like(self.lower), like(self.upper)

    def project(self, x: X) -> X:
        lower, upper = self.bounds(x)
        return jax.tree.map(lambda leaf, low, high: jnp.minimum(jnp.maximum(leaf, low), high), x, lower, upper)

    def prox(self, x: X, direction: X, proximity: PyTree) -> X:
        if jax.tree.structure(proximity) != jax.tree.structure(x):  # one number for all
            return super().prox(x, direction, proximity)
        return self.project(jax.tree.map(lambda a, b, own: a - b / (2 * own), x, direction, proximity))

    def diameter(self, x: PyTree) -> Scalar:
        return jnp.sqrt(tree.squared_norm(self.factor_diameters(x)))

    # A box is a product of intervals.

    def factor_norms(self, x: X) -> X:
        return jax.tree.map(jnp.abs, x)

    def factor_dual_norms(self, x: X) -> X:
        return jax.tree.map(jnp.abs, x)

    def factor_diameters(self, x: X) -> X:
        return jax.tree.map(lambda leaf, low, high: jnp.broadcast_to(high - low, leaf.shape), x, *self.bounds(x))

    def reach(self, x: PyTree) -> Scalar:
        def furthest(leaf: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
            return jnp.broadcast_to(jnp.maximum(jnp.abs(low), jnp.abs(high)), leaf.shape)

        return jnp.sqrt(tree.squared_norm(jax.tree.map(furthest, x, *self.bounds(x))))

    def region(self, x: PyTree) -> Region:
        return Region.box(x, *self.bounds(x))

    def example(self) -> PyTree | None:
        if not np.ndim(jax.tree.leaves(self.lower)[0]):
            return None
        return jax.tree.map(lambda low, high: (np.asarray(low) + np.asarray(high)) / 2.0, self.lower, self.upper)

    def check(self, x: PyTree) -> None:
        for name, bound in [("lower", self.lower), ("upper", self.upper)]:
            if not _is_number(bound) and jax.tree.structure(bound) != jax.tree.structure(x):
                raise ValueError(
                    f"Box: {name} has structure {jax.tree.structure(bound)}, x has {jax.tree.structure(x)}; "
                    "pass one number or the same structure"
                )
            if not _is_number(bound):
                shapes = jax.tree.map(lambda b, leaf: np.ndim(b) == 0 or np.shape(b) == np.shape(leaf), bound, x)
                if not all(jax.tree.leaves(shapes)):
                    raise ValueError(
                        f"Box: {name} has shapes {jax.tree.map(np.shape, bound)}, x has {jax.tree.map(np.shape, x)}; "
                        "they must agree (of a solution, which has seeds in front, take solution[0])"
                    )


def _is_number(bound: PyTree) -> bool:
    return jax.tree.structure(bound) == jax.tree.structure(0) and np.ndim(bound) == 0


def _lasting(bound: PyTree) -> PyTree:
    """A NumPy array as a copy that nobody can change: it need then be sent to the device once only."""
    if isinstance(bound, np.ndarray):
        bound = bound.copy()
        bound.flags.writeable = False
    return bound


def project_simplex(x: Array, mass: Scalar) -> jax.Array:
    """The nearest point of {y >= 0, sum y = mass} to a vector (Held, Wolfe and Crowder 1974), by sorting."""
    x = x - jnp.max(x)  # changes nothing but rounding: the sums below would swallow the mass of a far point
    ordered = jnp.sort(x, descending=True)
    excess = jnp.cumsum(ordered) - mass
    ranks = jnp.arange(1, x.size + 1, dtype=x.dtype)
    kept = jnp.sum(ordered * ranks > excess)
    return jnp.maximum(x - excess[kept - 1] / kept.astype(x.dtype), 0)


class Simplex(Geometry):
    """The probability simplex {x >= 0, sum x = 1} with the Euclidean prox; R = sqrt 2.

    >>> import jax.numpy as jnp
    >>> Simplex().project(jnp.array([1.0, 0.5, -1.0]))
    Array([0.75, 0.25, 0.  ], dtype=float64)
    """

    def project(self, x: X) -> X:
        flat, unravel = ravel_pytree(x)
        return unravel(project_simplex(flat, 1))

    def diameter(self, x: PyTree) -> Scalar:
        return jnp.sqrt(jnp.asarray(2, tree.dtype(x)))

    def reach(self, x: PyTree) -> Scalar:
        return 1.0

    def region(self, x: PyTree) -> Region:
        return Region.simplex(x)

    def check(self, x: PyTree) -> None:
        if size(x) < 2:
            raise ValueError(f"Simplex needs a point with at least two entries, got {size(x)}")


class L1Ball(Geometry):
    """{x : ||x||_1 <= radius}, with the Euclidean prox; R = 2 radius.

    >>> import jax.numpy as jnp
    >>> L1Ball(1.0).project(jnp.array([2.0, -1.5]))
    Array([ 0.75, -0.25], dtype=float64)
    """

    radius: Scalar

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", check.number("radius", self.radius, above=0))

    def project(self, x: X) -> X:
        flat, unravel = ravel_pytree(x)
        sizes = jnp.abs(flat)
        edge = jnp.sign(flat) * project_simplex(sizes, self.radius)
        return unravel(jnp.where(jnp.sum(sizes) <= self.radius, flat, edge))

    def diameter(self, x: PyTree) -> Scalar:
        return 2 * self.radius

    def reach(self, x: PyTree) -> Scalar:
        return self.radius

    def region(self, x: PyTree) -> Region:
        return Region.l1_ball(x, self.radius)
