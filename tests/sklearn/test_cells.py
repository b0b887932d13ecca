"""What constraints mean on a table: rates against pandas, tangents against differences, verdicts by hand."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ergodrift.sklearn import (
    BoundedGroupLoss,
    DemographicParity,
    EqualizedOdds,
    ErrorRateParity,
    FalsePositiveRateBelow,
    MeanBelow,
)
from ergodrift.sklearn.cells import Asked, Part
from ergodrift.sklearn.certificate import certified, pairs
from ergodrift.sklearn.losses import FAMILIES, smooth_decision

pytestmark = pytest.mark.x64("NumPy computes here, in float64 in both")

N = 400
NAMES = ["a", "b", "c"]


def rows(seed=0, classes=2, n=N):
    """Features, scores of them, and the rows."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    y = rng.integers(classes, size=n) if classes else rng.normal(size=n)
    part = Part(X, y, rng.integers(3, size=n), rng.uniform(0.5, 2, size=n), {0: rng.uniform(size=n)})
    x = rng.normal(size=(3, classes) if classes > 2 else 3)
    return X, x, part


def asked(constraint, classes=2, loss="logistic", setting=0.0, **options):
    family = {0: "regression", 2: "binary"}.get(classes, "multiclass")
    return Asked.of((constraint,), NAMES, list(range(classes)), (family, loss), setting, **options)


def rates(part, outcome, kept):
    frame = pd.DataFrame({"w": part.weights, "z": outcome * part.weights, "g": part.groups})[kept]
    sums: Any = frame.groupby("g").sum()
    return (sums["z"] / sums["w"]).to_numpy(), frame["z"].sum() / frame["w"].sum()


def test_rates_and_differences_are_those_of_pandas():
    X, x, part = rows()
    scores = X @ x
    by_group, overall = rates(part, scores > 0, np.full(N, True))
    means = asked(DemographicParity(0.1))
    values = dict(zip([limit.name for limit in means.limits], means.matrix @ means.means(scores, part), strict=True))
    assert len(values) == 6
    assert values["rate: a - b"] == pytest.approx(by_group[0] - by_group[1], abs=1e-12)
    assert values["rate: b - a"] == pytest.approx(by_group[1] - by_group[0], abs=1e-12)
    to_all = asked(DemographicParity(0.1, between="overall"))
    assert (to_all.matrix @ to_all.means(scores, part))[0] == pytest.approx(by_group[0] - overall, abs=1e-12)
    ratio = asked(DemographicParity(0.0, ratio=0.8))
    assert (ratio.matrix @ ratio.means(scores, part))[0] == pytest.approx(0.8 * by_group[0] - by_group[1], abs=1e-12)


def test_events_costs_and_losses_are_what_they_say():
    X, x, part = rows()
    scores, y = X @ x, part.y
    true_positive, _ = rates(part, scores > 0, y == 1)
    odds = asked(EqualizedOdds(0.1))
    names = [limit.name for limit in odds.limits]
    values = odds.matrix @ odds.means(scores, part)
    assert values[names.index("true positive rate: a - c")] == pytest.approx(true_positive[0] - true_positive[2])
    _, false_alarms = rates(part, scores > 0, y == 0)
    assert asked(FalsePositiveRateBelow(0.1)).means(scores, part) == pytest.approx([false_alarms])
    errors, _ = rates(part, (scores > 0) != y, np.full(N, True))
    assert asked(BoundedGroupLoss(0.1, "zero_one")).means(scores, part) == pytest.approx(errors)
    spent = np.average(part.costs[0] * (scores > 0), weights=part.weights)
    assert asked(MeanBelow("price", 0.1)).means(scores, part) == pytest.approx([spent])
    losses, _ = rates(part, np.logaddexp(0, -(2 * y - 1) * scores), np.full(N, True))
    assert asked(BoundedGroupLoss(0.1)).means(scores, part) == pytest.approx(losses)


def test_of_several_classes_each_is_the_positive_one_in_turn():
    X, x, part = rows(classes=4)
    scores = X @ x
    means = asked(DemographicParity(0.1), classes=4)
    assert len(means.limits) == 4 * 6
    last, _ = rates(part, scores.argmax(axis=1) == 3, np.full(N, True))
    names = [limit.name for limit in means.limits]
    values = means.matrix @ means.means(scores, part)
    assert values[names.index("rate of class 3: b - c")] == pytest.approx(last[1] - last[2])


