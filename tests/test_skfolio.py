"""The face towards skfolio: its rules are kept, chunks do not matter, and the optimum is MeanRisk's."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("skfolio")
pytest.importorskip("plotly")

from skfolio import RiskMeasure
from skfolio.model_selection import WalkForward, cross_val_predict, online_predict
from skfolio.optimization import MeanRisk, ObjectiveFunction
from sklearn.base import clone

from ergodrift.skfolio import OnlineConstrainedPortfolio

pytestmark = pytest.mark.x64("weights are compared with those of solvers in float64")


def returns(rows: int = 600, assets: int = 4, seed: int = 0) -> np.ndarray:
    """Shares that move together, some more than others."""
    rng = np.random.default_rng(seed)
    market = 0.008 * rng.standard_t(5, size=(rows, 1))
    return (
        3e-4 * np.arange(1, assets + 1)
        + market * np.linspace(0.5, 1.6, assets)
        + 0.006 * rng.normal(size=(rows, assets))
    )


@pytest.mark.slow
def test_chunks_do_not_matter():
    X = returns()
    whole = OnlineConstrainedPortfolio(max_cvar=0.02).fit(X)
    parts = OnlineConstrainedPortfolio(max_cvar=0.02)
    for first in range(0, len(X), 150):
        parts.partial_fit(X[first : first + 150])
    np.testing.assert_array_equal(whole.weights_, parts.weights_)
    weights: Any = whole.fit(X[:300]).weights_
    again: Any = clone(whole)
    np.testing.assert_array_equal(weights, again.fit(X[:300]).weights_)
    assert weights.sum() == pytest.approx(1)
    assert weights.min() >= 0
    assert whole.n_features_in_ == 4


@pytest.mark.slow
def test_many_passes_reach_what_mean_risk_finds():
    X = returns(2000)
    model = MeanRisk(
        objective_function=ObjectiveFunction.MAXIMIZE_RETURN,
        risk_measure=RiskMeasure.CVAR,
        max_cvar=0.02,
        min_weights=0,
    ).fit(X)
    ours = OnlineConstrainedPortfolio(ObjectiveFunction.MAXIMIZE_RETURN, max_cvar=0.02)
    for _ in range(20):
        ours.partial_fit(X)

    def tail(w: np.ndarray) -> float:
        day = np.sort(X @ w)
        return -day[: len(day) // 20].mean()

    assert tail(ours.weights_) == pytest.approx(tail(model.weights_), rel=0.03)
    assert (X @ ours.weights_).mean() == pytest.approx((X @ model.weights_).mean(), rel=0.04)


def test_it_walks_forward_in_batch_and_online():
    X = returns(300)
    model = OnlineConstrainedPortfolio(max_cvar=0.02, max_turnover=0.3)
    online = online_predict(model, X, warmup_size=100, test_size=50)
    batch = cross_val_predict(model, X, cv=WalkForward(test_size=50, train_size=100))
    assert len(online) == len(batch) == 4
    np.testing.assert_allclose(online[0].weights, batch[0].weights, atol=1e-12)  # both learned from the same 100 rows
    steps = [np.abs(b.weights - a.weights).sum() for a, b in itertools.pairwise(online)]
    assert max(steps) <= 0.3 + 1e-12


def test_weights_keep_their_cap_and_turnover():
    X = returns()
    capped = OnlineConstrainedPortfolio(min_return=1e-4, max_weights=0.4).fit(X)
    assert np.asarray(capped.weights_).max() <= 0.4 + 1e-12
    held = np.array([0.0, 0.0, 0.0, 1.0])
    slow = OnlineConstrainedPortfolio(max_cvar=0.02, max_turnover=0.1, previous_weights=held).fit(X)
    assert np.abs(slow.weights_ - held).sum() == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give max_cvar or min_return"),
        ({"max_cvar": -1.0}, "max_cvar must be .*> 0, got -1.0"),
        ({"max_cvar": 0.02, "cvar_beta": 1.0}, "cvar_beta must be .*< 1, got 1.0"),
        ({"max_cvar": 0.02, "max_weights": 0.1}, "4 entries of at most cap=0.1 cannot make a total of 1.0"),
        (
            {"max_cvar": 0.02, "objective_function": ObjectiveFunction.MAXIMIZE_RATIO},
            "objective_function must be one of",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        OnlineConstrainedPortfolio(**options).fit(returns(50))
