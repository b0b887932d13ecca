"""Problems that come with the library."""

from ergodrift.problems.fairness import FairnessBounds, fairness
from ergodrift.problems.synthetic import SyntheticData, synthetic

__all__ = ["FairnessBounds", "SyntheticData", "fairness", "synthetic"]
