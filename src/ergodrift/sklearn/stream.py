"""Rows that are read once, as they come, in chunks of any size: what is learned depends on the rows alone.

The first rows, `FIRST` of them, are kept until they are there: they tell the units of features and target. From then on
a learner takes them in, one by one or in batches, and every constraint is the tangent of its smoothed form at the
present point, for the rows at hand; shares of groups are those so far.
"""

from __future__ import annotations

import copy
import functools
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from ergodrift.engine.learner import Learner
from ergodrift.geometry import Ball
from ergodrift.methods.algorithms import Algorithm
from ergodrift.problem import Problem
from ergodrift.sklearn.cells import ALL, Asked, Cell, Part, Row
from ergodrift.sklearn.losses import FAMILIES, REGRESSION, SHARPNESS, Loss, softmax
from ergodrift.sklearn.table import Scaling, target_units
from ergodrift.types import PyTree

FIRST = 256  # rows that tell the units
SLOTS = 8  # groups that there is room for, at least
CHUNK = 4096  # rows made ready at a time


@functools.cache
def functions(
    family: str, name: str, outcomes: tuple[Cell, ...], plain: tuple[Any, ...]
) -> tuple[Callable[[PyTree, PyTree], jax.Array], Callable[[PyTree, PyTree], jax.Array]]:
    """Loss and constraints of a batch of rows; one pair for all estimators of a kind.

    A batch has "a" (B, d), "y", "w" (B,), "setting", "unit" and "centre" (), "factors" (B, m, outcomes) and "limits"
    (m,); with plain functions also "x" (B, features) and "group" (B,).
    """
    loss: Loss = FAMILIES[family][name]

    def scores(x: PyTree, xi: PyTree) -> PyTree:
        return xi["a"] @ x

    def mean_loss(x: PyTree, xi: PyTree) -> jax.Array:
        return jnp.mean(xi["w"] * loss.value(jnp, scores(x, xi), xi["y"], xi["setting"]))

    def one(cell: Cell, own: PyTree, said: PyTree, target: PyTree, xi: PyTree) -> jax.Array:
        """What stands for an outcome, (B,); `said` and `target` are in the units of y."""
        if cell.outcome in ("decision", "cost", "error") and family != "regression":
            if own.ndim == 1:
                sign = xi["y"] * -1.0 if cell.outcome == "error" else 1.0 if cell.cls == 1 else -1.0
                return jax.nn.sigmoid(SHARPNESS * sign * own)
            each = softmax(jnp, SHARPNESS * own)
            if cell.outcome == "error":
                own_class = jax.nn.one_hot(xi["y"].astype(jnp.int32), own.shape[-1], dtype=own.dtype)
                return 1 - jnp.sum(each * own_class, axis=-1)
            return each[..., cell.cls]
        if cell.outcome == "cost":
            return said
        if cell.outcome == "plain":
            return jax.vmap(plain[cell.source])(said, Row(xi["x"], target, xi["group"]))
        kind = loss if cell.outcome == "loss" else REGRESSION[cell.outcome]
        setting = xi["setting"] * xi["unit"] if name == "huber" else xi["setting"]
        return kind.value(jnp, said, target, setting)

    def constraints(x: PyTree, xi: PyTree) -> jax.Array:
        own = scores(x, xi)
        unit, centre = xi["unit"], xi["centre"]
        said = unit * own + centre if family == "regression" else own
        target = unit * xi["y"] + centre if family == "regression" else xi["y"]
        if not outcomes:
            return -jnp.ones(1, own.dtype)
        z = jnp.stack([one(cell, own, said, target, xi) for cell in outcomes], axis=-1)
        each = jnp.sum(xi["factors"] * z[:, None, :], axis=-1)
        return jnp.mean(each, axis=0) - xi["limits"]

    return mean_loss, constraints


