"""What a plain problem says of a state without looking at x is computed once per state, and looked up every round.

A function that is affine in x is known by its value and slope at one point, a quadratic one by its curvature too. Where
a problem's functions are shown to be of that kind (`degree.py`), and samples are states that come back, these numbers
are tabulated for each state. A round then reads a few of them in the place of a pass over a state's data.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import tree
from ergodrift._core.compiled import compiled
from ergodrift._core.degree import degrees
from ergodrift._core.jaxprs import opened, restricted, work
from ergodrift.problem.problem import Problem, value_and_jacobian
from ergodrift.types import Feedback, PyTree

GAIN = 2  # how many times fewer numbers a round must read
LEAST = 256  # numbers that a round must be spared: what computes with less is no faster looked up
VISITS = 4  # how often the states must come back, on average
SPARE = 2**24  # bytes that tables may take in any case; beyond, no more than the data


class Table(Protocol):
    """Samples that are looked up by the numbers of their states."""

    def xi(self, entry: jax.Array, /) -> PyTree:
        """The sample of a state."""
        ...


class Expansion(NamedTuple):
    """h(c + s) = value + slope . s + s . curvature . s / 2, of m functions of d numbers; in a table for each state."""

    value: jax.Array  # (m,)
    slope: jax.Array  # (m, d)
    curvature: jax.Array | None  # (m, d, d), or None where all are affine

    def at(self, step: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Values and slopes at c + s."""
        if self.curvature is None:
            return self.value + tree.pushforward(self.slope, step), self.slope
        turned = tree.pushforward(self.curvature.reshape(-1, step.size), step).reshape(self.slope.shape)
        return self.value + tree.pushforward(self.slope + turned / 2, step), self.slope + turned


class Known(NamedTuple):
    """A sample, and what is known of the two functions at it; None where that is nothing."""

    xi: PyTree
    loss: Expansion | None
    constraints: Expansion | None  # of those that are affine


class Tabulated(Problem, static=("affine",)):
    """A problem whose samples are `Known`. Its functions are those of the original problem.

    Attributes:
        original: the problem.
        center: c, around which its functions are expanded.
        affine: for each constraint, whether it is expanded.
    """

    original: Problem
    center: PyTree
    affine: tuple[bool, ...]

    @compiled()
    def _feedback(self, x: PyTree, xi: Known) -> Feedback:
        """What the original's `feedback` gives, to rounding."""
        kind = tree.dtype(x)
        step = _flat(x, kind) - _flat(self.center, kind)
        heard = self.original._feedback(x, xi.xi)  # what is not used of it is not computed
        if xi.loss is not None:
            (loss,), (slope,) = xi.loss.at(step)
            heard = heard._replace(loss=loss, loss_grad=_unflat(slope, x))
        if xi.constraints is not None:
            values, slopes = xi.constraints.at(step)
            if not all(self.affine):
                values, slopes = self._with_others(x, xi.xi, values, slopes)
            heard = heard._replace(constraints=values, constraint_jac=_unflat(slopes, x))
        return heard

    def _with_others(self, x: PyTree, xi: PyTree, values: jax.Array, slopes: jax.Array) -> tuple[jax.Array, jax.Array]:
        """All constraints, once those that are not affine are asked."""
        xi, known = tree.cast(xi, tree.dtype(x)), np.array(self.affine)
        closed = opened(self._prepared(self.constraints), x, xi)
        others = restricted(closed, ~known)
        runs = np.flatnonzero(np.diff(np.concatenate([[True], known, [True]]))).reshape(-1, 2)  # where they stand

        def asked(y: PyTree) -> jax.Array:
            found = others(*jax.tree.leaves((y, xi)))
            return jnp.concatenate([found[first:last] for first, last in runs])

        new, jac = tree.cast(value_and_jacobian(asked, x), tree.dtype(x))
        order = np.argsort(np.concatenate([np.flatnonzero(known), np.flatnonzero(~known)]))
        joined = jnp.concatenate([slopes, jax.vmap(lambda row: _flat(row, slopes.dtype))(jac)])
        return jnp.concatenate([values, new])[order], joined[order]


