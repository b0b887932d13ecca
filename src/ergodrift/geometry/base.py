"""What a geometry is: a compact convex X, a mirror map Phi on it, and the constants the theory needs."""

from __future__ import annotations

import contextlib
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ergodrift._core import tree
from ergodrift.geometry.gauge import by_projection
from ergodrift.geometry.region import Region
from ergodrift.types import PyTree, Scalar

X = TypeVar("X")

FAR = 1e3  # sizes of X from which it is looked at to measure it
LOOSE = 1.01  # what that view may miss


class Geometry(tree.Module):
    """A compact convex domain X and a mirror map Phi, 2-strongly convex in `norm` (Kim and Lee, section 2.4).

    The Bregman divergence D(x, y) = Phi(x) - Phi(y) - dPhi(y).(x - y) then satisfies ||x - y||^2 <= D(x, y). Points
    may be any pytree; a geometry other than `Product` treats all its leaves as one long vector. Everything here but
    `region`, `check` and `example` is a pure function and may be traced.

    A subclass is a frozen dataclass and a pytree: its fields are numbers that may be swept, those named in
    `class Mine(Geometry, static=("kind",))` are not. `project`, or the Euclidean `prox`, is all that it must have: as
    it stands here a geometry has Phi = ||x||_2^2, so that D(x, y) = ||x - y||_2^2. One with a mirror map of its own has
    `prox`, `bregman`, `norm`, `dual_norm` and `diameter` as well. A `diameter` that is known is tighter than the one
    found here, and a `region` lets the solvers use Newton's method up to the boundary.
    """

    def prox(self, x: X, direction: X, proximity: PyTree) -> X:
        """argmin over y in X of direction.y + proximity D(y, x), in closed form.

        In the Euclidean case Proj(x - direction / (2 proximity)); the 2 is the strong convexity of Phi. Where X is a
        product, `proximity` may have one number for each factor, as `factor_norms` has.
        """
        return self.project(jax.tree.map(lambda a, b: a - b / (2 * proximity), x, direction))

    def project(self, x: X) -> X:
        """The point of X nearest to `x` in the Euclidean norm: in the Euclidean case, the prox of no direction."""
        kind = type(self)
        if kind.prox is Geometry.prox or kind.bregman is not Geometry.bregman:
            raise NotImplementedError(
                f"{kind.__name__} needs a method project(x), the point of the domain nearest to x"
            )
        return self.prox(x, jax.tree.map(jnp.zeros_like, x), jnp.ones((), tree.dtype(x)))

    def bregman(self, x: X, y: X) -> Scalar:
        """D(x, y)."""
        return tree.squared_norm(tree.subtract(x, y))

    def norm(self, x: PyTree) -> Scalar:
        """The norm in which Phi is 2-strongly convex."""
        return jnp.sqrt(tree.squared_norm(x))

    def dual_norm(self, x: PyTree) -> Scalar:
        """The norm of gradients: the largest x.y over ||y|| <= 1."""
        return jnp.sqrt(tree.squared_norm(x))

    def diameter(self, x: PyTree) -> Scalar:
        """The paper's R: D(y, z) <= R^2 for all y, z in X. `x` gives the shape alone; infinite where there is none.

        Unless a subclass knows it: the diagonal of a box around X, at most sqrt(d) times the smallest R there is.
        """
        if type(self).bregman is not Geometry.bregman:
            return jnp.asarray(jnp.inf, tree.dtype(x))
        return _diagonal(self, x)

    def factor_norms(self, x: PyTree) -> PyTree:
        """The norm of each part of x that can step on its own, where X is a product; else that of x."""
        return self.norm(x)

    def factor_dual_norms(self, x: PyTree) -> PyTree:
        """The dual norms of the same parts."""
        return self.dual_norm(x)

    def factor_diameters(self, x: PyTree) -> PyTree:
        """The diameters of the factors of X, in their norms where D has no bound."""
        return self.diameter(x)

    def by_coordinates(self) -> Geometry:
        """The same domain where each coordinate can step on its own; itself, where it has no prox for that."""
        return self

    def reach(self, x: PyTree) -> Scalar:
        """r: the largest Euclidean norm in X, or more, the radius that PD and PD2 use. `x` gives the shape alone."""
        nearest = self.project(jax.tree.map(jnp.zeros_like, x))
        across = self.diameter(x) if type(self).bregman is Geometry.bregman else _diagonal(self, x)
        return jnp.sqrt(tree.squared_norm(nearest)) + across

    def region(self, x: PyTree) -> Region:
        """X as solvers see it, for points shaped like `x`; from the projection alone unless a subclass knows better."""
        flat, unravel = ravel_pytree(x)
        project = jax.jit(lambda z: ravel_pytree(self.project(unravel(z)))[0])
        return by_projection(project, flat.size, float(self.reach(x)))

    def check(self, x: PyTree) -> None:
        """Raise ValueError where `x` has a structure or shape that this domain cannot have."""
        return

    def example(self) -> PyTree | None:
        """Some point of X where the domain itself says what shape points have; None where it does not."""
        return None

    def contains(self, x: PyTree) -> Scalar:
        """Whether x lies in X, up to the square root of the rounding unit."""
        slack = jnp.sqrt(tree.squared_norm(tree.subtract(x, self.project(x))))
        return slack < jnp.sqrt(jnp.finfo(tree.dtype(x)).eps) * (1 + jnp.sqrt(tree.squared_norm(x)))


def check_shape(geometry: Geometry, x: PyTree) -> None:
    """`geometry.check(x)`; where that looks at numbers of the geometry that are being traced, nothing can be said."""
    with contextlib.suppress(jax.errors.ConcretizationTypeError):
        geometry.check(x)


def size(x: PyTree) -> int:
    """The number of entries in all leaves."""
    return sum(jnp.size(leaf) for leaf in jax.tree.leaves(x))


@jax.jit  # whoever asks again, for other sizes too, finds it compiled
def _diagonal(geometry: Geometry, x: PyTree) -> jax.Array:
    """The Euclidean length of the diagonal of a box around X.

    For p nearest to c + t u, c in X, no w in X has u.w > u.p + |p - c| |w - p| / t: from so far that the last term is
    a thousandth, projections show how far X goes. How far is far enough is found by looking thrice.
    """
    flat, unravel = ravel_pytree(x)
    kind, count = flat.dtype, flat.size

    def nearest(z: jax.Array) -> jax.Array:
        return ravel_pytree(geometry.project(unravel(z)))[0]

    centre = nearest(jnp.zeros(count, kind))

    def seen_from(t: Scalar) -> jax.Array:
        def width(i: jax.Array) -> jax.Array:
            return nearest(centre.at[i].add(t))[i] - nearest(centre.at[i].add(-t))[i]

        return jnp.linalg.norm(jax.lax.map(width, jnp.arange(count)))

    before = length = 1 + jnp.linalg.norm(centre)
    for _ in range(3):
        before, length = length, seen_from(FAR * length)
    return jnp.where(length < FAR / 2 * before, LOOSE * length, jnp.inf)  # it goes as far as one looks
