"""A domain elsewhere, and a domain of another size: what is known of X serves for X + c and for s X."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ergodrift._core import check, tree
from ergodrift.geometry.base import Geometry
from ergodrift.geometry.region import Inequalities, Linearization, Region
from ergodrift.types import PyTree, Scalar

X = TypeVar("X")


class _Image(Geometry):
    """{c + s z : z in X}, with D(x, y) = s^2 D_X of what x and y are images of, so that norms stay what they are."""

    base: Geometry
    by: PyTree

    def _check_base(self) -> None:
        if not isinstance(self.base, Geometry):
            raise TypeError(f"{type(self).__name__} takes a geometry such as Ball(1.0) first, got {self.base!r}")

    def _inside(self, x: X) -> X:
        """z, of which x is the image."""
        raise NotImplementedError

    def _outside(self, z: X) -> X:
        """The image of z."""
        raise NotImplementedError

    def project(self, x: X) -> X:
        return self._outside(self.base.project(self._inside(x)))

    def norm(self, x: PyTree) -> Scalar:
        return self.base.norm(x)

    def dual_norm(self, x: PyTree) -> Scalar:
        return self.base.dual_norm(x)

    def factor_norms(self, x: PyTree) -> PyTree:
        return self.base.factor_norms(x)

    def factor_dual_norms(self, x: PyTree) -> PyTree:
        return self.base.factor_dual_norms(x)

    def by_coordinates(self) -> Geometry:
        base = self.base.by_coordinates()
        return self if base is self.base else dataclasses.replace(self, base=base)

    def check(self, x: PyTree) -> None:
        self.base.check(x)

    def example(self) -> PyTree | None:
        inside = self.base.example()
        return None if inside is None else jax.tree.map(np.asarray, self._outside(inside))


class Shifted(_Image):
    """{z + by : z in X}: any domain, around another centre.

    Args:
        base: X.
        by: one number for all entries, or a pytree with the structure and the shapes of x.

    >>> import jax.numpy as jnp
    >>> from ergodrift import Ball
    >>> Shifted(Ball(1.0), jnp.array([10.0, 0.0])).project(jnp.zeros(2))
    Array([9., 0.], dtype=float64)
    """

    def __post_init__(self) -> None:
        self._check_base()
        if not tree.is_traced(self.by):
            check.finite("by", jax.tree.map(lambda leaf: np.asarray(leaf, dtype=float), self.by))

    def _offset(self, x: X) -> X:
        if jax.tree.structure(self.by) == jax.tree.structure(x):
            return jax.tree.map(lambda b, leaf: jnp.asarray(b, tree.dtype(leaf)), self.by, x)
        return jax.tree.map(lambda leaf: jnp.asarray(self.by, tree.dtype(leaf)), x)

    def _inside(self, x: X) -> X:
        return tree.subtract(x, self._offset(x))

    def _outside(self, z: X) -> X:
        return tree.add(z, self._offset(z))

    def prox(self, x: X, direction: X, proximity: PyTree) -> X:
        return self._outside(self.base.prox(self._inside(x), direction, proximity))

    def bregman(self, x: X, y: X) -> Scalar:
        return self.base.bregman(self._inside(x), self._inside(y))

    def diameter(self, x: PyTree) -> Scalar:
        return self.base.diameter(x)

    def factor_diameters(self, x: PyTree) -> PyTree:
        return self.base.factor_diameters(x)

    def reach(self, x: PyTree) -> Scalar:
        """By the triangle inequality: attained by a ball, more than need be where X has corners."""
        offset = jax.tree.map(lambda o, leaf: jnp.broadcast_to(o, jnp.shape(leaf)), self._offset(x), x)
        return self.base.reach(x) + jnp.sqrt(tree.squared_norm(offset))

    def region(self, x: PyTree) -> Region:
        inner = self.base.region(x)
        wide = jax.tree.map(lambda o, leaf: jnp.broadcast_to(o, jnp.shape(leaf)), self._offset(x), x)
        return _moved(inner, np.asarray(ravel_pytree(wide)[0], dtype=float), 1.0)

    def check(self, x: PyTree) -> None:
        one = jax.tree.structure(self.by) == jax.tree.structure(0) and np.ndim(self.by) == 0
        if not one and jax.tree.structure(self.by) != jax.tree.structure(x):
            raise ValueError(
                f"Shifted: by has structure {jax.tree.structure(self.by)}, x has {jax.tree.structure(x)}; "
                "pass one number or the same structure"
            )
        shapes = [jax.tree.map(np.shape, part) for part in (self.by, x)]
        pairs = zip(jax.tree.leaves(self.by), jax.tree.leaves(x), strict=False)
        if not one and any(np.ndim(b) and np.shape(b) != np.shape(leaf) for b, leaf in pairs):
            raise ValueError(f"Shifted: by has shapes {shapes[0]}, x has {shapes[1]}")
        super().check(x)


class Scaled(_Image):
    """{by z : z in X}: any domain, `by` > 0 times as large.

    >>> import jax.numpy as jnp
    >>> from ergodrift import EntropySimplex
    >>> budget = Scaled(EntropySimplex(), 100.0)  # 100 euros, shared out
    >>> budget.prox(jnp.array([50.0, 50.0]), jnp.array([0.0, jnp.log(9.0)]), 0.005).round(6)
    Array([90., 10.], dtype=float64)
    """

    by: Scalar

    def __post_init__(self) -> None:
        self._check_base()
        object.__setattr__(self, "by", check.number("by", self.by, above=0))

    def _inside(self, x: X) -> X:
        return jax.tree.map(lambda leaf: leaf / self.by, x)

    def _outside(self, z: X) -> X:
        return tree.scale(z, self.by)

    def prox(self, x: X, direction: X, proximity: PyTree) -> X:
        """direction.x + proximity s^2 D(z, .) is s^2 times (direction / s).z + proximity D(z, .)."""
        return self._outside(self.base.prox(self._inside(x), self._inside(direction), proximity))

    def bregman(self, x: X, y: X) -> Scalar:
        return self.by**2 * self.base.bregman(self._inside(x), self._inside(y))

    def diameter(self, x: PyTree) -> Scalar:
        return self.by * self.base.diameter(x)

    def factor_diameters(self, x: PyTree) -> PyTree:
        return jax.tree.map(lambda across: self.by * across, self.base.factor_diameters(x))

    def reach(self, x: PyTree) -> Scalar:
        return self.by * self.base.reach(x)

    def region(self, x: PyTree) -> Region:
        return _moved(self.base.region(x), 0.0, float(self.by))


def _moved(region: Region, offset: np.ndarray | float, factor: float) -> Region:
    """The image of a region under z -> offset + factor z."""
    moved = region._replace(offset=offset + factor * region.offset, lift=factor * region.lift)
    inner = region.inequalities
    if inner is None:
        return moved

    def rows(x: np.ndarray) -> Linearization:
        values, jac = inner.rows((x - offset) / factor)
        return values, jac / factor

    def curvature(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
        assert inner.curvature is not None
        return inner.curvature((x - offset) / factor, weights) / factor**2

    return moved._replace(inequalities=Inequalities(rows, None if inner.curvature is None else curvature))
