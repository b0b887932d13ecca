"""A certificate: intervals for the stationary means of constraints and loss along a path, and verdicts."""

from __future__ import annotations

import dataclasses

import numpy as np

from ergodrift.trust import intervals
from ergodrift.trust.autocorrelation import checked_series

NEEDED = 15  # relaxation or mixing times below which a held-out path is refused
PLANNED = 10_000  # where an anytime interval is tightest; never the length seen so far, which changes as samples arrive


@dataclasses.dataclass(frozen=True, eq=False)
class Certificate:
    """Intervals for ḡ_i(x) and f̄(x), and what follows from them; prints as a table.

    Attributes:
        estimate: (n,) the mean of each constraint along the held-out path.
        lower: (n,) lower ends; with probability `confidence` or more, all intervals of constraints hold at once. A
            constraint that is the same in all samples of a series, while others move, has no ends (-inf, inf): whether
            it depends on the sample at all cannot be told from them.
        upper: (n,) upper ends.
        verdict: for each constraint "satisfied" (upper <= 0), "violated" (lower > 0) or "undecided".
        more_samples: for each constraint, about how many more samples would decide it: 0 where it is decided, 2^62
            where no number can be given.
        loss_estimate, loss_lower, loss_upper: the same for the loss, an interval of its own; without ends where the
            path says too little about the loss.
        confidence: as asked for.
        method: which intervals.
        guarantee: "every n" (if tau_mix is right) or "as n grows".
        num_samples: how long the path was.
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
    warnings: list[str] = dataclasses.field(default_factory=list)

    @property
    def satisfied(self) -> bool:
        """Whether every constraint is certified to hold."""
        return all(verdict == "satisfied" for verdict in self.verdict)

    def __str__(self) -> str:
        holds = "every n, if tau_mix is right" if self.guarantee == "every n" else "holds as n grows"
        lines = [
            f"{self.confidence:.0%} certificate from {self.num_samples:,} samples ({self.method}; {holds})",
            f"{'':14}{'estimate':>12}{'lower':>12}{'upper':>12}   verdict",
        ]
        rows = zip(self.estimate, self.lower, self.upper, self.verdict, self.more_samples, strict=True)
        for number, (middle, low, high, verdict, more) in enumerate(rows):
            wanted = f", about {more:,} more samples would decide" if verdict == "undecided" else ""
            if np.isinf(high - low):
                wanted = ": one value in all samples, or too few of them"
            lines.append(f"constraint {number:<3}{middle:12.5g}{low:12.5g}{high:12.5g}   {verdict}{wanted}")
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
    ranges: tuple[np.ndarray, np.ndarray] | None = None,
    planned: int = PLANNED,
    *,
    still: bool = False,
    fixed_start: bool = False,
    patient: bool = False,
) -> Certificate:
    """The certificate of a path of losses (n,) and constraints (n, m).

    `still`: the loss is the same for every sample there can be; `fixed_start`: the first sample was not drawn from the
    stationary law; `patient`: a path too short to say anything is undecided, not refused.
    """
    number = constraints.shape[1]
    delta = (1 - confidence) / number
    low, high = (np.full(number, -np.inf), np.full(number, np.inf)) if ranges is None else ranges
    low, high = np.broadcast_to(low, number).astype(float), np.broadcast_to(high, number).astype(float)
    if (constraints.min(axis=0) < low - 1e-12).any() or (constraints.max(axis=0) > high + 1e-12).any():
        raise ValueError(
            f"bounds do not hold: got low = {low}, high = {high}, but constraints range from {constraints.min(axis=0)} "
            f"to {constraints.max(axis=0)} along the path; pass bounds that every possible sample keeps, or leave them "
            "out and use method='batch'"
        )
    exact = tau_mix is not None and ranges is not None
    if method in ("hoeffding", "bernstein") and not exact:
        missing = " and ".join(name for name, value in [("tau_mix", tau_mix), ("bounds", ranges)] if value is None)
        raise ValueError(
            f"method={method!r} needs {missing}: pass the tau_mix that you know, or "
            "tau_mix=ed.diagnose(source).tau_mix_interval[1], which is an estimate, so that the certificate is only as "
            "good as it is, and bounds=(low, high) for the constraints; or use method='batch'"
        )
    known = tau_mix if exact else None
    fixed = low == high  # the same for every sample there can be: nothing to estimate
    least, most = low.copy(), high.copy()  # as found, before they are cut to the bounds
    moving = ~fixed
    if moving.any():
        part, ends = constraints[:, moving], (low[moving], high[moving])
        if known is not None and method == "anytime":
            found = intervals.anytime(part, delta, known, *ends, planned, clip=False)
        elif known is not None and method == "hoeffding":
            found = intervals.hoeffding(part, delta, known, *ends, fixed_start=fixed_start, clip=False)
        elif known is not None and method == "bernstein":
            found = intervals.bernstein(part, delta, known, *ends, clip=False)
        else:
            found = _asymptotic("constraints along the path", part, delta, method, tau_mix, planned, patient)
        least[moving], most[moving] = found
    every = exact and method in ("hoeffding", "bernstein", "anytime")
    cut = (np.maximum(least, low), np.minimum(most, high)) if every else (least, most)
    verdict, estimate = verdicts(*cut), constraints.mean(axis=0)
    more = [
        _more_samples(len(losses), *ends) if said == "undecided" else 0
        for said, *ends in zip(verdict, estimate, least, most, strict=True)
    ]
    return Certificate(
        *(estimate, *cut, verdict, more),
        *(float(losses.mean()), *_loss_ends(losses, 1 - confidence, method, tau_mix, planned, still)),
        *(confidence, method, "every n" if every else "as n grows", len(losses)),
    )


def _loss_ends(
    losses: np.ndarray, delta: float, method: str, tau_mix: float | None, planned: int, still: bool
) -> tuple[float, float]:
    """The loss has no bounds given: its interval holds as n grows, watched or not. Constraints do not depend on it: a
    loss that the path says too little about has no ends, and does not stop their certificate."""
    if still:
        return float(losses[0]), float(losses[0])
    plain = "batch" if method in ("hoeffding", "bernstein") else method
    low, high = _asymptotic("loss along the path", losses[:, None], delta, plain, tau_mix, planned, patient=True)
    return float(low[0]), float(high[0])


def _asymptotic(
    name: str, values: np.ndarray, delta: float, method: str, tau_mix: float | None, planned: int, patient: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Ends that hold as n grows. Columns that show one value only have none; neither has a path that says too little
    where one is `patient`."""
    low, high = np.full(values.shape[1], -np.inf), np.full(values.shape[1], np.inf)
    moving = np.ptp(values, axis=0) > 0
    try:
        part = values[:, moving] if moving.any() else values  # none moves: refused by name
        low[moving], high[moving] = _moving(name, part, delta, method, tau_mix, planned)
    except ValueError:
        if not patient:
            raise
    return low, high


