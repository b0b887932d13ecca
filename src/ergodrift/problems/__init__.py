"""Problems that come with the library."""

from ergodrift.problems.fairness import FairnessBounds, fairness
from ergodrift.problems.random import RandomProblem, random_problem
from ergodrift.problems.synthetic import SyntheticData, synthetic

__all__ = [
    "FairnessBounds",
    "RandomProblem",
    "SyntheticData",
    "fairness",
    "random_problem",
    "synthetic",
]
