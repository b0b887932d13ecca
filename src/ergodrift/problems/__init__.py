"""Problems that come with the library: those of the paper, and applications with data and optimum."""

from ergodrift.problems.ads import pacing
from ergodrift.problems.application import Application
from ergodrift.problems.completion import completion
from ergodrift.problems.decisions import occupation
from ergodrift.problems.detection import neyman_pearson
from ergodrift.problems.electricity import charging, reserve
from ergodrift.problems.fairness import FairnessBounds, fairness
from ergodrift.problems.flights import airport_walk, flight_parity
from ergodrift.problems.portfolio import portfolio
from ergodrift.problems.random import RandomProblem, random_problem
from ergodrift.problems.regimes import worst_regime
from ergodrift.problems.scheduling import scheduling, water_filling
from ergodrift.problems.synthetic import SyntheticData, synthetic

__all__ = [
    "Application",
    "FairnessBounds",
    "RandomProblem",
    "SyntheticData",
    "airport_walk",
    "charging",
    "completion",
    "fairness",
    "flight_parity",
    "neyman_pearson",
    "occupation",
    "pacing",
    "portfolio",
    "random_problem",
    "reserve",
    "scheduling",
    "synthetic",
    "water_filling",
    "worst_regime",
]