def _moving(
    name: str, values: np.ndarray, delta: float, method: str, tau_mix: float | None, planned: int
) -> tuple[np.ndarray, np.ndarray]:
    values = checked_series(name, values)
    seen = intervals.relaxation_time(values)
    tau = max(seen, tau_mix or 0.0)
    if len(values) < NEEDED * tau:
        why = f"that stay correlated for about {tau:.0f}" if tau == seen else f"of mixing time {tau:.0f}"
        raise ValueError(
            f"path too short to certify anything: {len(values)} samples {why} ({name}); take at least "
            f"{int(200 * tau):,}"
        )
    if method == "anytime":
        return intervals.anytime_asymptotic(values, delta, planned)
    return getattr(intervals, method)(values, delta)


def verdicts(lower: np.ndarray, upper: np.ndarray) -> list[str]:
    """What intervals for E[g_i(x, xi)] say of E[g_i(x, xi)] <= 0."""
    ends = zip(lower, upper, strict=True)
    return ["satisfied" if high <= 0 else "violated" if low > 0 else "undecided" for low, high in ends]


def _more_samples(n: int, middle: float, low: float, high: float) -> int:
    """The half-width shrinks as 1 / sqrt(n): it must come below the distance of the estimate from 0."""
    half = high - middle if middle <= 0 else middle - low
    needed = n * np.square(half / middle) if middle else np.inf
    return int(min(np.ceil(max(needed - n, 1)), 2**62))
