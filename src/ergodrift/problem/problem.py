"""A constrained stochastic problem: two plain JAX functions and a domain."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import check, tree
from ergodrift._core.compiled import compiled
from ergodrift._core.contracted import Contracted
from ergodrift._core.jaxprs import shared
from ergodrift._core.logarithm import rewritten
from ergodrift.geometry import Geometry, check_shape
from ergodrift.types import Feedback, PyTree, Scalar

Function: TypeAlias = Callable[[PyTree, PyTree], jax.Array]  # of a point and a sample


# Constraints whose derivatives are taken one by one: XLA's CPU backend turns a product of a state's data with a vector
# into vector instructions, and one with a matrix of two columns not, which takes five times as long.
FEW = 8


class CompactForm(abc.ABC):
    """How the feedback of a problem is remembered in few numbers, in the place of whole tangent planes.

    As functions of x, the tangent planes of a state's loss and constraints must be linear in its numbers and in the
    `share` of a part that never changes. A method with a memory keeps the numbers alone: the basis, which makes planes
    of them, comes back with the state. See `Problem.compact`, which offers one.

    A form is part of what is compiled, so it is compared by value and holds no arrays: write a frozen dataclass.

    Attributes:
        size: how many numbers are kept per state.
    """

    size: int

    @abc.abstractmethod
    def feedback(self, problem: Problem, x: PyTree, xi: PyTree) -> Feedback:
        """`problem.feedback(x, xi)` with its `Compact`."""

    @abc.abstractmethod
    def planes(self, basis: PyTree, numbers: jax.Array, share: jax.Array) -> Feedback:
        """The planes that these numbers stand for, as the feedback at x = 0: values there, and slopes.

        Linear in (numbers, share); a state's own planes have its numbers and share 1.
        """


class Problem(tree.Module, static=("loss", "constraints", "fast_logarithms", "tabulate")):
    """Minimise E[loss(x, xi)] over x in X subject to E[constraints(x, xi)] <= 0 (Kim and Lee, section 2.3).

    Args:
        loss: `loss(x, xi)`, a scalar, convex and differentiable in x.
        constraints: `constraints(x, xi)`, a vector of shape (n,), each entry convex and differentiable in x.
        geometry: the domain X with its mirror map.
        fast_logarithms: whether logarithms in the two functions may be replaced by ones that are faster on a CPU and
            equal to rounding (`logarithm.rewritten`), sums of products of entries by products of matrices
            (`contracted`), and what is written twice computed once (`jaxprs.shared`); False leaves the functions as
            they are.
        tabulate: whether a run may look up what is known of a state beforehand, equal to rounding: all of an affine
            constraint or a quadratic loss, of others what does not depend on x (`tabulated`); False asks the functions
            in every round.

    A subclass is a frozen dataclass and a pytree too; it may offer compact feedback, see `compact`.

    >>> import jax.numpy as jnp
    >>> from ergodrift import Ball
    >>> problem = Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] - 0.5, Ball(2.0))
    >>> problem.feedback(jnp.zeros(2), jnp.ones(2)).loss_grad
    Array([-2., -2.], dtype=float64)
    """

    loss: Function
    constraints: Function
    geometry: Geometry
    fast_logarithms: bool = dataclasses.field(default=True, kw_only=True)
    tabulate: bool = dataclasses.field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("loss", "constraints"):
            if not callable(getattr(self, name)):
                raise TypeError(f"{name} must be a function of (x, xi), got {getattr(self, name)!r}")
        if not isinstance(self.geometry, Geometry):
            raise TypeError(f"geometry must be a Geometry such as Ball(5.0), got {self.geometry!r}")

    def feedback(self, x: PyTree, xi: PyTree) -> Feedback:
        """f, its gradient, g and its Jacobian at x for the sample xi, by automatic differentiation."""
        check.fits("xi", xi)
        return self._feedback(x, xi)

    @compiled()
    def _feedback(self, x: PyTree, xi: PyTree) -> Feedback:
        xi = tree.cast(xi, tree.dtype(x))  # as in a run, where the point's precision is that of the data too
        f, g = self._prepared(self.loss), self._prepared(self.constraints)
        loss, loss_grad = jax.value_and_grad(f)(x, xi)
        constraints, constraint_jac = value_and_jacobian(lambda y: g(y, xi), x)
        return tree.cast(Feedback(jnp.asarray(loss), loss_grad, constraints, constraint_jac), tree.dtype(x))

    def _prepared(self, function: Function) -> Function:
        """A function as it is differentiated: as a CPU computes it best, and nothing in it computed twice."""
        debugged = any(getattr(jax.config, name) for name in ("jax_debug_nans", "jax_debug_infs"))
        if debugged or not self.fast_logarithms:
            return function
        return shared(rewritten(function), *[Contracted] * (jax.default_backend() == "cpu"))

    def compact(self, xi: PyTree) -> CompactForm | None:
        """How to remember a state with samples like `xi` in fewer numbers than its tangent planes have, if at all."""
        return None

    def share(self, xi: PyTree) -> Scalar:
        """How much of a whole sample xi is: less than 1 for a batch that is not full."""
        return 1.0

    def check(self, x: PyTree, xi: PyTree) -> int:
        """The number of constraints; raises where the functions do not fit the point or each other."""
        check_shape(self.geometry, x)
        xi = tree.cast(xi, tree.dtype(x))
        loss = _shape("loss", self.loss, x, xi)
        if loss.shape != ():
            raise ValueError(f"loss must return a scalar, got shape {loss.shape}; take a sum or a mean")
        constraints = _shape("constraints", self.constraints, x, xi)
        if len(constraints.shape) != 1 or constraints.shape[0] == 0:
            raise ValueError(
                f"constraints must return a vector with one entry per constraint, got shape {constraints.shape}; "
                "for a single constraint return jnp.array([value])"
            )
        return constraints.shape[0]


REMEDIES: dict[type[Exception], str] = {
    jax.errors.TracerBoolConversionError: "write jnp.where(condition, a, b) in the place of `if` and `and`. ",
    jax.errors.TracerArrayConversionError: "write jnp.maximum in the place of np.maximum, and so on. ",
}


def _shape(name: str, function: Function, x: PyTree, xi: PyTree) -> jax.ShapeDtypeStruct:
    """The shape `function(x, xi)` would have; any failure inside it is reported under its name."""
    try:
        out = jax.eval_shape(function, x, xi)
    except Exception as error:
        shapes = f"x {jax.tree.map(jnp.shape, x)}, xi {jax.tree.map(jnp.shape, xi)}"
        told = f"no {error}" if isinstance(error, KeyError) else str(error)
        remedy = next((text for kind, text in REMEDIES.items() if isinstance(error, kind)), "")
        raise ValueError(f"{name}(x, xi) fails for shapes {shapes}: {remedy}{told}") from error
    if not isinstance(out, jax.ShapeDtypeStruct):
        shown = jax.tree.map(lambda leaf: leaf.shape, out)
        hint = "; write jnp.stack([...])" if isinstance(out, list | tuple) and jax.tree.leaves(out) else ""
        raise ValueError(f"{name}(x, xi) must return one floating-point array, got {type(out).__name__} {shown}{hint}")
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise ValueError(f"{name}(x, xi) must return one floating-point array, got {out.dtype}; write .astype(x.dtype)")
    return out


def value_and_jacobian(function: Callable[[PyTree], jax.Array], x: PyTree) -> tuple[jax.Array, PyTree]:
    """The vector function(x) and its Jacobian, by rows or by columns, whichever are fewer and can be had.

    A function with a reverse rule of its own (`jax.custom_vjp`) has no columns, one with a `while_loop` no rows.
    """
    count = jax.eval_shape(function, x).shape[0]

    def by_rows() -> tuple[jax.Array, PyTree]:
        value, vjp = jax.vjp(lambda y: jnp.asarray(function(y)), x)
        rows = np.eye(count, dtype=value.dtype)
        if count <= FEW and jax.default_backend() == "cpu":
            return value, jax.tree.map(lambda *leaves: jnp.stack(leaves), *(vjp(jnp.asarray(row))[0] for row in rows))
        return value, jax.vmap(lambda row: vjp(row)[0])(rows)

    def by_columns() -> tuple[jax.Array, PyTree]:
        return function(x), jax.jacfwd(function)(x)

    few_rows = count <= sum(leaf.size for leaf in jax.tree.leaves(x))
    first, second = (by_rows, by_columns) if few_rows else (by_columns, by_rows)
    try:
        return first()
    except (TypeError, ValueError) as error:  # JAX says so while it traces, before anything is computed
        try:
            return second()
        except Exception:
            raise error from None
