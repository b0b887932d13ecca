"""scikit-learn estimators whose constraints are met on data that depend on each other, and are said to be."""

from ergodrift._core.extras import absent

try:
    import sklearn  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ModuleNotFoundError as error:
    raise absent("ergodrift.sklearn", "sklearn", error) from error

from ergodrift.sklearn.certificate import TableCertificate
from ergodrift.sklearn.constraints import (
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
from ergodrift.sklearn.estimators import ConstrainedClassifier, ConstrainedRegressor

__all__ = [
    "BoundedGroupLoss",
    "ConstrainedClassifier",
    "ConstrainedRegressor",
    "DemographicParity",
    "EqualizedOdds",
    "ErrorRateParity",
    "FalsePositiveRateBelow",
    "FalsePositiveRateParity",
    "MeanBelow",
    "TableCertificate",
    "TruePositiveRateParity",
    "constraint_from_text",
]
