"""Matrices: the nuclear ball with the Euclidean prox, and density matrices with von Neumann's entropy."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import check
from ergodrift.geometry.base import Geometry
from ergodrift.geometry.entropy import EntropySimplex, softmax_above
from ergodrift.geometry.euclidean import project_simplex
from ergodrift.geometry.region import Inequalities, Linearization, Region
from ergodrift.types import PyTree, Scalar

X = TypeVar("X")


class NuclearBall(Geometry):
    """{X in R^{m x n} : sum of singular values <= radius}, with the Euclidean prox; R = 2 radius.

    The convex hull of rank-one matrices of that Frobenius norm: where the answer is to have a low rank (Fazel, Hindi
    and Boyd 2001). A projection is one singular value decomposition.

    >>> import jax.numpy as jnp
    >>> NuclearBall(2.0).project(jnp.diag(jnp.array([3.0, 2.0]))).round(6)
    Array([[1.5, 0. ],
           [0. , 0.5]], dtype=float64)
    """

    radius: Scalar

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", check.number("radius", self.radius, above=0))

    def project(self, x: X) -> X:
        (matrix,), structure = jax.tree.flatten(x)
        u, sizes, v = jnp.linalg.svd(jnp.asarray(matrix), full_matrices=False)
        inside = (u * project_simplex(sizes, self.radius)[None]) @ v
        return structure.unflatten([jnp.where(jnp.sum(sizes) <= self.radius, matrix, inside)])

    def diameter(self, x: PyTree) -> Scalar:
        return 2 * self.radius

    def reach(self, x: PyTree) -> Scalar:
        return self.radius

    def region(self, x: PyTree) -> Region:
        """A Frobenius ball, and the nuclear norm in it: at X = U S V, U V is a subgradient."""
        shape, radius = np.shape(jax.tree.leaves(x)[0]), float(self.radius)

        def rows(flat: np.ndarray) -> Linearization:
            u, sizes, v = np.linalg.svd(flat.reshape(shape), full_matrices=False)
            return np.array([sizes.sum() - radius]), (u @ v).reshape(1, -1)

        return Region.ball(x, radius)._replace(inequalities=Inequalities(rows))

    def check(self, x: PyTree) -> None:
        _check_matrix("NuclearBall", x)


class Spectrahedron(Geometry):
    """{X symmetric, eigenvalues >= floor, trace X = 1} with Phi = 2 tr X log X: von Neumann's entropy.

    What `EntropySimplex` is for laws, for density and covariance matrices of unit trace. D is twice the quantum
    relative entropy, the norm the trace norm, by Pinsker's inequality (Hiai, Ohya and Tsukada 1981), the dual norm the
    spectral norm. The prox is in closed form: exp(log X - direction / (2 proximity)) over its trace (Tsuda, Rätsch and
    Warmuth 2005), with eigenvalues below the floor lifted onto it. With floor = 0 (the default) D is unbounded. Of a
    direction the symmetric part counts. Eigenvalues are known to rounding of the largest, so none below that is kept.

    >>> import jax.numpy as jnp
    >>> Spectrahedron().prox(jnp.eye(2) / 2, jnp.diag(jnp.array([0.0, jnp.log(9.0)])), 0.5).round(6)
    Array([[0.9, 0. ],
           [0. , 0.1]], dtype=float64)
    """

    floor: Scalar | None = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "floor", EntropySimplex(self.floor).floor)

    @property
    def _eigenvalues(self) -> EntropySimplex:
        """The domain of the eigenvalues."""
        return EntropySimplex(0.0 if self.floor is None else self.floor)

    def prox(self, x: X, direction: X, proximity: Scalar) -> X:
        (matrix,), structure = jax.tree.flatten(x)
        slope = _symmetric(direction)
        exponent = _logarithm(_symmetric(matrix)) - slope / (2 * proximity)
        logits, axes = jnp.linalg.eigh(exponent)
        return structure.unflatten([_assembled(softmax_above(logits, self.floor), axes)])

    def project(self, x: X) -> X:
        (matrix,), structure = jax.tree.flatten(x)
        values, axes = jnp.linalg.eigh(_symmetric(matrix))
        return structure.unflatten([_assembled(self._eigenvalues.project(values), axes)])

    def bregman(self, x: X, y: X) -> Scalar:
        """2 tr X (log X - log Y) - 2 tr (X - Y)."""
        first, second = _symmetric(x), _symmetric(y)
        values = jnp.linalg.eigvalsh(first)
        entropy = jnp.sum(jax.scipy.special.xlogy(jnp.maximum(values, 0), jnp.maximum(values, _least(values))))
        return 2 * (entropy - jnp.sum(first * _logarithm(second)) - jnp.trace(first) + jnp.trace(second))

    def norm(self, x: PyTree) -> Scalar:
        return jnp.sum(jnp.abs(jnp.linalg.eigvalsh(_symmetric(x))))

    def dual_norm(self, x: PyTree) -> Scalar:
        return jnp.max(jnp.abs(jnp.linalg.eigvalsh(_symmetric(x))))

    # Two pure states without overlap are as far apart as two vertices of the simplex.

    def diameter(self, x: PyTree) -> Scalar:
        return self._eigenvalues.diameter(_diagonal(x))

    def factor_diameters(self, x: PyTree) -> Scalar:
        return self._eigenvalues.factor_diameters(_diagonal(x))

    def reach(self, x: PyTree) -> Scalar:
        return self._eigenvalues.reach(_diagonal(x))

    def region(self, x: PyTree) -> Region:
        """z is the diagonal, on the simplex, and twice what stands beside it; the least eigenvalue is a constraint."""
        (matrix,) = jax.tree.leaves(x)
        count, floor = len(matrix), 0.0 if self.floor is None else float(self.floor)
        row, column = np.triu_indices(count, 1)
        beside = len(row)
        lift = np.zeros((count, count, count + beside))
        lift[np.arange(count), np.arange(count), np.arange(count)] = 1.0
        lift[row, column, count + np.arange(beside)] = lift[column, row, count + np.arange(beside)] = 0.5

        def rows(flat: np.ndarray) -> Linearization:
            values, axes = np.linalg.eigh(flat.reshape(count, count))
            return np.array([floor - values[0]]), -np.outer(axes[:, 0], axes[:, 0]).reshape(1, -1)

        low = np.concatenate([np.full(count, floor), -np.ones(beside)])
        high = np.concatenate([np.full(count, np.inf), np.ones(beside)])
        trace = (np.arange(count + beside) < count)[None].astype(float)
        return Region(np.zeros(count**2), lift.reshape(count**2, -1), low, high, [], [], trace, Inequalities(rows))

    def check(self, x: PyTree) -> None:
        shape = _check_matrix("Spectrahedron", x)
        if shape[0] != shape[1] or shape[0] < 2:
            raise ValueError(f"Spectrahedron needs a square matrix of at least 2 rows, got shape {shape}")
        self._eigenvalues.check(_diagonal(x))


def _check_matrix(name: str, x: PyTree) -> tuple[int, ...]:
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(x)]
    if len(shapes) != 1 or len(shapes[0]) != 2:
        raise ValueError(f"{name} needs a point that is one matrix, got shapes {shapes}; put several into a Product")
    return shapes[0]


def _symmetric(x: PyTree) -> jax.Array:
    matrix = ravel_matrix(x)
    return (matrix + matrix.T) / 2


def ravel_matrix(x: PyTree) -> jax.Array:
    """The one matrix that x holds."""
    (matrix,) = jax.tree.leaves(x)
    return jnp.asarray(matrix)


def _diagonal(x: PyTree) -> jax.Array:
    return jnp.diagonal(ravel_matrix(x))


def _least(values: jax.Array) -> jax.Array:
    """Below this, an eigenvalue is rounding."""
    return jnp.finfo(values.dtype).eps * jnp.max(jnp.abs(values))


def _logarithm(matrix: jax.Array) -> jax.Array:
    values, axes = jnp.linalg.eigh(matrix)
    return _assembled(jnp.log(jnp.maximum(values, _least(values))), axes)


def _assembled(values: jax.Array, axes: jax.Array) -> jax.Array:
    matrix = (axes * values[None]) @ axes.T
    return (matrix + matrix.T) / 2
