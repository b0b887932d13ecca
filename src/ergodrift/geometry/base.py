"""What a geometry is: a compact convex X, a mirror map Phi on it, and the constants the theory needs."""

from __future__ import annotations

import abc
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from ergodrift._core import tree

X = TypeVar("X")


class Geometry(abc.ABC):
    """A compact convex domain X and a mirror map Phi, 2-strongly convex in `norm` (Kim and Lee, section 2.4).

    The Bregman divergence D(x, y) = Phi(x) - Phi(y) - dPhi(y).(x - y) then satisfies ||x - y||^2 <= D(x, y). Points
    may be any pytree; a geometry other than `Product` treats all its leaves as one long vector. Everything here is a
    pure function and may be traced.
    """

    @abc.abstractmethod
    def prox(self, x: X, direction: X, proximity: Any) -> X:
        """argmin over y in X of direction.y + proximity D(y, x), in closed form."""

    @abc.abstractmethod
    def project(self, x: X) -> X:
        """The point of X nearest to `x` in the Euclidean norm."""

    @abc.abstractmethod
    def bregman(self, x: X, y: X) -> Any:
        """D(x, y)."""

    @abc.abstractmethod
    def norm(self, x: Any) -> Any:
        """The norm in which Phi is 2-strongly convex."""

    @abc.abstractmethod
    def dual_norm(self, x: Any) -> Any:
        """The norm of gradients: the largest x.y over ||y|| <= 1."""

    @abc.abstractmethod
    def diameter(self, x: Any) -> Any:
        """The paper's R: D(y, z) <= R^2 for all y, z in X. `x` gives the shape alone; infinite where there is none."""

    @abc.abstractmethod
    def reach(self, x: Any) -> Any:
        """r: the largest Euclidean norm in X, the radius that PD and PD2 use. `x` gives the shape alone."""

    @abc.abstractmethod
    def check(self, x: Any) -> None:
        """Raise ValueError where `x` has a structure or shape that this domain cannot have."""

    def contains(self, x: Any) -> Any:
        """Whether x lies in X, up to the square root of the rounding unit."""
        slack = jnp.sqrt(tree.squared_norm(tree.subtract(x, self.project(x))))
        return slack < jnp.sqrt(jnp.finfo(tree.dtype(x)).eps) * (1 + jnp.sqrt(tree.squared_norm(x)))


def size(x: Any) -> int:
    """The number of entries in all leaves."""
    return sum(jnp.size(leaf) for leaf in jax.tree.leaves(x))
