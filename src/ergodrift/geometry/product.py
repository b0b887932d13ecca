"""Products: each part of the point lives in a domain of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TypeVar

import jax
import jax.numpy as jnp

from ergodrift.geometry.base import Geometry
from ergodrift.geometry.region import Region
from ergodrift.types import PyTree, Scalar

X = TypeVar("X")


def _is_geometry(node: object) -> bool:
    return isinstance(node, Geometry)


class Product(Geometry):
    """X = X_1 x X_2 x ..., with D = sum D_i, squared norms added, and R^2 = sum R_i^2.

    Args:
        parts: a pytree of geometries that is a prefix of x, such as `{"w": Ball(5.0), "b": Box(-1.0, 1.0)}`. Several
            geometries in a row stand for a tuple: `Product(Ball(5.0), Box(-1.0, 1.0))` holds points `(w, b)`.

    >>> import jax.numpy as jnp
    >>> from ergodrift import Ball, Box
    >>> domain = Product({"w": Ball(1.0), "b": Box(-1.0, 1.0)})
    >>> domain.project({"w": jnp.array([3.0, 4.0]), "b": jnp.array(2.0)})
    {'b': Array(1., dtype=float64), 'w': Array([0.6, 0.8], dtype=float64)}
    """

    parts: PyTree

    def __init__(self, *parts: PyTree) -> None:
        whole = parts[0] if len(parts) == 1 and not _is_geometry(parts[0]) else parts
        leaves = jax.tree.leaves(whole, is_leaf=_is_geometry)
        if not leaves or not all(map(_is_geometry, leaves)):
            raise TypeError(f"Product takes geometries, or one pytree of geometries, got {parts!r}")
        object.__setattr__(self, "parts", whole)

    def _split(self, *points: PyTree) -> tuple[PyTree, Iterator[tuple[PyTree, ...]]]:
        """The structure of the parts, and for each of them its geometry and its pieces of the points."""
        geometries, structure = jax.tree.flatten(self.parts, is_leaf=_is_geometry)
        return structure, zip(geometries, *map(structure.flatten_up_to, points), strict=True)

    def prox(self, x: X, direction: X, proximity: PyTree) -> X:
        structure, parts = self._split(x, direction)
        each = proximity if isinstance(proximity, list) else itertools.repeat(proximity)
        if isinstance(proximity, list) and len(proximity) != structure.num_leaves:
            raise ValueError(
                f"Product: one proximity for each of its {structure.num_leaves} parts, got {len(proximity)}"
            )
        return structure.unflatten([part.prox(a, b, own) for (part, a, b), own in zip(parts, each, strict=False)])

    def project(self, x: X) -> X:
        structure, parts = self._split(x)
        return structure.unflatten([part.project(a) for part, a in parts])

    def bregman(self, x: X, y: X) -> Scalar:
        return sum(part.bregman(a, b) for part, a, b in self._split(x, y)[1])

    def norm(self, x: PyTree) -> Scalar:
        return jnp.sqrt(sum(part.norm(a) ** 2 for part, a in self._split(x)[1]))

    def dual_norm(self, x: PyTree) -> Scalar:
        return jnp.sqrt(sum(part.dual_norm(a) ** 2 for part, a in self._split(x)[1]))

    def diameter(self, x: PyTree) -> Scalar:
        return jnp.sqrt(sum(jnp.asarray(part.diameter(a)) ** 2 for part, a in self._split(x)[1]))

    def factor_norms(self, x: PyTree) -> list[PyTree]:
        return [part.factor_norms(a) for part, a in self._split(x)[1]]

    def factor_dual_norms(self, x: PyTree) -> list[PyTree]:
        return [part.factor_dual_norms(a) for part, a in self._split(x)[1]]

    def factor_diameters(self, x: PyTree) -> list[PyTree]:
        return [part.factor_diameters(a) for part, a in self._split(x)[1]]

    def by_coordinates(self) -> Geometry:
        parts = jax.tree.map(lambda part: part.by_coordinates(), self.parts, is_leaf=_is_geometry)
        pairs = (jax.tree.leaves(both, is_leaf=_is_geometry) for both in (self.parts, parts))
        return self if all(part is same for part, same in zip(*pairs, strict=True)) else Product(parts)

    def reach(self, x: PyTree) -> Scalar:
        return jnp.sqrt(sum(jnp.asarray(part.reach(a)) ** 2 for part, a in self._split(x)[1]))

    def region(self, x: PyTree) -> Region:
        return Region.product([part.region(a) for part, a in self._split(x)[1]])

    def check(self, x: PyTree) -> None:
        try:
            _, parts = self._split(x)
        except ValueError as error:
            raise ValueError(f"Product: x does not have one part for each domain ({error})") from None
        for part, a in parts:
            part.check(a)
