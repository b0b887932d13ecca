"""A certificate: intervals for the stationary means of constraints and loss along a path, and verdicts."""

from __future__ import annotations

import dataclasses

import numpy as np

TUNED_FOR = 10_000  # where an anytime interval is tightest; never the length seen so far, which changes
NEVER = 2**62  # more samples than can be said


@dataclasses.dataclass(frozen=True, eq=False)
class Certificate:
    """Intervals for ḡ_i(x) and f̄(x), and what follows from them; prints as a table.

    Attributes:
        estimate: (n,) the mean of each constraint along the held-out path.
        lower: (n,) lower ends; with probability `confidence` or more, all intervals of constraints hold at once. A
            constraint about which too little was seen has no ends (-inf, inf), and `reason` says why.
        upper: (n,) upper ends.
        verdict: for each constraint "satisfied" (upper <= 0), "violated" (lower > 0), "undecided", or "inconsistent":
            anytime intervals given at different times exclude each other or the mean of all samples, so the series is
            not stationary, or too little was seen; there are no ends then, and nothing is said of the constraint.
        more_samples: for each constraint, about how many more samples would decide it, or show enough for an interval
            where there is none: 0 where it is decided, 2^62 where no number can be given.
        loss_estimate, loss_lower, loss_upper: the same for the loss, an interval of its own; without ends where the
            path says too little about the loss, and NaN where there is no loss.
        confidence: as asked for.
        method: which intervals.
        guarantee: "every n" (if tau_mix is right) or "as n grows".
        num_samples: how long the path was.
        reason: for each constraint why it has no ends; empty where it has.
        why: why this method, where it was chosen from the data.
        warnings: plain sentences about what stands against it, such as a level that drifts along a recorded path.
    """

    estimate: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    verdict: list[str]
    more_samples: list[int]
    loss_estimate: float
    loss_lower: float
    loss_upper: float
    confidence: float
    method: str
    guarantee: str
    num_samples: int
    reason: list[str] = dataclasses.field(default_factory=list)
    why: str = ""
    warnings: list[str] = dataclasses.field(default_factory=list)

    @property
    def satisfied(self) -> bool:
        """Whether every constraint is certified to hold."""
        return all(verdict == "satisfied" for verdict in self.verdict)

    def __bool__(self) -> bool:
        raise TypeError("a certificate is neither true nor false: ask .satisfied, or .verdict for each constraint")

    def without_loss(self) -> Certificate:
        """The same, of constraints that came without a loss."""
        return dataclasses.replace(self, loss_estimate=np.nan, loss_lower=np.nan, loss_upper=np.nan)

    def __str__(self) -> str:
        holds = "every n, if tau_mix is right" if self.guarantee == "every n" else "holds as n grows"
        lines = [
            f"{self.confidence:.0%} certificate from {self.num_samples:,} samples ({self.method}; {holds})",
            *([f"{self.method}: {self.why}"] if self.why else []),
            f"{'':14}{'estimate':>12}{'lower':>12}{'upper':>12}   verdict",
        ]
        reasons = self.reason or [""] * len(self.verdict)
        rows = zip(self.estimate, self.lower, self.upper, self.verdict, self.more_samples, reasons, strict=True)
        for number, (middle, low, high, verdict, more, reason) in enumerate(rows):
            said = f"{verdict}: {reason}" if reason else verdict
            if 0 < more < NEVER:
                said += f", about {more:,} more samples would {'show enough' if reason else 'decide'}"
            lines.append(f"constraint {number:<3}{middle:12.5g}{low:12.5g}{high:12.5g}   {said}")
        if not np.isnan(self.loss_estimate):
            lines.append(f"{'loss':14}{self.loss_estimate:12.5g}{self.loss_lower:12.5g}{self.loss_upper:12.5g}")
        lines += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)

    __repr__ = __str__


def verdicts(lower: np.ndarray, upper: np.ndarray) -> list[str]:
    """What intervals for E[g_i(x, xi)] say of E[g_i(x, xi)] <= 0."""
    ends = zip(lower, upper, strict=True)
    return ["satisfied" if high <= 0 else "violated" if low > 0 else "undecided" for low, high in ends]


def to_decide(n: int, middle: float, low: float, high: float) -> int:
    """The half-width shrinks as 1 / sqrt(n): it must come below the distance of the estimate from 0."""
    half = high - middle if middle <= 0 else middle - low
    needed = n * np.square(half / middle) if middle else np.inf
    return int(min(np.ceil(max(needed - n, 1)), NEVER))
