"""What a point is worth on a task: under the law it was fitted to, and on later data."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from ergodrift.data.expectation import expectations
from ergodrift.peers.task import Optimum, Task
from ergodrift.trust.certify import certify
from ergodrift.types import Array, PyTree

FLOOR = 1e-5  # of x0's gap: references are known no better, so gaps below count as equal
BLIND = 0.05  # of x0's merit: a point with more of it and no gap shows that the gap is blind on a task
LAST = 1e-9  # the weight of merit: it decides where all else is equal


class Values(NamedTuple):
    """Of points under the law of the training part, one entry each.

    Attributes:
        gap: L(x, l*) - L(x*, l*), with L(x, l) = E f(x) + l.E g(x): not negative, and the same for all who stay on the
            right side of the constraints or not.
        merit: E f(x) - f* + 2 l*.[E g(x)]_+, which is 0 at optimal points alone: the gap, and l*.|E g(x)| more. In a
            linear program the gap is 0 at wrong points too, where a violation is paid for by the loss it saves.
        loss: E f(x).
        violation: the largest E g_i(x).
    """

    gap: np.ndarray
    merit: np.ndarray
    loss: np.ndarray
    violation: np.ndarray


def blind(gap: np.ndarray, merit: np.ndarray) -> bool:
    """Whether some point has no gap and is far from optimal all the same, as in linear programs; in units of x0's."""
    return bool(np.any((gap < FLOOR) & (merit > BLIND)))


class Judge:
    """A task's law and its optimum, from a solver that is not ours."""

    def __init__(self, task: Task) -> None:
        self.task = task
        flat, unravel = ravel_pytree(jax.tree.map(np.asarray, task.x0))
        self.x0, self.unravel = np.asarray(flat), cast("Callable[[Array], PyTree]", unravel)
        self.start = self(self.x0[None])  # the values of x0: the units of all others

    @functools.cached_property
    def optimum(self) -> Optimum:
        return self.task.optimum()

    @functools.cached_property
    def _best(self) -> tuple[float, np.ndarray]:
        """f* and g(x*)."""
        loss, constraints = expectations(self.task.problem, self.task.source, self.optimum.x)
        return float(loss), constraints

    def __call__(self, points: np.ndarray) -> Values:
        """Values of flat points (k, d); NaN where a point is not finite."""
        points = np.asarray(points)
        finite = np.isfinite(points).all(axis=1)
        stacked = jax.vmap(self.unravel)(np.where(np.expand_dims(finite, 1), points, self.x0))
        losses, constraints = expectations(self.task.problem, self.task.source, stacked, axes=1)
        losses = np.where(finite, losses, np.nan)
        best, at_best = self._best
        multipliers = np.asarray(self.optimum.multipliers, float)
        gap = losses - best + (constraints - at_best) @ multipliers
        merit = losses - best + 2 * np.maximum(constraints, 0) @ multipliers
        return Values(gap, merit, losses, np.where(finite, constraints.max(axis=1), np.nan))

    def scores(self, points: np.ndarray, by: str | None = None) -> tuple[np.ndarray, str]:
        """By what settings are chosen in hindsight: means over seeds, (settings, seeds, ..., d) without seeds and d.

        That is the gap and, among gaps that count as equal, merit; merit alone where the gap shows itself blind, unless
        `by` says which. Returns which it was, too.
        """
        values = self(points.reshape(-1, points.shape[-1]))
        gap, merit = (part.reshape(points.shape[:-1]).mean(axis=1) for part in (values.gap, values.merit))
        gap, merit = gap / self.start.gap[0], merit / self.start.merit[0]
        by = by or ("merit" if blind(gap, merit) else "gap")
        found = merit if by == "merit" else np.maximum(gap, FLOOR) + LAST * merit
        return np.where(np.isfinite(found), found, np.inf), by

    def later(self, point: np.ndarray) -> dict[str, Any]:
        """The constraint that does worst on later data, with an interval that dependence does not void."""
        task, source = self.task, self.task.later or self.task.source
        samples = task.num_samples if source.length is None else None
        try:
            found = certify(task.problem, self.point(point), source, num_samples=samples)
        except ValueError as error:
            return {"verdict": f"none: {error}"}
        worst = int(np.argmax(found.estimate))
        ends = {"violation": found.estimate[worst], "lower": found.lower[worst], "upper": found.upper[worst]}
        verdict = "violated" if "violated" in found.verdict else "satisfied" if found.satisfied else "undecided"
        return {**{name: float(end) for name, end in ends.items()}, "loss": found.loss_estimate, "verdict": verdict}

    def flat(self, x: PyTree) -> np.ndarray:
        """A point of the problem as one vector in float64."""
        return np.asarray(ravel_pytree(jax.tree.map(np.asarray, x))[0], float)

    def point(self, flat: np.ndarray) -> PyTree:
        """A flat point as the problem has it."""
        return self.unravel(np.asarray(flat, self.x0.dtype))
