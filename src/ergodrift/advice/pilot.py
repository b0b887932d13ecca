"""A short look at the samples before a run: how far the solution is, and how much the samples depend on each other."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ergodrift._core import tree
from ergodrift._core.compiled import compiled
from ergodrift.data.source import Source
from ergodrift.geometry import Geometry
from ergodrift.methods.algorithms import Algorithm, sdpp
from ergodrift.methods.estimator import ask
from ergodrift.methods.method import Method
from ergodrift.methods.scalefree import CoordinateDrift, Distances, ScaledDrift, Scales, lagrangian_grad
from ergodrift.problem import Batch, Batched, Problem
from ergodrift.trust.start import allan_variances, long_run_variance, loses
from ergodrift.trust.values import constraint_values, loss_values
from ergodrift.types import Array, PyTree, State

LOOKED_AT = 65_536  # samples: of more, every second or third or k-th is taken
TAUGHT = 2000  # rounds in random order that a rough solution is made of
AT_ONCE, BYTES = 32, 2**15  # samples of such a round, and bytes that they have: their mean says more than one of them
COLUMNS = 128  # entries of a gradient whose dependence is looked at
COUNTS = 1.5  # long-run variance over variance from which samples count as dependent
LEAST = 1e-3  # of a factor's diameter, or of the way that was gone: no distance is taken for less
AWAY = 0.1  # what a constraint's distance from 0 counts, in units of its price
FIRSTS = (1e-2, 1e-4, 1e-6)  # of a factor's diameter: distances that a rough solution begins with
WEAKEST = 1e-8  # of the largest force of a coordinate: none is taken for less


class Samples(NamedTuple):
    """Samples in the order in which they come.

    Attributes:
        points: as losses see them, and as constraints do, where these come apart: arrays with a leading axis.
        rows: (parts, n) which point each sample is; (1, n, batch) where samples are batches, -1 where one is not full.
        every: of how many samples each of these is one.
    """

    points: tuple[PyTree, ...]
    rows: np.ndarray
    every: int

    @staticmethod
    def of(source: Source, path: PyTree, every: int = 1) -> Samples:
        """Those along the path of one seed, or every so many-th of them, and no more of the source's data."""
        visits = source.visits(path)
        points, rows = [], []
        for visit in visits if source.paired else visits[:1]:
            kept, row = np.unique(np.asarray(visit.rows)[::every], return_inverse=True)
            points.append(jax.tree.map(lambda leaf, kept=kept: np.asarray(leaf)[kept], visit.points))
            rows.append(row.astype(np.int32))
        return Samples(tuple(points), np.stack(rows), every)

    @staticmethod
    def batches(source: Source, path: PyTree, every: int = 1) -> Samples:
        """The same where samples are batches, as a run takes them; `of` takes them apart."""
        taken = np.asarray(path)[::every]
        kept, row = np.unique(taken[taken >= 0], return_inverse=True)
        rows = np.full(taken.shape, -1, np.int32)
        rows[taken >= 0] = row
        return Samples((jax.tree.map(lambda leaf: np.asarray(leaf)[kept], source.table),), rows[None], every)

    @staticmethod
    def of_states(source: Source, path: PyTree) -> Samples:
        """States of a chain along a path, which `rows` then are."""
        visit = source.visits(path)[0]
        return Samples((jax.tree.map(np.asarray, visit.points),), np.asarray(visit.rows, np.int32)[None], 1)

    def mixed(self, count: int, law: np.ndarray | None = None) -> Samples:
        """So many of them in random order, all equally often, or nearly so; or points drawn by a law."""
        rng, total = np.random.default_rng(0), self.rows.shape[1]
        if law is not None:
            return self._replace(rows=rng.choice(len(law), count, p=law / law.sum()).astype(np.int32)[None])
        order = np.concatenate([rng.permutation(total) for _ in range(-(-count // total))])[:count]
        return self._replace(rows=self.rows[:, order])

    def grouped(self, count: int, law: np.ndarray | None = None) -> Samples:
        """So many batches of what `mixed` makes; of one each where they are large, or a loss's and a constraint's."""
        bytes_each = sum(leaf[0].nbytes for leaf in jax.tree.leaves(self.points[0]))
        size = 1 if len(self.points) > 1 else int(np.clip(BYTES // max(bytes_each, 1), 1, AT_ONCE))
        mixed = self.mixed(count * size, law)
        return mixed if size == 1 else mixed._replace(rows=mixed.rows.reshape(1, -1, size))

    def turned(self, turns: int) -> list[Samples]:
        """The same from so many places on, wrapping around."""
        total = self.rows.shape[1]
        return [self._replace(rows=np.roll(self.rows, -(total * k // turns), axis=1)) for k in range(turns)]

    def worth(self, problem: Problem, x: PyTree, multipliers: Array) -> float:
        """`worth` of the means over all samples; infinite where it is no number."""
        losses, constraints = self.values(problem, x)
        found = float(worth(losses.mean(), constraints.mean(axis=0), multipliers))
        return found if np.isfinite(found) else np.inf

    def values(self, problem: Problem, x: PyTree) -> tuple[np.ndarray, np.ndarray]:
        """f(x, xi_t), (n,), and g(x, xi_t), (n, constraints), in float64."""
        losses, constraints = loss_values(problem, self.points[0], x), constraint_values(problem, self.points[-1], x)
        return losses[self.rows[0].ravel()], constraints[self.rows[-1].ravel()]


def worth(loss: np.ndarray, constraints: np.ndarray, multipliers: Array, away: float = AWAY) -> np.ndarray:
    """f + l.g + away |l.g|, term by term, of means at a point: least at optimal points alone, the Lagrangian nearby.

    The Lagrangian itself is blind where loss and constraints trade at the price l; a larger part of |g|, which chance
    moves more than all else, would make comparisons a matter of chance.
    """
    prices = np.asarray(multipliers, float)
    return loss + constraints @ prices + away * np.abs(constraints) @ prices


class Pilot(NamedTuple):
    """What a look has found.

    Attributes:
        x: a rough solution.
        multipliers: of it, shape (n,).
        taken: how many different samples it is made of.
        scales: what `sdpp` may be told.
        ratio: how many times its variance the long-run variance is, of the gradient of the Lagrangian or of a
            constraint, whichever is most; 1 where samples are as good as independent.
        even: distances with which all factors of the domain have one step, in units of their diameters.
        rule: whether each coordinate has a step of its own.
    """

    x: PyTree
    multipliers: jax.Array
    taken: int
    scales: Scales
    ratio: float
    even: PyTree
    rule: type[ScaledDrift] = ScaledDrift

    def cautious(self, part: float) -> Pilot:
        """The same with a part of the long-run variances."""
        long_run, constraints = jax.tree.map(lambda leaf: leaf * part, self.scales[1:3])
        return self._replace(scales=self.scales._replace(long_run=long_run, constraints_long_run=constraints))

    def of_batches(self, size: int) -> Pilot:
        """The same where a sample is the mean of so many rows: their long-run variance is that of rows over `size`."""
        return self.cautious(1 / size)


def pilot(
    problem: Problem,
    samples: Samples,
    x0: PyTree,
    num_constraints: int,
    independent: bool = False,
    taught: Samples | None = None,
    rule: type[ScaledDrift] = ScaledDrift,
) -> Pilot:
    """A rough solution from samples in random order, and the dependence of all of them there.

    In random order nothing leads a method astray, so that little is enough for the scales of a problem. Dependence is
    that of d_t = df_t(x) + sum_i lambda_i dg_ti(x) and of each g_ti(x) at the rough solution.

    Args:
        problem, samples, x0, num_constraints: what is looked at.
        independent: whether samples are known to be.
        taught: samples for the rough solution, where these are not `samples` in random order.
        rule: whether each coordinate has a step of its own.
    """
    taught = samples.grouped(TAUGHT) if taught is None else taught
    taken = min(taught.rows.size, samples.rows.shape[1])
    asked = Batched.of(problem) if taught.rows.ndim == 3 else problem
    geometry, every = problem.geometry, samples.rows.reshape(len(samples.rows), -1)
    forces = None
    if apart := rule is CoordinateDrift:
        geometry, silent = geometry.by_coordinates(), jnp.zeros(num_constraints, tree.dtype(x0))
        forces = _forces(geometry, x0, _along(problem, x0, silent, samples.points, every)[1])
    x, multipliers = rough(asked, starting(problem, x0, FIRSTS[0], forces).bind(problem), taught, x0, num_constraints)
    for part in FIRSTS[1:]:  # a domain may be far larger than the way to go
        other = rough(asked, starting(problem, x0, part, forces).bind(problem), taught, x0, num_constraints)
        if loses(*taught.values(problem, x), *taught.values(problem, other[0])):
            x, multipliers = other
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((x, multipliers))):
        raise ValueError(
            f"on the way from x0 the loss, a constraint or a gradient is not finite within {taken} samples; look at "
            "them near x0, tighten the domain, or choose other units"
        )
    seen = _along(problem, x, multipliers, samples.points, every)
    directions, squares, sizes, constraints = map(np.asarray, seen)
    across, away = geometry.factor_diameters(x0), geometry.factor_norms(tree.subtract(x, x0))
    gone = max((float(np.max(far / np.where(wide > 0, wide, np.inf))) for far, wide in _pairs(away, across)), default=0)
    forces = _forces(geometry, x, squares)
    # Nor does a coordinate of a ball, whose width says little of it, count for less than this part of what others do.
    most = max(float(np.max(far * force)) for far, force in _pairs(away, forces)) if apart else np.inf

    def known(far: np.ndarray, wide: np.ndarray, force: np.ndarray) -> np.ndarray:
        least = min(LEAST, gone) * np.where(np.isfinite(wide), wide, 0)
        least = np.minimum(least, LEAST * most / np.where(force > 0, force, np.finfo(float).tiny))
        return np.where(np.maximum(far, least) > 0, np.maximum(far, least), 1)  # what is a point cannot move anyway

    distance = jax.tree.map(known, away, across, forces)
    even = _evenly(distance, across, forces)
    if independent:
        scales = Scales(distance, multipliers=np.asarray(multipliers))
        return Pilot(x, multipliers, taken, scales, 1.0, even, rule)
    long_run, ratio = _of_factors(geometry, x, directions, sizes, samples.every)
    variances, each = np.var(constraints, axis=0), long_run_variance(constraints)
    counts = each > COUNTS * variances
    each = variances + samples.every * (each - variances)
    ratio = max(ratio, float(np.max(each[counts] / variances[counts], initial=1.0)))
    return Pilot(
        x,
        multipliers,
        taken,
        Scales(distance, long_run, np.where(counts, each, 0.0), np.asarray(multipliers)),
        ratio,
        even,
        rule,
    )


def _forces(geometry: Geometry, x: PyTree, squares: Array) -> PyTree:
    """sqrt(E |d|^2) of each factor of the domain, from the means of the squares of the entries of d."""
    sizes = jnp.sqrt(jnp.asarray(squares)).astype(tree.dtype(x))
    return jax.tree.map(lambda leaf: np.asarray(leaf, float), geometry.factor_dual_norms(ravel_pytree(x)[1](sizes)))


def loses_to_start(problem: Problem, samples: Samples, x: PyTree, x0: PyTree, multipliers: Array) -> bool:
    """Whether x0 is better than x on these samples: by `trust.start.loses`, or by what constraints cost, which is
    2 l_i g_i where they are violated."""
    end, start = samples.values(problem, x), samples.values(problem, x0)
    dearer = _priced(*end, multipliers) - _priced(*start, multipliers)
    return loses(*end, *start) or loses(dearer, end[1][:, :0], np.zeros_like(dearer), start[1][:, :0])


def _priced(losses: np.ndarray, constraints: np.ndarray, multipliers: Array) -> np.ndarray:
    prices = np.where(constraints.mean(axis=0) > 0, 2 * np.asarray(multipliers, float), 0)
    return losses + constraints @ prices


def starting(problem: Problem, x0: PyTree, part: float, forces: PyTree = None) -> Algorithm:
    """SDPP that begins with this part of the diameters of the domain for its distances.

    Told the forces of all coordinates, each has a step of its own, and the more force, the less distance.
    """
    geometry = problem.geometry if forces is None else problem.geometry.by_coordinates()
    across = geometry.factor_diameters(x0)
    bounded = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(across))
    if forces is not None:
        most = max(float(np.max(leaf, initial=0)) for leaf in jax.tree.leaves(forces)) or 1.0
        forces = jax.tree.map(lambda leaf: np.maximum(leaf, WEAKEST * most), forces)
        least = min(float(np.min(leaf, initial=np.inf)) for leaf in jax.tree.leaves(forces))
        across = jax.tree.map(lambda wide, force: wide * (least / force), across, forces)
    schedule = Distances(first=tree.scale(across, part) if bounded else None)
    return dataclasses.replace(sdpp(), rule=ScaledDrift if forces is None else CoordinateDrift, schedule=schedule)


def _pairs(a: PyTree, b: PyTree) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(np.asarray(x), np.asarray(y)) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]


def rough(
    problem: Problem, method: Method, samples: Samples, x0: PyTree, num_constraints: int
) -> tuple[PyTree, jax.Array]:
    """The average point and multipliers of a scale-free method after these samples."""
    state = _after(problem, method, method.init(x0, num_constraints), samples.points, samples.rows)
    return state.schedule.x, state.schedule.pressure.multipliers


def rough_from(problem: Problem, method: Method, turns: list[Samples], x0: PyTree, multipliers: Array) -> list[PyTree]:
    """The average points alone, of runs over the same samples from several places on, in one call."""
    rows = np.stack([turn.rows for turn in turns])
    found = jax.tree.map(np.asarray, _in_turn(problem, method, x0, np.asarray(multipliers), turns[0].points, rows))
    return [jax.tree.map(lambda leaf, k=k: leaf[k], found) for k in range(len(turns))]


@compiled()
def _in_turn(
    problem: Problem, method: Method, x0: PyTree, multipliers: Array, points: tuple[PyTree, ...], rows: Array
) -> PyTree:
    state = method.init(x0, multipliers.shape[0])
    # One after the other: lanes side by side would not fit into the single function that makes a loop quick on a CPU.
    return jax.lax.map(lambda rows: _after(problem, method, state, points, rows).schedule.x, rows)


@compiled()
def _after(problem: Problem, method: Method, state: State, points: tuple[PyTree, ...], rows: Array) -> State:
    def one(state: State, rows: jax.Array) -> tuple[State, None]:
        feedback = ask(problem, state.x, _sample(points, rows), method.estimator, state=rows[0])
        return method.step(state, feedback)[0], None

    return jax.lax.scan(one, state, jnp.swapaxes(jnp.asarray(rows), 0, 1))[0]


def _sample(points: tuple[PyTree, ...], rows: Array) -> PyTree:
    if rows.ndim == 2:  # one batch
        real = rows[0] >= 0
        return Batch(jax.tree.map(lambda leaf: leaf[jnp.where(real, rows[0], rows[0, 0])], points[0]), real)
    parts = [jax.tree.map(lambda leaf, row=row: leaf[row], part) for part, row in zip(points, rows, strict=True)]
    return parts[0] if len(parts) == 1 else (parts[0][0], parts[1][1])  # of a pair, each part knows its own half


@compiled()
def _along(
    problem: Problem, x: PyTree, multipliers: jax.Array, points: tuple[PyTree, ...], rows: Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Some entries of d_t (n, columns), the means of its squares and its variances (d,), and g_t (n, constraints)."""

    def one(total: tuple[jax.Array, jax.Array], rows: jax.Array) -> tuple[PyTree, tuple[jax.Array, jax.Array]]:
        feedback = problem.feedback(x, _sample(points, rows))
        entries = ravel_pytree(lagrangian_grad(feedback, multipliers))[0]
        columns = np.linspace(0, entries.size - 1, min(COLUMNS, entries.size)).astype(int)
        return (total[0] + entries, total[1] + entries**2), (entries[columns], feedback.constraints)

    zero = jnp.zeros_like(ravel_pytree(x)[0])
    (total, squares), (directions, constraints) = jax.lax.scan(one, (zero, zero), jnp.asarray(rows).T)
    count = rows.shape[1]
    return directions, squares / count, squares / count - (total / count) ** 2, constraints


def _evenly(distance: PyTree, across: PyTree, sizes: PyTree) -> PyTree:
    """Distances of the same length as these, in units of the factors' diameters, but as the forces are, sqrt(E |d|^2).

    A factor's step is its distance over its force, so that all have the same.
    """
    wide = jax.tree.map(lambda w: np.where(np.isfinite(w) & (w > 0), w, 1.0), across)
    forces = jax.tree.map(lambda size, w: size * w, sizes, wide)
    way, force = (np.sqrt(sum(np.sum(np.square(part)) for part in parts)) for parts in (
        [far / w for far, w in _pairs(distance, wide)], jax.tree.leaves(forces)
    ))  # fmt: skip
    return jax.tree.map(
        lambda far, own, w: np.where(own > 0, w * way * own / (force or 1), far), distance, forces, wide
    )


def _of_factors(
    geometry: Geometry, x: PyTree, directions: np.ndarray, variances: np.ndarray, every: int
) -> tuple[PyTree, float]:
    """The long-run variance of the factors of d_t, 0 where it is no more than the variance; and the largest ratio."""
    unravel, looked_at = ravel_pytree(x)[1], np.var(directions, axis=0)

    def factors(squares: np.ndarray) -> PyTree:
        if len(squares) < len(variances):  # one ratio for all entries, from those looked at
            squares = variances * (squares.sum() / max(looked_at.sum(), np.finfo(float).tiny))
        sizes = geometry.factor_dual_norms(unravel(jnp.sqrt(jnp.maximum(squares, 0)).astype(tree.dtype(x))))
        return jax.tree.map(lambda leaf: np.square(np.asarray(leaf, dtype=float)), sizes)

    own = most = factors(variances)
    for level in allan_variances(directions):
        most = jax.tree.map(np.maximum, most, factors(level))
    # Rows that are each one of `every` stand for their neighbours, too; but chance must not be multiplied.
    long_run = jax.tree.map(lambda most, own: np.where(most > COUNTS * own, own + every * (most - own), 0.0), most, own)
    ratios = jax.tree.map(lambda most, own: np.max(most / np.where(own > 0, own, 1), initial=1.0), long_run, own)
    return long_run, float(max(jax.tree.leaves(ratios)))