class Stream:
    """What an estimator has learned from rows read once.

    Args:
        constraints: as they were given.
        classes: labels; none in a regression.
        family, loss, setting: of the loss.
        radius: of the ball of coefficients.
        algorithm: that learns.
        batch: rows of a step.
        begun: scaling, coefficients and units to begin with, where a table was fitted before.
    """

    def __init__(
        self, constraints: tuple[Any, ...], classes: Sequence[Any], *, family: str, loss: str, setting: float,
        radius: float, algorithm: Algorithm, batch: int,
        begun: tuple[Scaling, np.ndarray, float, float] | None = None,
    ) -> None:  # fmt: skip
        self.constraints, self.classes = constraints, list(classes)
        self.family, self.loss, self.setting, self.radius = family, loss, setting, radius
        self.algorithm, self.batch, self.begun = algorithm, batch, begun
        self.rows = 0
        self.groups: list[str] = []
        self.waiting: list[Part] = []  # rows that are not learned from yet
        self.learner: Learner | None = None

    def learn(self, part: Part, groups: list[str]) -> None:
        """Take in rows, in order."""
        if self.learner is not None and len(groups) > self.slots:
            raise ValueError(
                f"sensitive_features has {len(groups)} groups by now, and there is room for {self.slots}, twice as "
                f"many as in the first {FIRST} rows: call fit on a table that has them all before partial_fit"
            )
        self.groups = groups
        self.rows += len(part)
        self.waiting.append(_dense(part))
        if self.learner is None:
            if sum(map(len, self.waiting)) < FIRST and self.begun is None:
                return
            self._begin()
        self._take(flush=False)

    def _begin(self) -> None:
        first = joined(self.waiting).cut(slice(FIRST))
        if self.begun is None:
            self.unit, self.centre = target_units(first) if self.family == "regression" else (1.0, 0.0)
            self.scaling = Scaling.of(first.X, first.weights)
            start = np.zeros((self.scaling.width, *([len(self.classes)] if self.family == "multiclass" else [])))
        else:
            self.scaling, start, self.unit, self.centre = copy.deepcopy(self.begun)
        self.slots = max(SLOTS, 2 ** int(np.ceil(np.log2(max(2 * len(self.groups), 1))))) if self.groups else 0
        self.means = self._asked()
        keys = {cell._replace(group=ALL, event="all"): None for cell in self.means.cells}
        self.outcomes = tuple(keys)
        self.counts, self.total = np.zeros(len(self.means.cells)), 0.0
        self.kind = jax.dtypes.canonicalize_dtype(float)
        example = {name: column[0] for name, column in self._samples(first.cut(slice(1))).items()}
        self.counts, self.total = np.zeros(len(self.means.cells)), 0.0  # the example is no row yet
        self.learner = Learner(self.algorithm, self._problem(), start.astype(self.kind), example=example)

    def _asked(self) -> Asked:
        """What is asked for, with places for groups that have not come yet."""
        names = [*self.groups, *(f"group {number}" for number in range(len(self.groups), self.slots))]
        setting = self.setting * (self.unit if self.loss == "huber" else 1.0)
        told = (self.constraints, names, self.classes, (self.family, self.loss), setting)
        return Asked.of(*told, to_overall=True)

    def _problem(self) -> Problem:
        plain = self.means.constraints if any(cell.outcome == "plain" for cell in self.outcomes) else ()
        return Problem(*functions(self.family, self.loss, self.outcomes, tuple(plain)), Ball(self.radius))

    def _take(self, flush: bool) -> None:
        """Learn from the rows that wait, as far as they fill batches; with `flush` from all of them."""
        rows = joined(self.waiting)
        count = len(rows) if flush else len(rows) // self.batch * self.batch
        self.waiting = [rows.cut(slice(count, None))] if count < len(rows) else []
        step = max(CHUNK // self.batch, 1) * self.batch
        for start in range(0, count, step):
            samples = self._samples(rows.cut(slice(start, min(start + step, count))))
            assert self.learner is not None
            self.learner.learn(samples)

    def _samples(self, part: Part) -> dict[str, np.ndarray]:
        """Rows as batches for the learner."""
        self._new_units(part.X)
        size, count = self.batch, len(part)
        filled = -count % size
        weights = part.weights
        columns = {
            "a": self.scaling.design(part.X, self.kind),
            "y": (self.means.target(part.y) - self.centre) / self.unit,
            "w": weights,
            "factors": self._factors(part),
        }
        if any(cell.outcome == "plain" for cell in self.outcomes):
            columns["x"] = part.X
            columns["group"] = np.full(count, -1.0) if part.groups is None else part.groups.astype(float)
        steps = (count + filled) // size
        batches = {
            name: np.concatenate([column, np.zeros((filled, *column.shape[1:]))]).reshape(
                steps, size, *column.shape[1:]
            )
            for name, column in columns.items()
        }
        fixed = {"setting": self.setting, "unit": self.unit, "centre": self.centre, "limits": self.means.bounds}
        batches |= {name: np.broadcast_to(value, (steps, *np.shape(value))) for name, value in fixed.items()}
        return {name: np.asarray(column, dtype=self.kind) for name, column in batches.items()}

    def _new_units(self, X: np.ndarray) -> None:
        """A column that has been constant so far, and is no more, has the size of its first change for its unit."""
        scale, constant = self.scaling.scale, self.scaling.constant
        for column in np.flatnonzero(constant):
            off = np.abs(X[:, column] - self.scaling.mean[column])
            moved = np.flatnonzero(off > 1e-9 * abs(self.scaling.mean[column]))
            if moved.size:
                scale[column], constant[column] = off[moved[0]], False

    def _factors(self, part: Part) -> np.ndarray:
        """(n, m, outcomes): what each outcome of a row counts in each limit, by the shares of cells so far."""
        cells, matrix = self.means.cells, self.means.matrix.toarray()
        inside = (
            np.column_stack([self.means.inside(cell, part) for cell in cells]) if cells else np.zeros((len(part), 0))
        )
        weighed = inside * part.weights[:, None]
        before = np.concatenate([self.counts[None], weighed])
        seen = np.cumsum(before, axis=0)[1:]
        total = np.cumsum(np.concatenate([[self.total], part.weights]))[1:]
        if len(part):
            self.counts, self.total = seen[-1], total[-1]
        share = np.divide(weighed * total[:, None], seen, out=np.zeros_like(seen), where=seen > 0)
        for number, cell in enumerate(cells):
            if cell.outcome == "cost":
                share[:, number] = share[:, number] * part.costs[cell.source]
        places = {key: place for place, key in enumerate(self.outcomes)}
        of = np.array([places[cell._replace(group=ALL, event="all")] for cell in cells], dtype=int)
        out = np.zeros((len(part), len(matrix), len(self.outcomes)))
        for number in range(len(cells)):
            out[:, :, of[number]] += share[:, [number]] * matrix[:, number]
        # A limit on groups of which one has not come yet says nothing.
        unseen = (seen == 0).astype(float) @ (matrix != 0).T
        return out * (unseen == 0)[:, :, None]

    def now(self) -> Stream:
        """As if the rows so far were all: what waits is learned from, in a copy."""
        if self.learner is not None and not self.waiting:
            return self
        ended = copy.copy(self)
        ended.waiting = list(self.waiting)
        if self.learner is None:
            ended._begin()
        else:
            ended.learner = copy.deepcopy(self.learner)
            ended.scaling = copy.deepcopy(self.scaling)
        ended._take(flush=True)
        return ended

    def limits_seen(self) -> dict[int, str]:
        """The limits on groups that there are, by number, with their names: others only keep their places."""
        cells, limits = self.means.cells, enumerate(self._asked().limits)
        here = max(len(self.groups), 1)
        return {k: limit.name for k, limit in limits if all(cells[c].group < here for _, c in limit.terms)}

    @property
    def x(self) -> np.ndarray:
        """The coefficients, in the units of the design."""
        assert self.learner is not None
        return np.asarray(self.learner.solution, dtype=float)

    # Pickling: a learner is kept as the file that it writes.

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if self.learner is not None and self.learner.samples_seen:
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "learner.npz")
                self.learner.save(path)
                with open(path, "rb") as file:
                    state["learner"] = file.read()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(state["learner"], bytes):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "learner.npz")
                with open(path, "wb") as file:
                    file.write(state["learner"])
                self.learner = Learner.load(path, self._problem(), self.algorithm)


def _dense(part: Part) -> Part:
    X = part.X.toarray() if scipy.sparse.issparse(part.X) else part.X
    return Part(X, part.y, part.groups, part.weights, part.costs)


def joined(parts: list[Part]) -> Part:
    """One part of several, in order."""
    if len(parts) == 1:
        return parts[0]
    groups = None if parts[0].groups is None else np.concatenate([np.asarray(part.groups) for part in parts])
    costs = {key: np.concatenate([part.costs[key] for part in parts]) for key in parts[0].costs}
    X, y, weights = (np.concatenate([getattr(part, name) for part in parts]) for name in ("X", "y", "weights"))
    return Part(X, y, groups, weights, costs)
