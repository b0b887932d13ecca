"""Problems: a loss, constraints and a domain; linear models that know their own structure."""

from ergodrift.problem.linear import LINKS, Dense, LinearModel, Rows, half_spaces, logistic_in_groups, total_and_slopes
from ergodrift.problem.problem import Problem, value_and_jacobian

__all__ = [
    "LINKS",
    "Dense",
    "LinearModel",
    "Problem",
    "Rows",
    "half_spaces",
    "logistic_in_groups",
    "total_and_slopes",
    "value_and_jacobian",
]
