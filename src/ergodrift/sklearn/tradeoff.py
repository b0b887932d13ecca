"""What limits cost: the loss at several limits, from runs that are one compiled sweep."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift.engine.run import run
from ergodrift.sklearn import solver as solving
from ergodrift.sklearn.cells import Part
from ergodrift.sklearn.table import costs
from ergodrift.sklearn.tighten import Model, Tightening

ROWS = 30_000  # that a sweep looks at, evenly spread over those given
POINTS = 8
TURNS = 4


class Tradeoff(NamedTuple):
    """The loss at several limits.

    Attributes:
        factors: (k,) what the limits asked for are multiplied by, 1 among them.
        losses: (k,) the mean loss of a model that keeps them.
        worst: (k,) the largest value on the rows looked at, as a multiple of the limit asked for.
        free_loss: the mean loss without constraints.
        free_worst: and the largest value then.
        num_rows: looked at.
    """

    factors: np.ndarray
    losses: np.ndarray
    worst: np.ndarray
    free_loss: float
    free_worst: float
    num_rows: int


def tradeoff(estimator: Any, X: Any, y: Any, *, sensitive_features: Any = None) -> Tradeoff | None:
    """How the loss of a fitted estimator's model would change with its limits; None where no limit can be scaled.

    All limits are solved for at once: they are numbers to the compiled loop, so the runs are one `jax.vmap`.

    Args:
        estimator: a fitted `ConstrainedClassifier` or `ConstrainedRegressor`, with constraints.
        X, y, sensitive_features: rows, as it was fitted on them; `ROWS` of them are looked at.
    """
    asked = estimator._asked_for
    if not len(asked.limits) or not (asked.bounds > 0).all():
        return None
    every = max(-(-len(y) // ROWS), 1)
    weighed = costs(asked.constraints, X, y)
    X, y, weights = estimator._validated(X, y, None, reset=False)
    _, group = estimator._grouped(asked.constraints, sensitive_features, len(y), estimator.groups_)
    part = Part(X, y, group, weights, weighed).cut(slice(None, None, every))
    sweep = _sweep_of(estimator, part)
    free = sweep.free
    highest = _worst(free, sweep.bounds)
    if not highest > 0:
        return None  # groups that these rows do not show, or nothing to limit
    top = max(1.25 * highest, 2.0)
    factors = np.unique(np.append(np.geomspace(min(0.25, 0.5 * highest), top, POINTS), 1.0))
    models = [free] * len(factors)
    for turn in range(TURNS):
        models = _turn(sweep, models, factors[:, None] * sweep.bounds, 1.0 if turn < 2 else 0.6)
    models = [sweep.scaled(model) for model in models]
    losses, worst = [model.loss for model in models], [_worst(model, sweep.bounds) for model in models]
    return Tradeoff(factors, np.array(losses), np.array(worst), free.loss, highest, len(part))


def _sweep_of(estimator: Any, part: Part) -> Tightening:
    """The problem of the fit on these rows, without any that are held out."""
    asked, (scaling, _, unit, centre) = estimator._asked_for, estimator._begun
    design = scaling.design(part.X, jax.dtypes.canonicalize_dtype(float))
    found = solving.Solver(
        design, (asked.target(part.y) - centre) / unit, part.weights / part.weights.mean(), family=estimator._family,
        loss=estimator.loss, setting=estimator._inner_setting(), radius=estimator.radius,
        num_limits=len(asked.limits), num_classes=asked.num_classes, algorithm=estimator._algorithm, epochs=None,
        order="shuffled", batch_size=None, seed=0,
    )  # fmt: skip
    return Tightening(found, asked, part, design, None, unit, centre, 0.95)


def _kept(x: jax.Array, xi: Any) -> jax.Array:
    """Tangents hold no sample: by sample there is nothing to keep."""
    return jnp.zeros(1, x.dtype)


def _worst(model: Model, bounds: np.ndarray) -> float:
    return float(np.nanmax(model.values / bounds, initial=0.0))


def _tangents(sweep: Tightening, now: Model, limits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tangents at a point and what they are limited by, filled up with such as always hold."""
    solver = sweep.solver
    above = np.where(np.isfinite(now.values), (now.values - limits) / limits, -np.inf)
    rows = np.sort(np.argsort(-above, kind="stable")[: solver.num_tangents])
    rows = rows[np.isfinite(now.values[rows])]
    normals = np.zeros((solver.num_tangents, *now.x.shape))
    scores = sweep.scores(now.x, sweep.design)
    normals[: len(rows)] = sweep.unit * sweep.asked.tangents(scores, sweep.part, sweep.design, rows, sweep.members)
    bounds = np.ones(solver.num_tangents)
    bounds[: len(rows)] = limits[rows] - now.values[rows]
    bounds[: len(rows)] += normals[: len(rows)].reshape(len(rows), -1) @ now.x.ravel()
    return normals, bounds


def _turn(sweep: Tightening, models: list[Model], limits: np.ndarray, share: float) -> list[Model]:
    """A step of every model at its own limits, with tangents at its own point; one run for all."""
    solver, kind = sweep.solver, sweep.solver.start.dtype
    tangents = [_tangents(sweep, model, own) for model, own in zip(models, limits, strict=True)]
    algorithm = solver.algorithm(0.02 * max(float(np.linalg.norm(model.x)) for model in models) + 1e-3 * sweep.unit)

    def solved(start: jax.Array, normals: jax.Array, bounds: jax.Array) -> Any:
        problem = solving.Tangents(solver.loss, _kept, solver.geometry, normals)
        told: dict[str, Any] = {"seeds": [solver.seed], "record": 1, "paths": solver.paths, "margin": -bounds}
        return run(algorithm, problem, solver.source, x0=start, **told).solution

    starts, normals, bounds = (
        jnp.asarray(np.stack(parts), kind) for parts in ([model.x for model in models], *zip(*tangents, strict=True))
    )
    points = np.asarray(jax.vmap(solved)(starts, normals, bounds), dtype=float)[:, 0]
    return [
        sweep.model(model.x + share * (x - model.x), model.multipliers, model.result)
        for model, x in zip(models, points, strict=True)
    ]
