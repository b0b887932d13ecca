"""Rows read once: chunks of any size give the same coefficients, bit for bit, also after pickling."""

import pickle

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from ergodrift.sklearn import (
    ConstrainedClassifier,
    ConstrainedRegressor,
    DemographicParity,
    FalsePositiveRateBelow,
    MeanBelow,
)

N = 1500


def people(n=N):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3)) * [1, 1e3, 1e-3]
    group = np.where(X[:, 0] + rng.normal(size=n) > 0, "a", "b")
    y = np.where(X @ [1.0, 1e-3, 0.0] + rng.logistic(size=n) > 0, "yes", "no")
    return X, y, group


def model(**options):
    asked = [DemographicParity(0.2), FalsePositiveRateBelow(0.3), MeanBelow(0, 5.0)]
    return ConstrainedClassifier(constraints=asked, **options)


def learned(cuts, pickled=(), **options):
    X, y, group = people()
    found = model(**options)
    for number, rows in enumerate(np.split(np.arange(N), cuts)):
        found.partial_fit(X[rows], y[rows], classes=["no", "yes"], sensitive_features=group[rows])
        if number in pickled:
            found = pickle.loads(pickle.dumps(found))
    return found


@pytest.fixture(scope="module")
def once():
    X, y, group = people()
    return {
        size: model(epochs=1, order="given", batch_size=size).fit(X, y, sensitive_features=group) for size in (1, 7)
    }


@settings(max_examples=5, deadline=None)
@given(st.lists(st.integers(1, N - 1), min_size=1, max_size=4, unique=True), st.sampled_from([1, 7]), st.integers(0, 3))
def test_any_chunks_equal_one_pass_of_fit_bit_for_bit(once, cuts, size, pickled):
    found = learned(sorted(cuts), (pickled,), batch_size=size)
    for name in ("coef_", "intercept_", "multipliers_"):
        np.testing.assert_array_equal(getattr(found, name), getattr(once[size], name))
    assert found.n_rows_seen_ == N


def test_it_learns_and_constraints_are_about_kept(once):
    X, y, group = people()
    assert once[1].score(X, y) > 0.65
    certificate = once[1].certify(X, y, sensitive_features=group)
    assert "violated" not in certificate.verdict
    assert once[1].certificate_ is None  # nothing was held out


def test_what_is_held_out_of_one_pass_is_certified_as_it_is():
    X, y, group = people()
    found = model(epochs=1, order="given", validation_fraction=0.2).fit(X, y, sensitive_features=group)
    assert found.certificate_.num_rows == 300
    first = model().partial_fit(X[:1200], y[:1200], ["no", "yes"], sensitive_features=group[:1200])
    np.testing.assert_array_equal(found.coef_, first.coef_)


def test_few_rows_are_a_model_already():
    X, y, group = people()
    found = model().partial_fit(X[:5], y[:5], ["no", "yes"], sensitive_features=group[:5])
    assert found.predict(X[:3]).shape == (3,)


def test_groups_come_as_they_come_and_too_many_are_refused():
    X, y, group = people()
    late = np.where(np.arange(N) >= 1000, "c", group)
    found = model()
    for rows in np.split(np.arange(N), [400, 1100]):
        found.partial_fit(X[rows], y[rows], ["no", "yes"], sensitive_features=late[rows])
    assert found.groups_.names[-1] == "c"
    assert any("c - all" in name for name in found.constraint_names_)
    before = found.coef_
    with pytest.raises(ValueError, match="room for 8"):
        found.partial_fit(X[:20], y[:20], sensitive_features=np.arange(20))
    np.testing.assert_array_equal(found.coef_, before)


def test_a_column_that_begins_to_move_later_is_learned_in_its_own_unit():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 2))
    X[:, 1] = 1e6 + np.where(np.arange(3000) < 500, 0, 1e7 * X[:, 1])
    y = X[:, 0] + (X[:, 1] - 1e6) / 1e7
    cut = ConstrainedRegressor()
    for rows in np.split(np.arange(3000), [100, 400, 700]):
        cut.partial_fit(X[rows], y[rows])
    whole = ConstrainedRegressor(epochs=1, order="given").fit(X, y)
    np.testing.assert_array_equal(cut.coef_, whole.coef_)
    assert whole.score(X[1000:], y[1000:]) > 0.95


def test_a_fitted_model_goes_on_learning():
    X, y, group = people()
    found = model(random_state=0).fit(X[:1000], y[:1000], sensitive_features=group[:1000])
    before = found.score(X, y)
    found.partial_fit(X[1000:], y[1000:], sensitive_features=group[1000:])
    assert found.n_rows_seen_ == 500
    assert found.score(X, y) > before - 0.03


def test_sparse_chunks_are_rows_like_others():
    X, y, group = people()
    found = model()
    for rows in np.split(np.arange(N), [700]):
        found.partial_fit(scipy.sparse.csr_array(X[rows]), y[rows], ["no", "yes"], sensitive_features=group[rows])
    np.testing.assert_array_equal(found.coef_, learned([1200]).coef_)


def test_several_classes_in_a_stream():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 3))
    y = np.array(["u", "v", "w"])[np.argmax(X + 0.5 * rng.normal(size=(N, 3)), axis=1)]
    found = ConstrainedClassifier()
    for rows in np.split(np.arange(N), [800]):
        found.partial_fit(X[rows], y[rows], classes=["u", "v", "w"])
    assert found.score(X, y) > 0.7
    assert found.coef_.shape == (3, 3)


def test_classes_must_be_known_from_the_start():
    X, y, group = people()
    with pytest.raises(ValueError, match="classes must be passed"):
        model().partial_fit(X, y, sensitive_features=group)
    with pytest.raises(ValueError, match="class 'yes', which the model does not know"):
        model().partial_fit(X, y, ["maybe", "no"], sensitive_features=group)
