"""Settings of SDPP, and the search for those that make most of the samples themselves."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import NamedTuple

from ergodrift._core import tree
from ergodrift.advice.pilot import Pilot
from ergodrift.methods.algorithms import Algorithm, sdpp
from ergodrift.methods.scalefree import Distances

STEP, CAUTION = 3.0, 0.1  # what a notch of a stride multiplies it by, and one of caution the long-run variances
NOTCHES = {"stride": (-5, 3), "dual_stride": (-2, 4), "caution": (0, 2), "even": (0, 1), "uniform": (0, 1),
           "cold": (0, 1)}  # fmt: skip
STARTS = ({}, {"caution": 2}, {"dual_stride": -2})  # of the search, each with all kinds of steps and averages
# Multipliers that hardly move would do best on these samples, and could answer to no others: k has a low end.
MOST = 120  # settings that are tried at most


class Setting(NamedTuple):
    """Where SDPP stands on a lattice around its defaults, all 0.

    Attributes:
        caution: of the long-run variances, 0.1 to this power counts.
        stride, dual_stride: c and k are 3 to this power times as large.
        even: whether the factors of the domain have one step for all, in units of their diameters, in the place of one
            for each by the way it has to go.
        uniform: whether all points weigh the same in the average that is recommended, and not as t.
        cold: whether multipliers begin at 0 and not with those of the rough solution.
    """

    caution: int = 0
    stride: int = 0
    dual_stride: int = 0
    even: int = 0
    uniform: int = 0
    cold: int = 0

    def of(self, found: Pilot, part: float = 1.0) -> Algorithm:
        """SDPP set so, with this part of the distances."""
        scales, degree = found.cautious(CAUTION**self.caution).scales, 1 - self.uniform
        scales = scales._replace(
            distance=tree.scale(found.even if self.even else scales.distance, part),
            multipliers=tree.scale(scales.multipliers, 1.0 - self.cold),
        )
        plain = Distances()
        schedule = Distances(
            mean_memory=float(degree),
            stride=plain.stride * STEP**self.stride,
            dual_stride=plain.dual_stride * STEP**self.dual_stride,
            scales=scales,
        )
        return dataclasses.replace(sdpp(), rule=found.rule, schedule=schedule, average=("polynomial", degree))

    def moved(self, name: str, by: int) -> Setting | None:
        """A notch away; None past the end of the lattice."""
        low, high = NOTCHES[name]
        at = getattr(self, name) + by
        return self._replace(**{name: at}) if low <= at <= high else None


def best_setting(worth: Callable[[Setting], float], dependent: bool, factors: bool, most: int = MOST) -> Setting:
    """The setting of the least worth that is found from several starts, along one axis of the lattice after the other.

    Args:
        worth: what a run with a setting ends with.
        dependent: whether there is dependence to be cautious about.
        factors: whether the domain has more than one factor.
        most: settings that are tried.
    """
    known: dict[Setting, float] = {}

    def value(setting: Setting) -> float:
        if setting not in known:
            known[setting] = worth(setting)
        return known[setting]

    names = [name for name in NOTCHES if (dependent or name != "caution") and (factors or name != "even")]
    for even, uniform, more in itertools.product((0, 1) if factors else (0,), (0, 1), STARTS):
        if not dependent and "caution" in more:
            continue
        at, before = Setting(even=even, uniform=uniform, **more), None
        while at != before:
            before = at
            for name, by in itertools.product(names, (-1, 1)):
                while len(known) < most and (step := at.moved(name, by)) and value(step) < value(at):
                    at = step
    return min(known, key=lambda setting: known[setting])
