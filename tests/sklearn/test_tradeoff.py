"""The sweep of limits: tighter ones cost more, all are kept, and wide ones cost nothing."""

import numpy as np
import pytest

from ergodrift.sklearn import ConstrainedClassifier, DemographicParity
from ergodrift.sklearn.tradeoff import tradeoff


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    group = rng.choice(["a", "b"], 4000)
    X = rng.normal(size=(4000, 3)) + np.array([1.0, 0.0, 0.0]) * (group == "a")[:, None]
    return X, (X @ [1.5, 1.0, 0.0] + rng.logistic(size=4000) > 0.5).astype(int), group


@pytest.mark.slow
def test_loss_against_limit(rows):
    X, y, group = rows
    fitted = ConstrainedClassifier(constraints=DemographicParity(0.2), random_state=0)
    fitted.fit(X, y, sensitive_features=group)
    found = tradeoff(fitted, X, y, sensitive_features=group)
    assert found is not None
    assert found.num_rows == 4000
    assert 1.0 in found.factors
    # Rates of 2,000 rows a group are met to a few rows; the sigmoid that stands for a decision adds a little.
    binding = found.factors < found.free_worst
    assert (found.worst <= np.maximum(found.factors, 0) + 0.08).all()
    assert (np.diff(found.losses) <= 2e-3).all()
    assert found.losses[0] > found.free_loss + 0.01
    np.testing.assert_allclose(found.losses[~binding], found.free_loss, rtol=5e-3)


def test_without_limits_there_is_nothing_to_trade(rows):
    X, y, _ = rows
    fitted = ConstrainedClassifier(random_state=0).fit(X[:500], y[:500])
    assert tradeoff(fitted, X[:500], y[:500]) is None
