"""The theory's rate beside the curves of a reproduced experiment, for its figures and for its page."""

from __future__ import annotations

import math

import numpy as np

from ergodrift.experiments.results import Results
from ergodrift.theory import Rate, theorem1, theorem2, theorem3

OF = "EDPP-t"  # the algorithm that theorems 1 to 3 are about, as the experiment runs it


def overlay(results: Results, metric: str) -> tuple[Rate, np.ndarray] | None:
    """The rate of EDPP-t in a metric and its values at the recorded samples; None where no theorem speaks of it.

    A rate has no constant: it is drawn through the size that EDPP-t ends with. Before one mixing time it says nothing,
    and is NaN. The theorems are about x̄ and about sums, not about the last point.
    """
    if OF not in results["algorithms"] or metric.endswith("_last"):
        return None
    beta, tau_mix = results["config"]["beta"], results["config"]["tau_mix"]
    rates = theorem3() if beta == 0.5 else {**theorem1(beta), **theorem2(beta)}
    # The Lagrangian gap is the gap and multiples of infeasibilities, whose rates are no slower.
    rate = rates["gap" if metric == "lagrangian_gap" else metric.split("_")[0]]
    samples = np.array(results["samples"], dtype=float)
    end = abs(results["algorithms"][OF]["summary"][metric]["mean"][-1])
    if not math.isfinite(end):
        return None
    return rate, np.where(samples >= tau_mix, rate.through(samples[-1], end, tau_mix)(samples), np.nan)
