"""The theory beside the curves: rates, bounds with their constants, and a check of a run against both."""

from ergodrift.theory.bounds import (
    Adversarial,
    Constants,
    Expected,
    appendix_c_bounds,
    constant,
    constants,
    ergodic,
    expected,
    slater_queue,
    theorem1_bounds,
)
from ergodrift.theory.paths import Pathwise, Slack, pathwise
from ergodrift.theory.rates import Rate, appendix_c, theorem1, theorem2, theorem3, theorem5
from ergodrift.theory.within import Entry, TheoryCheck, mixing_lag, within_theory

__all__ = [
    "Adversarial",
    "Constants",
    "Entry",
    "Expected",
    "Pathwise",
    "Rate",
    "Slack",
    "TheoryCheck",
    "appendix_c",
    "appendix_c_bounds",
    "constant",
    "constants",
    "ergodic",
    "expected",
    "mixing_lag",
    "pathwise",
    "slater_queue",
    "theorem1",
    "theorem1_bounds",
    "theorem2",
    "theorem3",
    "theorem5",
    "within_theory",
]
