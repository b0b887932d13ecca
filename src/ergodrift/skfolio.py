"""Portfolios by skfolio's rules that learn from each day once: an optimiser for its walks forward, batch and online."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import check
from ergodrift._core.extras import absent
from ergodrift.engine.learner import Learner
from ergodrift.geometry import Box, CappedSimplex, Geometry, Product, Simplex
from ergodrift.methods.algorithms import Algorithm, sdpp
from ergodrift.problem import Problem
from ergodrift.types import PyTree

try:
    import skfolio  # noqa: F401  # pyright: ignore[reportUnusedImport]
    from skfolio.optimization import BaseOptimization, ObjectiveFunction
    from sklearn.utils.validation import validate_data
except ModuleNotFoundError as error:
    raise absent("ergodrift.skfolio", "skfolio", error) from error

WORST = 0.2  # a loss of a day, as a fraction, that bounds the value at risk
GOALS = (ObjectiveFunction.MINIMIZE_RISK, ObjectiveFunction.MAXIMIZE_RETURN)


class OnlineConstrainedPortfolio(BaseOptimization):
    """Least variance, or most return, under budgets that hold in expectation; each row of returns is seen once.

    Minimise E[(w.r)^2], or E[-w.r], over long-only weights, subject to CVaR(w.r) <= max_cvar (Rockafellar and Uryasev
    2000) and E[w.r] >= min_return. Parameters are named as in `MeanRisk`, which solves the same problem anew on each
    window; here `partial_fit` goes on from where the rows before have led, at a cost that does not grow. `fit` forgets
    them first. Works in `cross_val_predict`, `WalkForward` and `online_predict`.

    Args:
        objective_function: `ObjectiveFunction.MINIMIZE_RISK` (variance) or `MAXIMIZE_RETURN`.
        max_cvar: the largest mean loss over the worst 1 - cvar_beta of rows, as a fraction; no limit unless given.
        min_return: the least mean return of a row; no limit unless given.
        cvar_beta: the level of the CVaR.
        max_weights: the largest weight of an asset; 1 unless given.
        max_turnover: the most that sum |w - w_before| may be at one call, w_before being `previous_weights` or what the
            call before returned; the weights go as far towards the learned ones.
        algorithm: such as `ed.sdpp()`, the default, which has nothing to tune.
        portfolio_params: as in skfolio.
        fallback: as in skfolio.
        previous_weights: as in skfolio.
        raise_on_failure: as in skfolio.

    Attributes:
        weights_: (n_assets,).
        learner_: the `ed.Learner`, which can be watched, saved and asked for its queue.

    >>> import numpy as np
    >>> returns = 0.01 * np.random.default_rng(0).normal(size=(400, 3)) * [1.0, 2.0, 3.0]
    >>> model = OnlineConstrainedPortfolio(max_cvar=0.02).fit(returns[:300]).partial_fit(returns[300:])
    >>> model.weights_.shape, bool(model.weights_[0] > model.weights_[2]), model.learner_.samples_seen
    ((3,), True, 400)
    """

    learner_: Learner

    def __init__(
        self,
        objective_function: ObjectiveFunction = ObjectiveFunction.MINIMIZE_RISK,
        max_cvar: float | None = None,
        min_return: float | None = None,
        cvar_beta: float = 0.95,
        max_weights: float | None = None,
        max_turnover: float | None = None,
        algorithm: Algorithm | None = None,
        portfolio_params: dict[str, Any] | None = None,
        fallback: Any = None,
        previous_weights: Any = None,
        raise_on_failure: bool = True,
    ) -> None:
        super().__init__(portfolio_params, fallback, previous_weights, raise_on_failure)
        self.objective_function = objective_function
        self.max_cvar = max_cvar
        self.min_return = min_return
        self.cvar_beta = cvar_beta
        self.max_weights = max_weights
        self.max_turnover = max_turnover
        self.algorithm = algorithm

    def fit(self, X: Any, y: Any = None, **fit_params: Any) -> OnlineConstrainedPortfolio:
        """Forget what was learned, and learn from all rows of X (n_observations, n_assets) in their order."""
        for name in ("learner_", "weights_"):
            if hasattr(self, name):
                delattr(self, name)
        return self.partial_fit(X, y)

    def partial_fit(self, X: Any, y: Any = None, **fit_params: Any) -> OnlineConstrainedPortfolio:
        """Learn from further rows, which come after those before."""
        first = not hasattr(self, "learner_")
        rows = np.asarray(validate_data(self, X, reset=first), dtype=float)
        if first:
            problem, x0 = self._problem(rows.shape[1])
            self.learner_ = Learner(sdpp() if self.algorithm is None else self.algorithm, problem, x0, example=rows[0])
        self.learner_.learn(rows)
        learned = np.maximum(np.asarray(self.learner_.solution["w"], dtype=float), 0)
        self.weights_ = self._towards(learned / learned.sum())
        self.error_ = self.fallback_ = self.fallback_chain_ = None
        return self

    def _problem(self, assets: int) -> tuple[Problem, PyTree]:
        if self.objective_function not in GOALS:
            raise ValueError(
                f"objective_function must be one of {[g.name for g in GOALS]}, got {self.objective_function!r}"
            )
        if self.max_cvar is None and self.min_return is None:
            raise ValueError("give max_cvar or min_return: without a budget there is nothing to constrain")
        level = check.number("cvar_beta", self.cvar_beta, above=0, below=1)
        tail = None if self.max_cvar is None else check.number("max_cvar", self.max_cvar, above=0)
        least = None if self.min_return is None else check.number("min_return", self.min_return)
        cap = None if self.max_weights is None else check.number("max_weights", self.max_weights, above=0, at_most=1)
        most_return = self.objective_function == ObjectiveFunction.MAXIMIZE_RETURN
        problem, x0 = _problem_of(most_return, tail, least, level, cap), np.full(assets, 1 / assets)
        point = {"w": x0, "v": np.zeros(1)}
        problem.geometry.check(point)
        return problem, point

    def _towards(self, wanted: np.ndarray) -> np.ndarray:
        """The learned weights, or as far towards them as turnover allows."""
        before = getattr(self, "weights_", None)
        if before is None and self.previous_weights is not None:
            before = np.broadcast_to(np.asarray(self.previous_weights, dtype=float), wanted.shape)
        if self.max_turnover is None or before is None:
            return wanted
        most = check.number("max_turnover", self.max_turnover, above=0)
        return before + min(1.0, most / max(np.abs(wanted - before).sum(), 1e-300)) * (wanted - before)


@functools.lru_cache(maxsize=32)  # the same functions for the same numbers: a walk forward compiles once
def _problem_of(most_return: bool, tail: float | None, least: float | None, level: float, cap: float | None) -> Problem:
    def loss(x: PyTree, xi: PyTree) -> jax.Array:
        gained = x["w"] @ xi
        return -gained if most_return else jnp.square(gained)

    def constraints(x: PyTree, xi: PyTree) -> jax.Array:
        gained, found = x["w"] @ xi, []
        if tail is not None:
            found.append(x["v"][0] + jnp.maximum(-gained - x["v"][0], 0) / (1 - level) - tail)
        if least is not None:
            found.append(least - gained)
        return jnp.stack(found)

    weights: Geometry = Simplex() if cap is None else CappedSimplex(cap)
    return Problem(loss, constraints, Product({"w": weights, "v": Box(np.zeros(1), np.full(1, WORST))}))
