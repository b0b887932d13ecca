"""A lookout: how a fixed point does on the samples that a learner takes in after it was fixed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import jax
import numpy as np

from ergodrift.problem import Problem
from ergodrift.trust.alarm import Drift, DriftAlarm
from ergodrift.trust.certificate import Certificate
from ergodrift.trust.monitor import Monitor
from ergodrift.types import PyTree

LUMP = 256  # samples that are judged together: what is said does not depend on it, what it costs does


class Lookout:
    """A `Monitor` and a `DriftAlarm` for one point, fed with each sample once, before it is learned from.

    Args:
        problem: loss and constraints.
        x: the point.
        confidence: of the certificate at all times together, and that the alarm is never false.
        on_drift: is called once, with the `Drift` that was found.
    """

    def __init__(
        self, problem: Problem, x: PyTree, confidence: float, on_drift: Callable[[Drift], object] | None
    ) -> None:
        self.monitor, self.alarm, self.on_drift = Monitor(problem, x, confidence), DriftAlarm(confidence), on_drift
        self.fault = ""  # why it cannot be judged any more
        self._waiting: list[Sequence[np.ndarray]] = []
        self._count = 0
        self._told = False

    def add(self, rows: Sequence[np.ndarray], structure: PyTree) -> None:
        """More samples, as arrays with a leading axis."""
        self._waiting.append(rows)
        self._count += len(rows[0])
        if self._count >= LUMP:
            self.judge(structure)

    def judge(self, structure: PyTree) -> None:
        """Judge all samples that wait."""
        waiting, self._waiting, self._count = self._waiting, [], 0
        if not waiting or self.fault:
            return
        leaves = [np.concatenate(parts) for parts in zip(*waiting, strict=True)]
        try:
            losses, constraints = self.monitor.take(jax.tree.unflatten(structure, leaves))
        except ValueError as error:  # such as a loss that is infinite there, and not where the learner is
            seen = f"{self.monitor.num_samples:,} samples"
            self.fault = f"the point that is watched cannot be judged after {seen}: {error}; watch another one"
            warnings.warn(self.fault, stacklevel=2)
            return
        self.alarm.update(np.column_stack([losses, constraints]))

    def tell(self) -> None:
        """Call back, once, where a drift was found."""
        if self.alarm.drift is not None and self.on_drift is not None and not self._told:
            self._told = True
            self.on_drift(self.alarm.drift)

    def certificate(self) -> Certificate | None:
        """None before any sample."""
        self._refuse_fault()
        return self.monitor.certificate() if self.monitor.num_samples else None

    def drift(self) -> Drift | None:
        """None where nothing was found."""
        if self.alarm.drift is None:
            self._refuse_fault()
        return self.alarm.drift

    def _refuse_fault(self) -> None:
        if self.fault:
            raise ValueError(self.fault)

    def content(self) -> dict[str, PyTree]:
        """What a file holds of it, once all samples are judged."""
        seen = self.monitor.content() if self.monitor.num_samples else None
        return {
            "x": self.monitor.x,
            "confidence": self.monitor.confidence,
            "monitor": seen,
            "alarm": self.alarm.state(),
            "fault": self.fault,
            "told": self._told,
        }

    @staticmethod
    def of(
        stored: dict[str, PyTree], problem: Problem, structure: PyTree, on_drift: Callable[[Drift], object] | None
    ) -> Lookout:
        """From what a file holds; `structure` is that of a sample."""
        found = Lookout(problem, stored["x"], stored["confidence"], on_drift)
        if (seen := stored["monitor"]) is not None:
            first = jax.tree.unflatten(structure, jax.tree.leaves(seen["first"]["sample"]))
            found.monitor = Monitor.of({**seen, "first": {**seen["first"], "sample": first}}, problem, "of the learner")
        found.alarm.restore(stored["alarm"])
        found.fault, found._told = stored["fault"], stored["told"]
        return found