def tabulated(problem: Problem, table: Table, num_states: int, x0: PyTree, num_samples: int) -> tuple[Problem, PyTree]:
    """The problem that a run over so many samples is asked, and for each state what is `Known` of it but its data.

    Where nothing is to be gained, the problem as it is, and None. A function is tabulated if

    - it is shown to be affine in x, or for the loss quadratic; of the constraints each is looked at on its own;
    - a round is spared computing with at least `LEAST` numbers, and with `GAIN` times as many as it looks up;
    - all states come `VISITS` times or more on average, num_samples >= 4 S;
    - the tables take no more memory than `SPARE` bytes, or the data themselves where these are larger.
    """
    nothing = problem, None
    if type(problem) is not Problem or not problem.tabulate or num_samples < VISITS * num_states:
        return nothing
    if any(getattr(jax.config, name) for name in ("jax_debug_nans", "jax_debug_infs")):
        return nothing  # who looks for a NaN should be led to their own lines
    quadratic, affine, numbers = _promising(problem, table, x0)
    room = max(SPARE, sum(leaf.nbytes for leaf in jax.tree.leaves(table)))
    if not numbers or num_states * numbers * tree.dtype(x0).itemsize > room:
        return nothing
    tables = _expanded(problem, x0, table, num_states, quadratic, affine)
    if not _finite(tables):
        return nothing
    told = (problem.loss, problem.constraints, problem.geometry, problem, x0, affine)
    return Tabulated(*told, fast_logarithms=problem.fast_logarithms), tables


def _finite(tables: PyTree) -> bool:
    """Whether all is finite, as far as it can be looked at."""
    return tree.is_traced(tables) or all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(tables))


def _promising(problem: Problem, table: Table, x0: PyTree) -> tuple[bool, tuple[bool, ...], int]:
    """Whether the loss is worth a table, which constraints are, and how many numbers that makes for each state."""
    xi = jax.eval_shape(lambda: tree.cast(table.xi(jnp.int32(0)), tree.dtype(x0)))
    dim = sum(math.prod(np.shape(leaf)) for leaf in jax.tree.leaves(x0))
    inputs = [1] * len(jax.tree.leaves(x0)) + [0] * len(jax.tree.leaves(xi))
    f, g = (opened(function, x0, xi) for function in (problem.loss, problem.constraints))
    if f.effects or g.effects:
        return False, (), 0  # what is printed, or called back, happens every round
    each, of_loss = degrees(g, inputs)[0] <= 1, 1 + dim + dim * dim
    of_constraints = int(each.sum()) * (1 + dim)
    quadratic = int(degrees(f, inputs)[0]) <= 2 and max(GAIN * of_loss, LEAST) <= work(f.jaxpr)
    worth = max(GAIN * of_constraints, LEAST) <= work(g.jaxpr) - work(g.jaxpr, ~each)
    affine = tuple(bool(one) and worth for one in each)
    return quadratic, affine, quadratic * of_loss + worth * of_constraints


@compiled(static_argnums=(3, 4, 5))
def _expanded(
    problem: Problem, x0: PyTree, table: Table, num_states: int, quadratic: bool, affine: tuple[bool, ...]
) -> tuple[Expansion | None, Expansion | None]:
    """The expansions of all states."""
    kind, chosen = tree.dtype(x0), np.flatnonzero(affine)

    def one(state: jax.Array) -> tuple[Expansion | None, Expansion | None]:
        xi = tree.cast(table.xi(state), kind)
        heard = problem.feedback(x0, xi)
        loss = constraints = None
        if quadratic:
            curvature = jax.hessian(lambda flat: problem.loss(_unflat(flat, x0), xi))(_flat(x0, kind)).astype(kind)
            loss = Expansion(heard.loss[None], _flat(heard.loss_grad, kind)[None], curvature[None])
        if len(chosen):
            slopes = jax.vmap(lambda row: _flat(row, kind))(heard.constraint_jac)
            constraints = Expansion(heard.constraints[chosen], slopes[chosen], None)
        return loss, constraints

    return jax.lax.map(one, jnp.arange(num_states, dtype=jnp.int32))


def _flat(x: PyTree, kind: np.dtype) -> jax.Array:
    """All numbers of a point as one vector."""
    leaves = [jnp.ravel(leaf).astype(kind) for leaf in jax.tree.leaves(x)]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves)


def _unflat(flat: jax.Array, like: PyTree) -> PyTree:
    """The same with the shapes of a point; axes before the last stay."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([math.prod(np.shape(leaf)) for leaf in leaves])[:-1]
    parts = jnp.split(flat, ends, axis=-1) if len(ends) else [flat]
    shaped = [part.reshape(*flat.shape[:-1], *np.shape(leaf)) for part, leaf in zip(parts, leaves, strict=True)]
    return structure.unflatten(shaped)
