"""What a plain problem says of a state without looking at x is computed once per state, and looked up every round.

A function that is affine in x is known by its value and slope at one point, a quadratic one by its curvature too. Where
a problem's functions are shown to be of that kind (`degree.py`), and samples are states that come back, these numbers
are tabulated for each state. A round then reads a few of them in the place of a pass over a state's data. Of other
functions what is computed of the sample alone is kept for each state, and read in its place (`hoisting.py`).
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import tree
from ergodrift._core.compiled import compiled
from ergodrift._core.contracted import Contracted
from ergodrift._core.degree import degrees
from ergodrift._core.hoisting import computed, variables, worth_keeping
from ergodrift._core.jaxprs import evaluated, opened, restricted, shared, work
from ergodrift._core.logarithm import rewritten
from ergodrift.problem.problem import Problem, value_and_jacobian
from ergodrift.types import Feedback, PyTree

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr

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
    kept: tuple[PyTree, ...]  # arrays that the others compute of the sample alone


class Plan(NamedTuple):
    """What is looked up.

    Attributes:
        quadratic: whether the loss is expanded.
        affine: for each constraint, whether it is.
        kept: which variables of the two functions the rest of them is given (`hoisting`).
        variables: how many both functions have.
        products: whether sums are products there (`Contracted`). It decides what has which number.
    """

    quadratic: bool
    affine: tuple[bool, ...]
    kept: tuple[int, ...]
    variables: int
    products: bool

    def kept_of(self, closed: ClosedJaxpr) -> tuple[int, ...]:
        """`kept`; nothing of functions that are traced otherwise than they were, in which numbers mean other things."""
        return self.kept if len(variables(closed.jaxpr)) == self.variables else ()


class Tabulated(Problem, static=("plan",)):
    """A problem whose samples are `Known`. Its functions are those of the problem that was tabulated.

    Attributes:
        center: c, around which its functions are expanded.
        plan: what is looked up.
    """

    center: PyTree
    plan: Plan

    @compiled()
    def _feedback(self, x: PyTree, xi: Known) -> Feedback:
        """What the feedback of the problem that was tabulated gives, to rounding."""
        kind = tree.dtype(x)
        xi, step = tree.cast(xi, kind), _flat(x, kind) - _flat(self.center, kind)
        if xi.loss is None:
            loss, loss_grad = jax.value_and_grad(self._rest(LOSS))(x, xi)
        else:
            (loss,), (slope,) = xi.loss.at(step)
            loss_grad = _unflat(slope, x)
        if xi.constraints is None:
            values, jac = self._others(x, xi)
        else:
            values, slopes = xi.constraints.at(step)
            if not all(self.plan.affine):
                values, slopes = self._joined(values, slopes, *self._others(x, xi))
            jac = _unflat(slopes, x)
        return tree.cast(Feedback(loss, loss_grad, values, jac), kind)

    def _others(self, x: PyTree, xi: Known) -> tuple[jax.Array, PyTree]:
        """The constraints that are not expanded."""
        rest, known = self._rest(CONSTRAINTS), np.array(self.plan.affine)
        runs = np.flatnonzero(np.diff(np.concatenate([[True], known, [True]]))).reshape(-1, 2)  # where they stand

        def asked(y: PyTree) -> jax.Array:
            found = rest(y, xi)
            return jnp.concatenate([found[first:last] for first, last in runs])

        return value_and_jacobian(asked, x)

    def _joined(
        self, values: jax.Array, slopes: jax.Array, others: jax.Array, jac: PyTree
    ) -> tuple[jax.Array, jax.Array]:
        """All constraints in their order."""
        kind, known = values.dtype, np.array(self.plan.affine)
        order = np.argsort(np.concatenate([np.flatnonzero(known), np.flatnonzero(~known)]))
        joined = jnp.concatenate([slopes, jax.vmap(lambda row: _flat(row, kind))(jac)])
        parts = np.split(order, np.flatnonzero(np.diff(order) != 1) + 1)  # slices, of which a kernel knows how

        def ordered(rows: jax.Array) -> jax.Array:
            return jnp.concatenate([rows[part[0] : part[-1] + 1] for part in parts])

        return ordered(jnp.concatenate([values, others.astype(kind)])), ordered(joined)

    def _rest(self, output: int) -> Callable[[PyTree, Known], jax.Array]:
        """The loss, or the constraints that are not expanded (in the place of the others are zeros), as a function that
        is given what is kept."""

        def function(x: PyTree, xi: Known) -> jax.Array:
            closed = _both(self, x, xi.xi, self.plan.products)
            found, kept = variables(closed.jaxpr), self.plan.kept_of(closed)
            given = {found[number]: value for number, value in zip(kept, xi.kept, strict=True)} if kept else {}
            wanted = [np.array(output == LOSS), ~np.array(self.plan.affine) & (output == CONSTRAINTS)]
            return restricted(closed, wanted, given)(*jax.tree.leaves((x, xi.xi)))[output]

        return shared(rewritten(function)) if self.fast_logarithms else function


LOSS, CONSTRAINTS = 0, 1


def _both(problem: Problem, x: PyTree, xi: PyTree, products: bool) -> ClosedJaxpr:
    """Both functions as one list of equations: what they have in common is computed, and kept, once."""
    each = [jax.make_jaxpr(function)(x, xi) for function in (problem.loss, problem.constraints)]  # JAX keeps these

    def both(x: PyTree, xi: PyTree) -> list[jax.Array]:
        return [found for closed in each for found in evaluated(closed, jax.tree.leaves((x, xi)))]

    return opened(shared(both, lambda: Contracted(apart=True)) if products else both, x, xi)


def tabulated(problem: Problem, table: Table, num_states: int, x0: PyTree, num_samples: int) -> tuple[Problem, PyTree]:
    """The problem that a run over so many samples is asked, and for each state what is `Known` of it but its data.

    Where nothing is to be gained, the problem as it is, and None. A function is tabulated if

    - it is shown to be affine in x, or for the loss quadratic; of the constraints each is looked at on its own;
    - a round is spared computing with at least `LEAST` numbers, and with `GAIN` times as many as it looks up.

    Of what remains, what does not depend on x is kept where that pays (`hoisting.worth_keeping`). All this where

    - all states come `VISITS` times or more on average, num_samples >= 4 S;
    - the tables take no more memory than `SPARE` bytes, or the data themselves where these are larger; what is kept has
      the room that expansions leave;
    - all tables are finite.
    """
    nothing = problem, None
    if type(problem) is not Problem or not problem.tabulate or num_samples < VISITS * num_states:
        return nothing
    if any(getattr(jax.config, name) for name in ("jax_debug_nans", "jax_debug_infs")):
        return nothing  # who looks for a NaN should be led to their own lines
    xi = jax.eval_shape(lambda: tree.cast(table.xi(jnp.int32(0)), tree.dtype(x0)))
    room = max(SPARE, sum(leaf.nbytes for leaf in jax.tree.leaves(table))) // num_states
    shapes = [(np.shape(leaf), jax.dtypes.result_type(leaf)) for leaf in jax.tree.leaves((x0, xi))]
    asked = jax.tree.structure((x0, xi)), *shapes, room
    known = _plans.setdefault(problem, {})
    if asked not in known:
        known[asked] = _plan(problem, x0, xi, room)
    plan = known[asked]
    for one in () if plan is None else dict.fromkeys([plan, plan._replace(kept=())]):
        if not (one.quadratic or any(one.affine) or one.kept):
            return nothing
        tables = _expanded(problem, x0, table, num_states, one)
        if _finite(tables):
            made = Tabulated(problem.loss, problem.constraints, problem.geometry, x0, one)
            return dataclasses.replace(made, fast_logarithms=problem.fast_logarithms), tables
    return nothing


# Found once for all runs of a problem, on samples of one shape; it goes with the problem.
_plans: weakref.WeakKeyDictionary[Problem, dict[Hashable, Plan | None]] = weakref.WeakKeyDictionary()


def _plan(problem: Problem, x0: PyTree, xi: PyTree, room: int) -> Plan | None:
    """What to tabulate in so many bytes for each state, if anything."""
    products = problem.fast_logarithms and jax.default_backend() == "cpu"
    closed = _both(problem, x0, xi, products)
    if closed.effects:
        return None  # what is printed, or called back, happens every round
    of_x = [True] * len(jax.tree.leaves(x0)) + [False] * len(jax.tree.leaves(xi))
    quadratic, affine, count = _promising(closed, x0, of_x)
    room -= count * tree.dtype(x0).itemsize
    if room < 0:
        return None
    kept = worth_keeping(closed.jaxpr, of_x, [np.array(not quadratic), ~np.array(affine)], room)
    return Plan(quadratic, affine, kept, len(variables(closed.jaxpr)), products)


def _finite(tables: PyTree) -> bool:
    """Whether all is finite, as far as it can be looked at."""
    return tree.is_traced(tables) or all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(tables))


def _promising(closed: ClosedJaxpr, x0: PyTree, of_x: Sequence[bool]) -> tuple[bool, tuple[bool, ...], int]:
    """Whether the loss is worth a table, which constraints are, and how many numbers that makes for each state."""
    dim = sum(math.prod(np.shape(leaf)) for leaf in jax.tree.leaves(x0))
    of_loss, each = degrees(closed, [int(own) for own in of_x])
    none, all_of_it, jaxpr = np.zeros(each.shape, bool), np.ones(each.shape, bool), closed.jaxpr
    count = 1 + dim + dim * dim
    quadratic = int(of_loss) <= 2 and max(GAIN * count, LEAST) <= work(jaxpr, [np.array(True), none])
    spared = work(jaxpr, [np.array(False), all_of_it]) - work(jaxpr, [np.array(False), each > 1])
    of_constraints = int((each <= 1).sum()) * (1 + dim)
    worth = max(GAIN * of_constraints, LEAST) <= spared
    affine = tuple(bool(degree <= 1) and worth for degree in each)
    return quadratic, affine, quadratic * count + worth * of_constraints


@compiled(static_argnums=(3, 4))
def _expanded(
    problem: Problem, x0: PyTree, table: Table, num_states: int, plan: Plan
) -> tuple[Expansion | None, Expansion | None, tuple[jax.Array, ...]]:
    """All that is `Known` of all states but their data."""
    kind, chosen = tree.dtype(x0), np.flatnonzero(plan.affine)

    def one(state: jax.Array) -> tuple[Expansion | None, Expansion | None, tuple[jax.Array, ...]]:
        xi = tree.cast(table.xi(state), kind)
        heard = problem.feedback(x0, xi)
        loss = constraints = None
        if plan.quadratic:
            curvature = jax.hessian(lambda flat: problem.loss(_unflat(flat, x0), xi))(_flat(x0, kind)).astype(kind)
            loss = Expansion(heard.loss[None], _flat(heard.loss_grad, kind)[None], curvature[None])
        if len(chosen):
            slopes = jax.vmap(lambda row: _flat(row, kind))(heard.constraint_jac)
            constraints = Expansion(heard.constraints[chosen], slopes[chosen], None)
        closed = _both(problem, x0, xi, plan.products)
        return loss, constraints, tuple(computed(closed, plan.kept_of(closed), jax.tree.leaves((x0, xi))))

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
