"""Polytopes given by inequalities, with a projection by a dual active-set method that is compiled."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.flatten_util import ravel_pytree

from ergodrift._core import check, tree
from ergodrift.geometry.base import Geometry, size
from ergodrift.geometry.region import Inequalities, Region
from ergodrift.types import Array, PyTree, Scalar

X = TypeVar("X")

FLAT = 1e-9  # slack, in units of the polytope's width, below which an inequality holds with equality everywhere
ROUNDINGS = 16  # of the numbers that make up a slack: so little counts as none
DEPENDENT = 100  # roundings below which a normal adds nothing to those that are active


class Polytope(Geometry):
    """{x : A x <= b}, with the Euclidean prox; points are vectors, or pytrees read as one long vector.

    A projection is a quadratic program, solved to rounding by the dual method of Goldfarb and Idnani (1983): one
    inequality after the other becomes active, about as many steps as are active in the end. For some dozens of
    dimensions and inequalities; it is compiled with the rest of a run. Equalities are pairs of inequalities.

    Args:
        A: (m, d).
        b: (m,).

    Raises:
        ValueError: no point, or points without bound.

    >>> import jax.numpy as jnp
    >>> triangle = Polytope([[-1.0, 0.0], [0.0, -1.0], [1.0, 2.0]], [0.0, 0.0, 2.0])
    >>> triangle.project(jnp.array([2.0, 2.0])).round(6)
    Array([1.2, 0.4], dtype=float64)
    """

    A: Array
    b: Array
    lower: Array | None
    upper: Array | None

    def __init__(self, A: PyTree, b: PyTree) -> None:
        found: tuple[np.ndarray | None, np.ndarray | None] = None, None
        if not tree.is_traced(A, b):
            A, b = np.array(A, dtype=float), np.array(b, dtype=float)
            check.finite("A", A)
            check.finite("b", b)
            if A.ndim != 2 or b.shape != A.shape[:1]:
                raise ValueError(f"A must have shape (m, d) and b shape (m,), got {A.shape} and {b.shape}")
            if not A.any(axis=1).all():
                raise ValueError(f"row {int(np.argmin(A.any(axis=1)))} of A is zero: it says nothing about x; drop it")
            found = _extent(A, b, np.eye(A.shape[1]))
        for name, value in zip(("A", "b", "lower", "upper"), (A, b, *found), strict=True):
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
            object.__setattr__(self, name, value)

    def project(self, x: X) -> X:
        flat, unravel = ravel_pytree(x)
        A, b = jnp.asarray(self.A, flat.dtype), jnp.asarray(self.b, flat.dtype)
        lengths = jnp.linalg.norm(A, axis=1)
        return unravel(project_polytope(flat, A / lengths[:, None], b / lengths))

    def diameter(self, x: PyTree) -> Scalar:
        """The diagonal of the smallest box around X: at most sqrt(d) times what it could be."""
        if self.lower is None or self.upper is None:
            return super().diameter(x)
        return jnp.linalg.norm(jnp.asarray(self.upper, tree.dtype(x)) - jnp.asarray(self.lower, tree.dtype(x)))

    def reach(self, x: PyTree) -> Scalar:
        """The furthest corner of that box."""
        if self.lower is None or self.upper is None:
            return super().reach(x)
        low, high = jnp.asarray(self.lower, tree.dtype(x)), jnp.asarray(self.upper, tree.dtype(x))
        return jnp.linalg.norm(jnp.maximum(jnp.abs(low), jnp.abs(high)))

    def region(self, x: PyTree) -> Region:
        """A box around X in the smallest affine space that holds it, and the inequalities that are none of equality."""
        A, b = np.asarray(self.A, dtype=float), np.asarray(self.b, dtype=float)
        least = np.array([_lowest(A, b, row)[1] for row in A])
        width = float(np.linalg.norm(np.subtract(*_extent(A, b, np.eye(A.shape[1])))))
        flat = b - least <= FLAT * np.linalg.norm(A, axis=1) * max(width, np.finfo(float).tiny)
        hull = scipy.linalg.null_space(A[flat]) if flat.any() else np.eye(A.shape[1])
        low, high = _extent(A, b, hull)
        inside = np.mean([_lowest(A, b, sign * row)[0] for row in hull.T for sign in (-1, 1)], axis=0)
        middle, half = (low + high) / 2, (high - low) / 2
        rest = Inequalities(
            lambda y: (A[~flat] @ y - b[~flat], A[~flat]), lambda y, weights: np.zeros((len(y), len(y)))
        )
        count = hull.shape[1]
        return Region(
            inside + hull @ (middle - hull.T @ inside), hull * half, -np.ones(count), np.ones(count), [], [],
            np.zeros((0, count)), rest,
        )  # fmt: skip

    def example(self) -> PyTree | None:
        return (
            None
            if self.lower is None
            else _lowest(np.asarray(self.A), np.asarray(self.b), np.zeros(len(self.lower)))[0]
        )

    def check(self, x: PyTree) -> None:
        if size(x) != self.A.shape[1]:
            raise ValueError(f"Polytope: A has {self.A.shape[1]} columns, and x has {size(x)} entries")


def _lowest(A: np.ndarray, b: np.ndarray, slope: np.ndarray) -> tuple[np.ndarray, float]:
    """Where slope.x is least in the polytope, and how much it is."""
    found = scipy.optimize.linprog(slope, A_ub=A, b_ub=b, bounds=(None, None), method="highs")
    if found.status == 2:
        raise ValueError("Polytope: no point has A x <= b")
    if found.status:
        raise ValueError(f"Polytope: X must be bounded, and A x <= b leaves a direction free: {found.message}")
    return found.x, float(found.fun)


def _extent(A: np.ndarray, b: np.ndarray, axes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest value of each column's product with x."""
    sides = [[sign * _lowest(A, b, sign * axis)[1] for axis in axes.T] for sign in (1, -1)]
    return np.array(sides[0]), np.array(sides[1])


