"""Problems that come with the library."""

from ergodrift.problems.fairness import Fairness, FairnessBounds, fairness
from ergodrift.problems.synthetic import SyntheticData, synthetic

__all__ = ["Fairness", "FairnessBounds", "SyntheticData", "fairness", "synthetic"]
