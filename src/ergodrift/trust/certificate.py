"""A certificate: intervals for the stationary means of constraints and loss along a path, and verdicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from ergodrift.trust import intervals
from ergodrift.trust.autocorrelation import checked_series
from ergodrift.trust.ranges import Ranges, within

NEEDED = 15  # relaxation or mixing times below which a held-out path is refused
PLANNED = 10_000  # where an anytime interval is tightest; never the length seen so far, which changes as samples arrive
FINITE = ("hoeffding", "bernstein")
WORTH = 1.5  # how much wider than the batch interval one that holds for every n may be to be preferred
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
            path says too little about the loss.
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
        lines.append(f"{'loss':14}{self.loss_estimate:12.5g}{self.loss_lower:12.5g}{self.loss_upper:12.5g}")
        lines += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)

    __repr__ = __str__


def judge(
    losses: np.ndarray,
    constraints: np.ndarray,
    confidence: float,
    method: str,
    tau_mix: float | None = None,
    ranges: Ranges | None = None,
    *,
    still: bool = False,
    fixed_start: bool = False,
    why: str = "",
) -> Certificate:
    """The certificate of a whole path of losses (n,) and constraints (n, m), by every method but "anytime".

    `still`: the loss is the same for every sample there can be; `fixed_start`: the first sample was not drawn from the
    stationary law.
    """
    n, number = constraints.shape
    delta = (1 - confidence) / number
    low, high = within(constraints, ranges)
    exact = tau_mix is not None and ranges is not None
    if method in FINITE and not exact:
        missing = " and ".join(name for name, value in [("tau_mix", tau_mix), ("bounds", ranges)] if value is None)
        raise ValueError(
            f"method={method!r} needs {missing}: pass the tau_mix that you know, or "
            "tau_mix=ed.diagnose(source).tau_mix_interval[1], which is an estimate, so that the certificate is only as "
            "good as it is, and bounds=(low, high) for the constraints; or use method='batch'"
        )
    moving = low < high  # else the same for every sample there can be: nothing to estimate
    least, most = low.copy(), high.copy()  # as found, before they are cut to the bounds
    reasons, more = [""] * number, [0] * number
    every = exact and method in FINITE
    if moving.any():
        part, ends = constraints[:, moving], (low[moving], high[moving])
        if every and method == "hoeffding":
            found = intervals.hoeffding(part, delta, tau_mix or 1.0, *ends, fixed_start=fixed_start, clip=False)
        elif every:
            found = intervals.bernstein(part, delta, tau_mix or 1.0, *ends, clip=False)
        else:
            found = asymptotic("constraints along the path", part, delta, method, tau_mix)
            for column, (reason, wanted) in zip(np.flatnonzero(moving), unseen(part, *found), strict=True):
                reasons[column], more[column] = reason, wanted
        least[moving], most[moving] = found
    cut = (np.maximum(least, low), np.minimum(most, high)) if every else (least, most)
    verdict, estimate = verdicts(*cut), constraints.mean(axis=0)
    for column, said in enumerate(verdict):
        if said == "undecided" and not reasons[column]:
            more[column] = to_decide(n, estimate[column], least[column], most[column])
    plain = "batch" if every else method
    return Certificate(
        *(estimate, *cut, verdict, more),
        *(float(losses.mean()), *_loss_ends(losses, 1 - confidence, plain, tau_mix, still)),
        *(confidence, method, "every n" if every else "as n grows", n),
        reason=reasons,
        why=why,
    )


def choose(
    constraints: np.ndarray,
    confidence: float,
    tau_mix: float | None,
    ranges: Ranges | None,
    fixed_start: bool,
) -> tuple[str, str]:
    """Which method these data call for, and why.

    Hoeffding's, which holds for every n, where mixing time and bounds are known and it costs little (1.5 times the
    width of the batch interval), or where the batch interval has nothing to say; else batch means. The choice looks at
    widths, never at what the intervals say of 0.
    """
    if tau_mix is None or ranges is None:
        return "batch", "mixing time and bounds are not both known, so it holds as n grows"
    low, high = within(constraints, ranges)
    moving = low < high
    if not moving.any():
        return "batch", "no constraint depends on the sample"
    part, delta = constraints[:, moving], (1 - confidence) / len(low)
    sure = intervals.hoeffding(part, delta, tau_mix, low[moving], high[moving], fixed_start=fixed_start, clip=False)
    try:
        plain = asymptotic("constraints along the path", part, delta, "batch", tau_mix)
    except ValueError:
        return "hoeffding", "the path is too short for intervals that hold as n grows"
    if np.isinf(plain[1] - plain[0]).any():
        return "hoeffding", "too few rare, large values for intervals that hold as n grows"
    ratio = float(np.max((sure[1] - sure[0]) / (plain[1] - plain[0])))
    if ratio <= WORTH:
        return "hoeffding", f"it holds for every n, and is {ratio:.1f} times as wide as the batch interval at most"
    return "batch", f"Hoeffding's interval, which holds for every n, would be up to {ratio:.1f} times as wide"


def _loss_ends(
    losses: np.ndarray, delta: float, method: str, tau_mix: float | None, still: bool
) -> tuple[float, float]:
    """The loss has no bounds given: its interval holds as n grows. Constraints do not depend on it: a loss that the
    path says too little about has no ends, and does not stop their certificate."""
    if still:
        return float(losses[0]), float(losses[0])
    try:
        low, high = asymptotic("loss along the path", losses[:, None], delta, method, tau_mix)
    except ValueError:
        return -np.inf, np.inf
    return float(low[0]), float(high[0])


def asymptotic(name: str, values: np.ndarray, delta: float, method: str, tau_mix: float | None) -> Ranges:
    """Ends that hold as n grows. Columns that show one value only have none; a path too short is refused."""
    low, high = np.full(values.shape[1], -np.inf), np.full(values.shape[1], np.inf)
    moving = np.ptp(values, axis=0) > 0
    part = checked_series(name, values[:, moving] if moving.any() else values)  # none moves: refused by name
    seen = intervals.relaxation_time(part)
    tau = max(seen, tau_mix or 0.0)
    if len(part) < NEEDED * tau:
        why = f"that stay correlated for about {tau:.0f}" if tau == seen else f"of mixing time {tau:.0f}"
        raise ValueError(
            f"path too short to certify anything: {len(part)} samples {why} ({name}); take at least {int(200 * tau):,}"
        )
    low[moving], high[moving] = getattr(intervals, method)(part, delta)
    return low, high


def unseen(values: np.ndarray, low: np.ndarray, high: np.ndarray) -> Iterator[tuple[str, int]]:
    """For each column why it has no ends, where it has none, and how many more samples would show enough."""
    n, still = len(values), np.ptp(values, axis=0) == 0
    skewed = np.maximum(*intervals.skewness(values))
    for column, given in enumerate(np.isfinite(high - low)):
        if given:
            yield "", 0
        elif still[column]:
            yield f"one value in all {n:,} samples", NEVER
        else:
            wanted = n * (np.square(skewed[column] / intervals.SKEWED) - 1)
            yield f"too few rare, large values in {n:,} samples", int(np.ceil(max(wanted, 1)))


def verdicts(lower: np.ndarray, upper: np.ndarray) -> list[str]:
    """What intervals for E[g_i(x, xi)] say of E[g_i(x, xi)] <= 0."""
    ends = zip(lower, upper, strict=True)
    return ["satisfied" if high <= 0 else "violated" if low > 0 else "undecided" for low, high in ends]


def to_decide(n: int, middle: float, low: float, high: float) -> int:
    """The half-width shrinks as 1 / sqrt(n): it must come below the distance of the estimate from 0."""
    half = high - middle if middle <= 0 else middle - low
    needed = n * np.square(half / middle) if middle else np.inf
    return int(min(np.ceil(max(needed - n, 1)), NEVER))
