"""Estimators: optima against an independent solver, certificates, units, tables as people have them, refusals."""

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import sklearn
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, LogisticRegression, QuantileRegressor
from sklearn.model_selection import GridSearchCV, TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ergodrift.sklearn import (
    BoundedGroupLoss,
    ConstrainedClassifier,
    ConstrainedRegressor,
    DemographicParity,
    EqualizedOdds,
    FalsePositiveRateBelow,
    MeanBelow,
)

N = 4000


def copied(model) -> Any:
    """scikit-learn's `clone`, of which types are not known."""
    return clone(model)


def people(seed=0, n=N):
    """Two groups whose features differ, and whose labels do."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    group = np.where(X[:, 0] + rng.normal(size=n) > 0, "a", "b")
    y = np.where(X @ [1.0, 1.0, 0.0] + rng.logistic(size=n) > 0, "yes", "no")
    return X, y, group


def gap(model, X, group):
    said = model.predict(X) == "yes"
    return said[group == "a"].mean() - said[group == "b"].mean()


@pytest.fixture(scope="module")
def fair():
    X, y, group = people()
    return ConstrainedClassifier(constraints=DemographicParity(0.2), random_state=0).fit(X, y, sensitive_features=group)


def smooth_optimum(X, y, group, bound):
    """The least logistic loss whose smoothed rates differ by no more than the bound, by SLSQP."""
    Z, sign = np.column_stack([X, np.ones(len(X))]), np.where(y == "yes", 1.0, -1.0)

    def rate_gap(x):
        p = 1 / (1 + np.exp(-4 * (Z @ x)))
        return p[group == "a"].mean() - p[group == "b"].mean()

    told = [
        {"type": "ineq", "fun": lambda x: bound - rate_gap(x)},
        {"type": "ineq", "fun": lambda x: bound + rate_gap(x)},
    ]
    found = minimize(lambda x: np.logaddexp(0, -sign * (Z @ x)).mean(), np.zeros(4), method="SLSQP", constraints=told)
    assert found.success
    return found.fun


def test_the_loss_is_that_of_an_independent_solver_with_the_same_gap(fair):
    X, y, group = people()
    X, y, group = X[:3200], y[:3200], group[:3200]
    sign = np.where(y == "yes", 1.0, -1.0)
    ours = np.logaddexp(0, -sign * fair.decision_function(X)).mean()
    Z = np.column_stack([X, np.ones(len(X))])
    p = 1 / (1 + np.exp(-4 * (Z @ np.append(fair.coef_[0], fair.intercept_))))
    bound = abs(p[group == "a"].mean() - p[group == "b"].mean())
    best = smooth_optimum(X, y, group, bound)
    assert best * 0.9999 <= ours <= best * 1.005


def test_what_was_asked_for_is_certified_and_holds_on_new_rows(fair):
    assert fair.certificate_.satisfied
    with pytest.raises(TypeError, match=r"ask \.satisfied"):
        bool(fair.certificate_)
    assert fair.certificate_.num_rows == 800
    assert "satisfied" in str(fair.certificate_)
    X, y, group = people(seed=1, n=20_000)
    assert abs(gap(fair, X, group)) < 0.2
    later = fair.certify(X, y, sensitive_features=group)
    assert later.satisfied
    assert later.lower[0] <= gap(fair, X, group) * (1 if later.name[0] == "rate: a - b" else -1) <= later.upper[0]
    free = ConstrainedClassifier(random_state=0).fit(*people()[:2])
    assert abs(gap(free, X, group)) > 0.3
    assert not hasattr(free, "certificate_") or free.certificate_ is None


def test_attributes_are_all_there(fair):
    assert fair.coef_.shape == (1, 3)
    assert fair.intercept_.shape == (1,)
    assert fair.classes_.tolist() == ["no", "yes"]
    assert (fair.multipliers_ >= 0).all()
    assert fair.multipliers_.max() > 0
    assert fair.constraint_names_ == [f"rate: {a} - {b}" for a, b in [fair.groups_.names, fair.groups_.names[::-1]]]
    assert fair.result_.solution.shape[0] == 1
    assert fair.diagnosis_.ess > 100
    assert "<div" in fair._repr_html_()


def test_without_constraints_it_is_scikit_learns_own_optimum():
    X, y, _ = people()
    ours = ConstrainedClassifier(random_state=0).fit(X, y)
    theirs = LogisticRegression(C=1e8).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=0.02)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=0.01)


@pytest.mark.parametrize("loss", ["squared", "huber", "quantile"])
def test_regressors_find_what_others_find(loss):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 3)) * [1, 1000, 1e-3] + [0, 1e5, 0]
    y = 1e6 + 100 * (X @ [1.0, 1e-3, 0.0] + rng.normal(size=N))
    ours = ConstrainedRegressor(loss=loss, random_state=0).fit(X, y)
    Z = StandardScaler().fit_transform(X)
    theirs = (
        QuantileRegressor(alpha=0).fit(Z, y).predict(Z)
        if loss == "quantile"
        else LinearRegression().fit(Z, y).predict(Z)
    )
    assert np.abs(ours.predict(X) - theirs).mean() < 0.1 * 100  # of the noise
    assert ours.score(X, y) > 0.65


def test_units_change_nothing():
    X, y, group = people()
    unit, shift = np.array([1e-8, 1e9, 3.0]), np.array([5e-8, -1e9, 1e3])
    fits = [
        ConstrainedClassifier(constraints=DemographicParity(0.2), random_state=0).fit(Z, y, sensitive_features=group)
        for Z in (X, X * unit + shift)
    ]
    np.testing.assert_allclose(fits[0].coef_, fits[1].coef_ * unit, atol=0.02)
    assert np.mean(fits[0].predict(X) != fits[1].predict(X * unit + shift)) < 0.01


def test_time_sorts_rows_and_tables_of_pandas_keep_their_names(fair):
    X, y, group = people()
    rng = np.random.default_rng(0)
    mixed = rng.permutation(N)
    frame = pd.DataFrame(X, columns=["age", "income", "height"]).iloc[mixed]
    when = pd.date_range("2024-01-01", periods=N, freq="h")[mixed]
    sensitive = pd.Series(group[mixed], index=frame.index, name="tribe").astype("category")
    model = copied(fair).fit(frame, y[mixed], sensitive_features=sensitive, time=when)
    np.testing.assert_array_equal(model.coef_, fair.coef_)
    assert model.feature_names_in_.tolist() == ["age", "income", "height"]
    assert model.timing_.moved > 0
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"age": "years"}))


@pytest.mark.slow
def test_sparse_and_dense_tables_agree():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 3)) * (rng.uniform(size=(N, 3)) < 0.3)
    y = X.sum(axis=1) + 0.3 * rng.normal(size=N) > 0
    dense = ConstrainedClassifier(random_state=0).fit(X, y)
    sparse = ConstrainedClassifier(random_state=0).fit(scipy.sparse.csr_array(X), y)
    assert np.mean(dense.predict(X) != sparse.predict(scipy.sparse.coo_array(X))) < 0.01
    # Sparse columns are not centred, so that both come to the same optimum by other ways: 0.4 % apart at most.
    np.testing.assert_allclose(dense.coef_, sparse.coef_, rtol=0.02)


@pytest.mark.slow
def test_intersections_of_several_features_are_groups():
    X, y, group = people()
    rng = np.random.default_rng(5)
    both = pd.DataFrame({"tribe": group, "left": rng.uniform(size=N) < 0.5})
    model = ConstrainedClassifier(constraints=DemographicParity(0.5)).fit(X, y, sensitive_features=both)
    assert sorted(model.groups_.names) == ["a, False", "a, True", "b, False", "b, True"]
    assert len(model.certificate_.name) == 6
    assert model.certificate_.satisfied
    again = ConstrainedClassifier(constraints=DemographicParity(0.5)).fit(X, y, sensitive_features=both.to_numpy())
    assert sorted(again.groups_.names) == sorted(model.groups_.names)


@pytest.mark.slow
def test_several_constraints_and_a_budget_hold_together():
    X, y, group = people()
    asked = [DemographicParity(0.3), FalsePositiveRateBelow(0.2), MeanBelow(1.0, 0.35)]
    model = ConstrainedClassifier(constraints=asked, random_state=0).fit(X, y, sensitive_features=group)
    assert model.certificate_.satisfied
    X, y, group = people(seed=2, n=20_000)
    said = model.predict(X) == "yes"
    assert said[y == "no"].mean() < 0.2
    assert said.mean() < 0.35
    assert abs(gap(model, X, group)) < 0.3


def test_a_plain_function_is_kept_on_average():
    X, y, _ = people()

    def low_scores(score, row):
        return score - 0.1 * row.x[0] + 0.5  # the mean score is at most -0.5, give or take

    model = ConstrainedClassifier(constraints=low_scores, random_state=0).fit(X, y)
    assert model.certificate_.name == ["low_scores"]
    assert model.certificate_.satisfied
    assert model.decision_function(X).mean() < -0.45


def test_a_plain_function_that_fails_is_named():
    def low(score, row):
        return row.nothing

    X, y, _ = people(n=60)
    with pytest.raises(ValueError, match=r"low\(score, row\) fails"):
        ConstrainedClassifier(constraints=low).fit(X, y)


def test_group_losses_of_a_regression():
    rng = np.random.default_rng(0)
    X, group = rng.normal(size=(N, 2)), np.where(rng.uniform(size=N) < 0.2, "few", "many")
    y = np.where(group == "few", X[:, 0], -X[:, 0]) + 0.1 * rng.normal(size=N)
    free = ConstrainedRegressor(random_state=0).fit(X, y)
    kept = ConstrainedRegressor(constraints=BoundedGroupLoss(2.0), random_state=0).fit(X, y, sensitive_features=group)
    few = group == "few"
    assert np.mean((free.predict(X) - y)[few] ** 2) > 2.3
    assert np.mean((kept.predict(X) - y)[few] ** 2) < 2.0
    assert kept.certificate_.satisfied


def test_a_limit_that_so_few_rows_cannot_show_is_said_to_be_open():
    X, y, group = people(n=600)
    model = ConstrainedClassifier(constraints=DemographicParity(0.02), random_state=0).fit(
        X, y, sensitive_features=group
    )
    assert not model.certificate_.satisfied
    assert model.certificate_.verdict == ["undecided"]
    assert model.certificate_.more_rows[0] > 0
    assert any("could not be certified" in note for note in model.certificate_.notes)


def test_false_alarms_and_budgets_cost_no_more_than_the_best_threshold_and_scale():
    """With one feature the true optimum is found by trying every threshold and many scales."""
    rng = np.random.default_rng(0)
    x, costs = rng.normal(size=800), rng.lognormal(sigma=2.0, size=800)
    y = x + rng.logistic(size=800) > 0
    sign = np.where(y, 1.0, -1.0)
    cuts = np.sort(x) + 1e-9
    scales = np.geomspace(0.01, 4, 40)
    losses = np.logaddexp(0, -sign * scales[:, None, None] * (x - cuts[:, None])).mean(-1).min(0)
    said = x > cuts[:, None]
    for values, limit, asked in (
        (said[:, ~y].mean(1), 0.02, FalsePositiveRateBelow(0.02)),
        ((said * costs).mean(1), 0.2, MeanBelow(lambda X, y: costs, 0.2)),
    ):
        model = ConstrainedClassifier(constraints=asked, validation_fraction=0, random_state=0).fit(x[:, None], y)
        score = model.decision_function(x[:, None])
        best = losses[values <= limit].min()
        assert np.logaddexp(0, -sign * score).mean() <= 1.01 * best
        kept = (score > 0)[~y].mean() if isinstance(asked, FalsePositiveRateBelow) else ((score > 0) * costs).mean()
        assert kept <= limit


def test_a_group_that_the_last_rows_hardly_show_is_named_as_what_is_open():
    X, y, group = people(n=600)
    group = np.where(np.arange(600) == 599, "rare", group)
    model = ConstrainedClassifier(constraints=DemographicParity(0.9), random_state=0).fit(
        X, y, sensitive_features=group
    )
    (note,) = (note for note in model.certificate_.notes if "could not be certified" in note)
    assert "too few rows say anything about rate: " in note
    assert "rare" in note
    assert "may be -" not in note


def test_weights_count_rows_as_often_as_they_say():
    X, y, _ = people(n=60)
    weights = np.random.default_rng(0).integers(0, 4, size=60)
    weighed = ConstrainedClassifier(random_state=0).fit(X, y, sample_weight=weights)
    repeated = ConstrainedClassifier(random_state=0).fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    np.testing.assert_array_equal(weighed.coef_, repeated.coef_)


def test_the_same_seed_gives_the_same_model_and_pickles_keep_it(fair):
    X, y, group = people()
    again = copied(fair).fit(X, y, sensitive_features=group)
    np.testing.assert_array_equal(again.coef_, fair.coef_)
    back = pickle.loads(pickle.dumps(fair))
    np.testing.assert_array_equal(back.decision_function(X), fair.decision_function(X))
    assert str(back.certificate_) == str(fair.certificate_)


@pytest.mark.slow
def test_in_a_search_over_time_inside_a_pipeline():
    X, y, group = people(n=1200)
    with sklearn.config_context(enable_metadata_routing=True):
        model: Any = ConstrainedClassifier(constraints=DemographicParity(0.3), random_state=0)
        model = model.set_fit_request(sensitive_features=True, time=True).set_partial_fit_request(classes=True)
        search: Any = GridSearchCV(
            make_pipeline(StandardScaler(), model),
            {"constrainedclassifier__constraints": [DemographicParity(0.3), DemographicParity(0.9)]},
            cv=TimeSeriesSplit(2),
        )
        search.fit(X, y, sensitive_features=group, time=np.arange(1200))
    assert search.best_params_["constrainedclassifier__constraints"] == DemographicParity(0.9)
    assert search.score(X, y) > 0.65


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sensitive_features": None}, "sensitive_features must be given: DemographicParity"),
        ({"sensitive_features": np.full(60, "a")}, "one group only, 'a'"),
        ({"sensitive_features": np.full(59, "a")}, "one row for each of 60 rows"),
        ({"sensitive_features": pd.Series([None, *["a", "b"] * 29, "a"])}, "missing value in row 0"),
        ({"sensitive_features": "sex"}, r"pass X\['sex'\]"),
        ({"time": "date"}, r"time=X\['date'\]"),
        ({"time": np.full(60, np.nan)}, "time"),
        ({"y": np.full(60, "yes")}, "one class only, 'yes'"),
        ({"y": np.r_[np.full(48, "yes"), np.full(12, "no")]}, "before those that are held out"),
        ({"X": pd.DataFrame({"carrier": ["UA", "B6"] * 30, "n": 1.0})}, "column 'carrier' holds .*OneHotEncoder"),
        ({"X": pd.DataFrame({"when": pd.date_range("2024", periods=60), "n": 1.0})}, "column 'when' holds datetime"),
        ({"X": np.full((60, 2), np.nan)}, "NaN"),
        (
            {"constraints": MeanBelow("price", 1.0), "X": pd.DataFrame(np.ones((60, 2)), columns=["a", "b"])},
            "no column of X",
        ),
        ({"constraints": MeanBelow(7, 1.0)}, "none of number 7"),
        ({"constraints": MeanBelow(lambda X, y: [1.0], 1.0)}, "one for each of 60 rows"),
        ({"constraints": "parity <= 0.1"}, "names are"),
        ({"constraints": BoundedGroupLoss(1.0, "squared")}, "for regressors"),
        ({"radius": 0.0}, "radius"),
        ({"loss": "squared"}, "loss"),
        ({"epochs": "many"}, "epochs must be 'auto'"),
        ({"order": "random"}, "order"),
        ({"algorithm": "adam"}, "algorithm"),
        ({"validation_fraction": 1.0}, "validation_fraction"),
        ({"sample_weight": np.zeros(60)}, "sample_weight|weight"),
    ],
)
@pytest.mark.x64("refusals are the same in both precisions")
def test_what_cannot_be_done_is_refused_by_name(change, said):
    X, y, group = people(n=60)
    told = {"X": X, "y": y, "sensitive_features": group, "constraints": DemographicParity(0.1), **change}
    fitted = {name: told.pop(name) for name in ("sensitive_features", "time", "sample_weight") if name in told}
    X, y = told.pop("X"), told.pop("y")
    with pytest.raises((TypeError, ValueError), match=said):
        ConstrainedClassifier(**told).fit(X, y, **fitted)


def test_a_regressor_makes_no_decisions():
    X, _, group = people(n=60)
    with pytest.raises(ValueError, match="take ConstrainedClassifier"):
        ConstrainedRegressor(constraints=EqualizedOdds(0.1)).fit(X, X[:, 0], sensitive_features=group)


def test_columns_of_whole_numbers_booleans_and_constants_are_columns():
    X, y, _ = people(n=600)
    frame = pd.DataFrame({"x": X[:, 0], "count": (10 * X[:, 1]).astype(int), "flag": X[:, 2] > 0, "same": 7.0})
    model = ConstrainedClassifier(random_state=0).fit(frame, y)
    assert model.coef_[0, 3] == 0
    assert model.score(frame, y) > 0.65


@pytest.mark.slow
def test_a_group_that_comes_only_later_is_certified_all_the_same():
    X, y, group = people(n=2000)
    group = np.where(np.arange(2000) >= 1700, "c", group)
    model = ConstrainedClassifier(constraints=DemographicParity(0.5), random_state=0).fit(
        X, y, sensitive_features=group
    )
    assert {frozenset(name.removeprefix("rate: ").split(" - ")) for name in model.certificate_.name} == {
        frozenset(pair) for pair in ("ab", "ac", "bc")
    }
    assert np.isfinite(model.certificate_.estimate).all()


def test_a_group_without_positives_has_no_true_positive_rate():
    X, y, group = people(n=2000)
    group = np.where((np.arange(2000) % 7 == 0) & (y == "no"), "c", group)
    model = ConstrainedClassifier(constraints=EqualizedOdds(0.6), random_state=0).fit(X, y, sensitive_features=group)
    found = model.certificate_
    for name, verdict, reason in zip(found.name, found.verdict, found.reason, strict=True):
        empty = name.startswith("true") and "c" in name.split(": ")[1].split(" - ")
        assert ("nothing in its denominator" in reason) == empty
        assert not empty or verdict == "undecided"