class _Dual(NamedTuple):
    """Where the dual method stands: y is the projection onto the active inequalities.

    Attributes:
        y: (d,).
        slots: (k,) which inequalities are active, m where the slot is free; free ones come last.
        weights: (k,) their multipliers.
        entering: the inequality that is to become active, and m if the next is to be chosen.
        weight: its multiplier so far.
        steps: so far.
    """

    y: jax.Array
    slots: jax.Array
    weights: jax.Array
    entering: jax.Array
    weight: jax.Array
    steps: jax.Array


def project_polytope(x: jax.Array, A: jax.Array, b: jax.Array) -> jax.Array:
    """The nearest point of {y : A y <= b} to x; rows of A have length 1 (Goldfarb and Idnani 1983).

    From far off, y is known to rounding of x only: a second pass starts from there.
    """
    return jax.lax.fori_loop(0, 2, lambda _, y: _project_once(y, A, b), x)


def _project_once(x: jax.Array, A: jax.Array, b: jax.Array) -> jax.Array:
    (m, d), kind = A.shape, x.dtype
    k, eps = min(m, d), float(jnp.finfo(kind).eps)
    rows, levels = jnp.vstack([A, jnp.zeros((1, d), kind)]), jnp.append(b, jnp.zeros((), kind))
    none = jnp.int32(m)

    def over(y: jax.Array) -> jax.Array:
        """By how much y breaks each inequality, beyond rounding."""
        doubt = ROUNDINGS * eps * (jnp.abs(b) + jnp.linalg.norm(y) + jnp.linalg.norm(x))
        return A @ y - b - doubt

    def active_axes(slots: jax.Array) -> tuple[jax.Array, jax.Array]:
        """QR factors of the active normals; where a slot is free, Q has no column and R is the identity."""
        held = (slots < m).astype(kind)
        q, r = jnp.linalg.qr(rows[slots].T)
        return q * held[None], r * held[None] * held[:, None] + jnp.diag(1 - held)

    def step(state: _Dual) -> _Dual:
        fresh = state.entering == none
        p = jnp.where(fresh, jnp.argmax(over(state.y)).astype(jnp.int32), state.entering)
        weight = jnp.where(fresh, 0, state.weight)
        q, r = active_axes(state.slots)
        normal = rows[p]
        shares = q.T @ normal
        away = normal - q @ shares
        away = away - q @ (q.T @ away)  # twice is enough
        lean = jax.scipy.linalg.solve_triangular(r, shares)  # what the active multipliers lose for each unit gained
        falls = (lean > 0) & (state.slots < m)
        ratios = jnp.where(falls, state.weights / jnp.where(falls, lean, 1), jnp.inf)
        leaving = jnp.argmin(ratios).astype(jnp.int32)
        length = away @ away
        free = length > (DEPENDENT * eps) ** 2
        full = jnp.where(free, (normal @ state.y - levels[p]) / jnp.where(free, length, 1), jnp.inf)
        size = jnp.minimum(ratios[leaving], full)
        stuck = jnp.isinf(size)  # rounding alone says that it is broken
        size = jnp.where(stuck, 0, size)
        y = state.y - jnp.where(free, size, 0) * away
        weights, weight = jnp.maximum(state.weights - size * lean, 0), weight + size
        enters = (full <= ratios[leaving]) & ~stuck
        count = jnp.sum(state.slots < m, dtype=jnp.int32)
        place = jnp.arange(k, dtype=jnp.int32)
        # One enters behind the last, or one leaves and those behind it move up.
        onwards = jnp.where(place >= leaving, jnp.minimum(place + 1, k - 1), place)
        last = (place == k - 1) & (place >= leaving)
        left = jnp.where(last, none, state.slots[onwards]), jnp.where(last, 0, weights[onwards])
        grown = jnp.where(place == count, p, state.slots), jnp.where(place == count, weight, weights)
        slots, weights = (jnp.where(enters, a, b) for a, b in zip(grown, left, strict=True))
        slots, weights = (jnp.where(stuck, a, b) for a, b in ((state.slots, slots), (state.weights, weights)))
        steps = jnp.where(stuck, most, state.steps + 1)
        return _Dual(y, slots, weights, jnp.where(enters, none, p), weight, steps)

    most = 10 * (m + d)
    start = _Dual(x, jnp.full(k, none), jnp.zeros(k, kind), none, jnp.zeros((), kind), jnp.int32(0))

    def going(state: _Dual) -> jax.Array:
        return (state.steps < most) & ((state.entering < m) | (jnp.max(over(state.y)) > 0))

    end = jax.lax.while_loop(going, step, start)
    # What is active is met to rounding, whatever the steps have gathered: x, less what it has along the normals.
    q, r = active_axes(end.slots)
    target = jnp.where(end.slots < m, levels[end.slots], 0)
    there = q @ jax.scipy.linalg.solve_triangular(r, target, trans=1)
    beside = x - q @ (q.T @ x)
    beside = jnp.where(end.slots[-1] < m if k == d else False, 0, beside - q @ (q.T @ beside))
    return jnp.where(end.slots[0] < m, there + beside, x)
