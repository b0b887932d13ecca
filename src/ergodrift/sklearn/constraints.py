"""What a table's owner may ask of a model: rates that are alike between groups, losses and budgets below a limit.

Each class says what is to hold of the *true* quantities, rates of decisions among them. `cells` says what that means on
a given table.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from ergodrift._core import check

GROUP_LOSSES = ("zero_one", "squared", "absolute")


@dataclasses.dataclass(frozen=True)
class Constraint:
    """Of the means over rows: something is at most `limit`."""

    limit: float
    name: ClassVar[str] = ""
    needs_groups: ClassVar[bool] = False
    needs_decisions: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check.number("limit", self.limit)


@dataclasses.dataclass(frozen=True)
class Parity(Constraint):
    """A rate that hardly differs between groups; the base of those below.

    With r_g the rate in group g, and r that of all rows:

    - `between="groups"`: |r_g - r_h| <= limit for any two groups, as fairlearn's `demographic_parity_difference` and
      its like measure it;
    - `between="overall"`: |r_g - r| <= limit for every group, as fairlearn's reductions limit it;
    - with a `ratio`: ratio r_g <= r_h + limit for any two groups (or r in the place of one of them).

    With several classes, each class is the positive one in turn.

    Args:
        limit: the largest difference, from 0 to 1; with a ratio the slack, which may be 0.
        ratio: the smallest ratio of two rates, above 0 and at most 1; None limits differences.
        between: "groups" or "overall".
    """

    limit: float = 0.0
    ratio: float | None = None
    between: str = "groups"
    needs_groups: ClassVar[bool] = True
    needs_decisions: ClassVar[bool] = True
    outcome: ClassVar[str] = "decision"
    events: ClassVar[tuple[str, ...]] = ("all",)

    def __post_init__(self) -> None:
        check.number("limit", self.limit, at_least=0, at_most=1)
        check.choice("between", self.between, ("groups", "overall"))
        if self.ratio is not None:
            check.number("ratio", self.ratio, above=0, at_most=1)
        elif self.limit == 0:
            raise ValueError(f"{type(self).__name__}: limit must be above 0; no rates of a finite table are all equal")


class DemographicParity(Parity):
    """Groups are called positive equally often: P(ŷ = 1 | group) differs by at most `limit`.

    >>> DemographicParity(0.05)
    DemographicParity(limit=0.05, ratio=None, between='groups')
    """

    name = "demographic_parity"


class TruePositiveRateParity(Parity):
    """P(ŷ = 1 | y = 1, group) differs by at most `limit` (equal opportunity: Hardt, Price and Srebro 2016)."""

    name = "true_positive_rate_parity"
    events = ("positive",)


class FalsePositiveRateParity(Parity):
    """P(ŷ = 1 | y = 0, group) differs by at most `limit`."""

    name = "false_positive_rate_parity"
    events = ("negative",)


class EqualizedOdds(Parity):
    """Both true and false positive rates differ by at most `limit` (Hardt, Price and Srebro 2016)."""

    name = "equalized_odds"
    events = ("positive", "negative")


class ErrorRateParity(Parity):
    """P(ŷ != y | group) differs by at most `limit`."""

    name = "error_rate_parity"
    outcome = "error"


@dataclasses.dataclass(frozen=True)
class BoundedGroupLoss(Constraint):
    """The mean loss of every group is at most `limit` (Agarwal, Dudik and Wu 2019).

    Args:
        limit: in the units of the loss.
        loss: "zero_one" (classifiers), "squared", (y - ŷ)², or "absolute", |y - ŷ| (regressors); the loss that the
            estimator minimises unless given, in the units of y.
    """

    loss: str | None = None
    name: ClassVar[str] = "bounded_group_loss"
    needs_groups: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check.number("limit", self.limit, above=0)
        if self.loss is not None:
            check.choice("loss", self.loss, GROUP_LOSSES)


@dataclasses.dataclass(frozen=True)
class MeanBelow(Constraint):
    """A budget: the mean over all rows of cost x prediction is at most `limit`.

    The prediction is 1 or 0 for a classifier (is the row called positive?), and the predicted number for a regressor.

    Args:
        what: the cost of a row: the name of a column of X or its number, a number for all rows alike, given as a float,
            or a function of (X, y) that returns (n,) of them.
        limit: of the mean, in the units of the cost.

    >>> MeanBelow("price", 2.5)
    MeanBelow(what='price', limit=2.5)
    """

    what: str | int | float | Callable[[Any, Any], Any]
    limit: float
    name: ClassVar[str] = "mean"

    def __init__(self, what: str | int | float | Callable[[Any, Any], Any], limit: float) -> None:
        object.__setattr__(self, "what", what)
        object.__setattr__(self, "limit", check.number("limit", limit))

    def __repr__(self) -> str:
        return f"MeanBelow(what={self.what!r}, limit={self.limit!r})"


@dataclasses.dataclass(frozen=True)
class FalsePositiveRateBelow(Constraint):
    """P(ŷ = 1 | y = 0) is at most `limit`: the fewest misses at that rate of false alarms (Neyman and Pearson 1933)."""

    name: ClassVar[str] = "false_positive_rate"
    needs_decisions: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check.number("limit", self.limit, above=0, below=1)


Plain: TypeAlias = Callable[[Any, Any], Any]  # of a score and a row, at most 0 on average
BY_NAME = {kind.name: kind for kind in (
    DemographicParity, TruePositiveRateParity, FalsePositiveRateParity, EqualizedOdds, ErrorRateParity,
    BoundedGroupLoss, FalsePositiveRateBelow,
)}  # fmt: skip


def constraint_from_text(text: str) -> Constraint:
    """A constraint as people type it: `name <= limit`, or `mean(column) <= limit` for a budget.

    >>> constraint_from_text("demographic_parity <= 0.05")
    DemographicParity(limit=0.05, ratio=None, between='groups')
    >>> constraint_from_text("mean(price) <= 2.5")
    MeanBelow(what='price', limit=2.5)
    """
    known = ", ".join([*BY_NAME, "mean(column)"])
    found = re.fullmatch(r"\s*([A-Za-z_ -]+?)\s*(?:\((.*)\))?\s*(?:<=|<|≤)\s*(\S+)\s*", text)
    if found is None:
        raise ValueError(f"constraint {text!r} is not of the form 'name <= limit'; names are {known}")
    name, inside, number = re.sub(r"[ -]", "_", found[1]).lower(), found[2], found[3]
    try:
        limit = float(number)
    except ValueError:
        raise ValueError(f"constraint {text!r}: the limit {number!r} is not a number") from None
    if name in ("mean", "mean_below") and inside:
        return MeanBelow(inside.strip(), limit)
    if name not in BY_NAME:
        raise ValueError(f"constraint {text!r}: {name!r} is not known; names are {known}")
    if inside and name != "bounded_group_loss":
        raise ValueError(f"constraint {text!r}: {name} has nothing in brackets")
    try:
        return BoundedGroupLoss(limit, inside.strip()) if inside else BY_NAME[name](limit)
    except (TypeError, ValueError) as error:
        raise ValueError(f"constraint {text!r}: {error}") from None


def translated(constraint: object) -> Constraint | Plain:
    """A constraint of ours, a plain function, or one of fairlearn's objects in our words; fairlearn is not imported.

    fairlearn's reductions limit how far groups are from all rows: that is `between="overall"`.
    """
    kind: Any = type(constraint)
    if isinstance(constraint, Constraint):
        return constraint
    if kind.__module__.split(".")[0] == "fairlearn":
        given: Any = constraint
        ours = {cls.__name__: cls for cls in BY_NAME.values()}.get(kind.__name__)
        if ours is BoundedGroupLoss:
            losses = {"SquareLoss": "squared", "AbsoluteLoss": "absolute", "ZeroOneLoss": "zero_one"}
            named = type(given.reduction_loss).__name__
            if given.upper_bound is None or named not in losses:
                raise ValueError(f"constraints: fairlearn's BoundedGroupLoss needs an upper_bound, and one of {losses}")
            return BoundedGroupLoss(float(given.upper_bound), losses[named])
        if ours is not None and issubclass(ours, Parity):
            ratio = None if given.ratio == 1.0 else float(given.ratio)
            return ours(float(given.eps), ratio, "overall")
        raise ValueError(f"constraints: fairlearn's {kind.__name__} is not known here; known are {list(BY_NAME)}")
    if isinstance(constraint, type):
        raise TypeError(f"constraints must hold objects, {constraint.__name__}(0.05), not the class itself")
    if callable(constraint):
        return constraint
    raise TypeError(
        f"constraints must hold objects such as DemographicParity(0.05), or functions of (score, row), "
        f"got {constraint!r}"
    )


def all_of(constraints: object) -> tuple[Constraint | Plain, ...]:
    """One constraint, several, or None, as a tuple; text is read by `constraint_from_text`."""
    if constraints is None:
        return ()
    several = list(constraints) if isinstance(constraints, list | tuple | set) else [constraints]
    return tuple(constraint_from_text(one) if isinstance(one, str) else translated(one) for one in several)
