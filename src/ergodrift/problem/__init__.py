"""Problems: a loss, constraints and a domain; linear models that know their own structure."""

from ergodrift.problem.batch import Batch, Batched
from ergodrift.problem.expansion import Known, tabulated
from ergodrift.problem.linear import LinearModel, half_spaces
from ergodrift.problem.links import LINKS, logistic_in_groups, total_and_slopes
from ergodrift.problem.problem import CompactForm, Problem, value_and_jacobian
from ergodrift.problem.rows import Dense, Rows

__all__ = [
    "LINKS",
    "Batch",
    "Batched",
    "CompactForm",
    "Dense",
    "Known",
    "LinearModel",
    "Problem",
    "Rows",
    "half_spaces",
    "logistic_in_groups",
    "tabulated",
    "total_and_slopes",
    "value_and_jacobian",
]