@pytest.mark.parametrize(
    ("constraint", "classes", "loss"),
    [
        (DemographicParity(0.1), 2, "logistic"),
        (DemographicParity(0.1), 3, "logistic"),
        (ErrorRateParity(0.1), 2, "logistic"),
        (ErrorRateParity(0.1), 3, "hinge"),
        (BoundedGroupLoss(0.1), 2, "logistic"),
        (BoundedGroupLoss(0.1), 3, "hinge"),
        (BoundedGroupLoss(0.1), 0, "huber"),
        (BoundedGroupLoss(0.1, "absolute"), 0, "squared"),
        (BoundedGroupLoss(0.1), 0, "quantile"),
        (MeanBelow("price", 1.0), 2, "logistic"),
        (MeanBelow("price", 1.0), 0, "squared"),
    ],
)
def test_tangents_are_the_slopes_of_what_stands_for_decisions(constraint, classes, loss):
    """Against differences of the smooth means, in a random direction."""
    X, x, part = rows(classes=classes)
    means = asked(constraint, classes, loss, 0.4)
    every = np.arange(len(means.limits))
    tangents = means.tangents(X @ x, part, X, every, means.members(part))
    direction = np.random.default_rng(1).normal(size=x.shape)

    def smooth(point):
        scores = X @ point
        values = []
        for cell in means.cells:
            if cell.outcome in ("decision", "cost") and classes:
                z = smooth_decision(scores, cell.cls)[0] * (part.costs[0] if cell.outcome == "cost" else 1)
            elif cell.outcome == "error":
                z = 1 - np.choose(part.y, [smooth_decision(scores, cls)[0] for cls in range(classes)])
            else:
                z = means._outcome(cell, scores, part)
            inside = means.inside(cell, part)
            values.append(np.average(z[inside], weights=part.weights[inside]))
        return means.matrix @ np.array(values)

    step = 1e-6
    difference = (smooth(x + step * direction) - smooth(x - step * direction)) / (2 * step)
    np.testing.assert_allclose(tangents.reshape(len(every), -1) @ direction.ravel(), difference, atol=1e-6)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_slopes_of_losses_are_their_derivatives(family):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(50, 4) if family == "multiclass" else 50)
    y = {"binary": rng.choice([-1.0, 1.0], 50), "multiclass": rng.integers(4, size=50)}.get(family, rng.normal(size=50))
    direction, step = rng.normal(size=scores.shape), 1e-6
    for name, loss in FAMILIES[family].items():
        ends = [loss.value(np, scores + sign * step * direction, y, 0.3) for sign in (1, -1)]
        slopes = loss.slope(np, scores, y, 0.3) * direction
        found = slopes.sum(axis=-1) if family == "multiclass" else slopes
        np.testing.assert_allclose(found, (ends[0] - ends[1]) / (2 * step), atol=1e-5, err_msg=name)


def test_to_all_rows_at_half_the_limit_implies_the_limit_between_any_two():
    means = asked(DemographicParity(0.1), to_overall=True)
    assert len(means.limits) == 6
    assert set(means.bounds) == {0.05}
    assert means.limits[0].name == "rate: a - all"


def test_a_cell_without_rows_has_no_value_and_no_verdict():
    X, x, part = rows()
    part.y[part.groups == 2] = 0
    found = certified(asked(EqualizedOdds(0.9)), X @ x, part, 0.95)
    assert [v == "undecided" for v in found.verdict] == ["true" in n and "c" in n[-5:] for n in found.name]
    assert "nothing in its denominator" in next(reason for reason in found.reason if reason)
    assert "undecided: " in str(found)


def test_each_difference_is_certified_once_from_both_sides():
    first, second = pairs(asked(DemographicParity(0.1)))
    assert len(first) == 3
    assert (second > 0).all()
    first, second = pairs(asked(FalsePositiveRateBelow(0.1)))
    assert second.tolist() == [-1]


def test_verdicts_follow_from_ends():
    X, x, part = rows(n=4000)
    for limit in np.linspace(0.01, 0.4, 12):
        found = certified(asked(DemographicParity(float(limit))), X @ x, part, 0.95)
        for low, high, said in zip(found.lower, found.upper, found.verdict, strict=True):
            holds, fails = -limit <= low and high <= limit, low > limit or high < -limit
            assert said == ("satisfied" if holds else "violated" if fails else "undecided")
        assert found.satisfied == (found.excess <= 0).all()


def test_a_certificate_goes_through_json():
    X, x, part = rows()
    found = json.loads(json.dumps(certified(asked(DemographicParity(0.1)), X @ x, part, 0.9).as_dict()))
    assert found["confidence"] == 0.9
    assert len(found["estimate"]) == len(found["verdict"]) == 3
    assert isinstance(found["satisfied"], bool)


def test_intervals_cover_the_true_gap_of_dependent_rows():
    """The gap itself moves slowly: 95 % intervals hold in at least 90 of 100 records, those for independent rows in few
    more than half of them."""
    covered, naive, n, truth = 0, 0, 4000, 0.3
    means = Asked.of((DemographicParity(0.1),), ["a", "b"], [0, 1], ("binary", "logistic"), 0.0)
    for seed in range(100):
        rng = np.random.default_rng(seed)
        slow = np.repeat(rng.uniform(-1, 1, size=n // 40), 40)  # for 40 rows the same
        group = rng.integers(2, size=n)
        scores = (rng.uniform(size=n) < 0.5 + (0.15 + 0.3 * slow) * (2 * group - 1)) - 0.5
        part = Part(np.zeros((n, 1)), rng.integers(2, size=n), group, np.ones(n), {})
        found = certified(means, scores, part, 0.95)
        covered += found.lower[0] <= -truth <= found.upper[0]
        p = [np.mean(scores[group == g] > 0) for g in (0, 1)]
        naive += abs(p[1] - p[0] - truth) < 1.96 * np.sqrt(sum(q * (1 - q) / (n / 2) for q in p))
    assert covered >= 90
    assert naive <= 75
