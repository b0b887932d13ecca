"""What may be asked for: as objects, as text, as fairlearn's own objects."""

from typing import Any

import pytest

from ergodrift.sklearn import (
    BoundedGroupLoss,
    DemographicParity,
    EqualizedOdds,
    ErrorRateParity,
    FalsePositiveRateBelow,
    FalsePositiveRateParity,
    MeanBelow,
    TruePositiveRateParity,
    constraint_from_text,
)
from ergodrift.sklearn.constraints import all_of, translated

pytestmark = pytest.mark.x64("nothing here computes")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("demographic_parity <= 0.05", DemographicParity(0.05)),
        ("  Demographic Parity<=.05 ", DemographicParity(0.05)),
        ("true-positive-rate-parity < 0.1", TruePositiveRateParity(0.1)),
        ("false_positive_rate_parity ≤ 1e-1", FalsePositiveRateParity(0.1)),
        ("equalized_odds <= 0.2", EqualizedOdds(0.2)),
        ("error_rate_parity <= 0.2", ErrorRateParity(0.2)),
        ("false_positive_rate <= 0.01", FalsePositiveRateBelow(0.01)),
        ("bounded_group_loss <= 3", BoundedGroupLoss(3.0)),
        ("bounded_group_loss(absolute) <= 3", BoundedGroupLoss(3.0, "absolute")),
        ("mean(price in euros) <= -2.5", MeanBelow("price in euros", -2.5)),
    ],
)
def test_text_says_what_objects_say(text, wanted):
    assert constraint_from_text(text) == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("demographic_parity >= 0.05", "not of the form"),
        ("demographic_parity", "not of the form"),
        ("demographic_parity <= five", "'five' is not a number"),
        ("parity <= 0.05", "names are demographic_parity"),
        ("demographic_parity <= 7", "limit must be"),
        ("demographic_parity(sex) <= 0.1", "nothing in brackets"),
        ("mean <= 1", "'mean' is not known"),
        ("bounded_group_loss(cubic) <= 1", "loss"),
    ],
)
def test_text_that_says_nothing_is_refused_with_what_to_do(text, said):
    with pytest.raises(ValueError, match=said) as error:
        constraint_from_text(text)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DemographicParity(0.0), "above 0"),
        (lambda: DemographicParity(-0.1), "limit"),
        (lambda: DemographicParity(0.1, ratio=1.5), "ratio"),
        (lambda: DemographicParity(0.1, between="all"), "between"),
        (lambda: FalsePositiveRateBelow(1.0), "limit"),
        (lambda: BoundedGroupLoss(1.0, "cubic"), "loss"),
        (lambda: all_of([0.05]), "objects such as"),
        (lambda: all_of(DemographicParity), "not the class"),
    ],
)
def test_what_cannot_be_meant_is_refused(make, said):
    with pytest.raises((TypeError, ValueError), match=said):
        make()


def test_one_several_or_none():
    plain = lambda score, row: score  # noqa: E731
    assert all_of(None) == ()
    assert all_of(DemographicParity(0.1)) == (DemographicParity(0.1),)
    assert all_of(["equalized_odds <= 0.1", plain]) == (EqualizedOdds(0.1), plain)


def of_fairlearn(name, **attributes):
    """An object as fairlearn has it, without fairlearn."""
    return type(name, (), {"__module__": "fairlearn.reductions._moments.utility_parity", **attributes})()


def test_fairlearns_objects_limit_groups_against_all_rows():
    assert translated(of_fairlearn("DemographicParity", eps=0.02, ratio=1.0)) == DemographicParity(
        0.02, None, "overall"
    )
    assert translated(of_fairlearn("EqualizedOdds", eps=0.0, ratio=0.8)) == EqualizedOdds(0.0, 0.8, "overall")
    with pytest.raises(ValueError, match="not known here"):
        translated(of_fairlearn("UtilityParity", eps=0.02, ratio=1.0))


def test_the_real_fairlearn_is_translated_too():
    reductions = pytest.importorskip("fairlearn.reductions")
    names = [
        "DemographicParity",
        "TruePositiveRateParity",
        "FalsePositiveRateParity",
        "EqualizedOdds",
        "ErrorRateParity",
    ]
    for name in names:
        found: Any = translated(getattr(reductions, name)(difference_bound=0.03))
        assert (type(found).__name__, found.limit, found.ratio, found.between) == (name, 0.03, None, "overall")
    found: Any = translated(reductions.DemographicParity(ratio_bound=0.8, ratio_bound_slack=0.01))
    assert (found.limit, found.ratio) == (0.01, 0.8)
    for loss, ours in [(reductions.SquareLoss(0, 1), "squared"), (reductions.ZeroOneLoss(), "zero_one")]:
        assert translated(reductions.BoundedGroupLoss(loss, upper_bound=0.4)) == BoundedGroupLoss(0.4, ours)
    with pytest.raises(ValueError, match="upper_bound"):
        translated(reductions.BoundedGroupLoss(reductions.ZeroOneLoss()))
