"""Certificates: intervals for the stationary means of constraints and loss at a fixed point, and verdicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift import check
from ergodrift.problem import Problem
from ergodrift.source import IIDSource, MarkovSource, SeriesSource, Source, Zip
from ergodrift.trust import intervals
from ergodrift.trust.along import path_values
from ergodrift.trust.autocorrelation import checked_series

METHODS = ("batch", "overlapping", "bootstrap", "hoeffding", "bernstein", "anytime")
FRESH = 2**32 - 1  # the seed of a held-out path unless another is given: far from the 0, 1, 2, ... of runs
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
        for number, (middle, low, high, verdict, more) in enumerate(rows, 1):
            wanted = f", about {more:,} more samples would decide" if verdict == "undecided" else ""
            if np.isinf(high - low):
                wanted = ": one value in all samples, or too few of them"
            lines.append(f"constraint {number:<3}{middle:12.5g}{low:12.5g}{high:12.5g}   {verdict}{wanted}")
        lines.append(f"{'loss':14}{self.loss_estimate:12.5g}{self.loss_lower:12.5g}{self.loss_upper:12.5g}")
        return "\n".join(lines)

    __repr__ = __str__


def certify(
    problem: Problem,
    x: Any,
    source: Source,
    confidence: float = 0.95,
    method: str = "batch",
    *,
    num_samples: int | None = None,
    seed: int = FRESH,
    tau_mix: float | None = None,
    bounds: Any = None,
    planned: int = PLANNED,
) -> Certificate:
    """Whether E[g_i(x, xi)] <= 0 under the stationary law, from one held-out dependent path.

    Args:
        problem: loss and constraints.
        x: a fixed point, chosen without these samples.
        source: where the held-out samples come from.
        confidence: with which all intervals of constraints hold together (Bonferroni); likewise the loss, by itself.
        method: "batch" or "overlapping" batch means, "bootstrap" (stationary, studentised): valid as n grows;
            "hoeffding", "bernstein": for every n, given the mixing time and bounds (Paulin 2015), the second from a
            stationary start only; "anytime": may be watched while samples arrive, for every n where mixing time and
            bounds are known, else as n grows.
        num_samples: length of the path; all of a series unless given.
        seed: of the path.
        tau_mix: the mixing time; that of the chain of a `MarkovSource` unless given, 1 for independent samples.
        bounds: (low, high) between which constraints lie, numbers or one entry a constraint. Known from the data of a
            chain or of independent samples; must be given for a recorded series.
        planned: of "anytime": the number of samples at which it should be tightest. To be fixed beforehand, and the
            same each time where the certificate is asked for again as samples arrive.

    >>> import ergodrift as ed
    >>> chain = ed.MarkovChain([[0.9, 0.1], [0.1, 0.9]])
    >>> source = ed.MarkovSource(chain, np.array([1.0, -1.0]))
    >>> problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x + xi, ed.Ball(2.0))
    >>> ed.certify(problem, np.array([-0.5]), source, num_samples=20_000).verdict
    ['satisfied']
    """
    confidence, tau_mix = _checked(confidence, method, tau_mix)
    planned = check.integer("planned", planned, at_least=1)
    started = _started(source)
    if started and method == "bernstein":
        raise ValueError(
            "method='bernstein' needs a path that starts in the stationary law, this source has start="
            f"{started.first}: use method='anytime', which holds from any start, or leave start out"
        )
    losses, constraints, reach, still = held_out(problem, x, source, num_samples, seed)
    ranges = _ranges(reach, bounds, constraints.shape[1])
    known = _known_tau(source, tau_mix)
    given = started is not None
    return judge(losses, constraints, confidence, method, known, ranges, planned, still=still, fixed_start=given)


class Monitor:
    """An anytime-valid certificate that is brought up to date while samples arrive.

    While there are too few samples to say anything, it is undecided and has no ends.

    Args:
        problem: loss and constraints.
        x: a fixed point.
        confidence: with which all its intervals, at all times together, hold.
        tau_mix, bounds: as in `certify`; with both, the guarantee is for every n.
        planned: the number of samples at which the interval should be tightest.

    >>> import ergodrift as ed
    >>> problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x + xi, ed.Ball(2.0))
    >>> monitor = ed.Monitor(problem, np.array([-0.5]), tau_mix=1, bounds=(-1.5, 0.5))
    >>> rng = np.random.default_rng(0)
    >>> monitor.update(rng.choice([-1.0, 1.0], size=(100, 1))).verdict
    ['undecided']
    >>> monitor.update(rng.choice([-1.0, 1.0], size=(900, 1))).verdict
    ['satisfied']
    """

    def __init__(
        self,
        problem: Problem,
        x: Any,
        confidence: float = 0.95,
        *,
        tau_mix: float | None = None,
        bounds: Any = None,
        planned: int = PLANNED,
    ) -> None:
        self.problem, self.x = problem, x
        self.confidence, self.tau_mix = _checked(confidence, "anytime", tau_mix)
        self.bounds = bounds
        self.planned = check.integer("planned", planned, at_least=1)
        self._values: list[tuple[np.ndarray, np.ndarray]] = []
        self._best: tuple[np.ndarray, np.ndarray] | None = None

    def update(self, samples: Any) -> Certificate:
        """Take in more samples (a leading axis of time) and say where things stand."""
        losses, constraints, _, _ = held_out(self.problem, self.x, SeriesSource(samples), None, FRESH)
        self._values.append((losses, constraints))
        losses, constraints = (np.concatenate(parts) for parts in zip(*self._values, strict=True))
        self._values = [(losses, constraints)]
        ranges = _ranges(None, self.bounds, constraints.shape[1])
        known = (self.tau_mix, ranges, self.planned)
        found = judge(losses, constraints, self.confidence, "anytime", *known, patient=True)
        if self._best is not None:  # an end once given is never taken back
            low, high = np.maximum(found.lower, self._best[0]), np.minimum(found.upper, self._best[1])
            verdict = _verdicts(low, high)
            more = [
                0 if said != "undecided" else wanted for said, wanted in zip(verdict, found.more_samples, strict=True)
            ]
            found = dataclasses.replace(found, lower=low, upper=high, verdict=verdict, more_samples=more)
        self._best = found.lower, found.upper
        return found


def held_out(
    problem: Problem, x: Any, source: Source, num_samples: int | None, seed: int
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray] | None, bool]:
    """Losses (n,) and constraints (n, m) along a path, the range that constraints can have, where it is known, and
    whether the loss is known to be the same for every sample there can be."""
    if not isinstance(source, Source):
        raise TypeError(f"source must be a Source such as SeriesSource(data), got {type(source).__name__}")
    problem.check(jax.tree.map(jnp.asarray, x), source.example)
    count = source.length if num_samples is None else num_samples
    if count is None:
        raise ValueError("num_samples must be given: this source never ends")
    path = jax.tree.map(lambda leaf: np.asarray(leaf)[0], source.paths([seed], count))
    losses, constraints = path_values(problem, source, x, path)
    check.finite("loss along the path", losses)
    check.finite("constraints along the path", constraints)
    if isinstance(source, SeriesSource) or source.length is not None:
        return losses, constraints, None, False
    every = tuple(np.arange(len(law.weights)) for law in (source.loss_law, source.constraint_law))
    each, possible = path_values(problem, source, x, every if isinstance(path, tuple) else every[1])
    return losses, constraints, (possible.min(axis=0), possible.max(axis=0)), bool(np.ptp(each) == 0)


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
    verdict, estimate = _verdicts(*cut), constraints.mean(axis=0)
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


def _verdicts(lower: np.ndarray, upper: np.ndarray) -> list[str]:
    ends = zip(lower, upper, strict=True)
    return ["satisfied" if high <= 0 else "violated" if low > 0 else "undecided" for low, high in ends]


def _more_samples(n: int, middle: float, low: float, high: float) -> int:
    """The half-width shrinks as 1 / sqrt(n): it must come below the distance of the estimate from 0."""
    half = high - middle if middle <= 0 else middle - low
    needed = n * np.square(half / middle) if middle else np.inf
    return int(min(np.ceil(max(needed - n, 1)), 2**62))


def refuse_training(trained: Source, given: Source) -> None:
    """Raise where two recorded series share a stretch of samples."""
    if given is trained or not (isinstance(given, SeriesSource) and isinstance(trained, SeriesSource)):
        shared = given is trained and given.length is not None
    else:
        shared = _overlap(_rows(trained.data), _rows(given.data))
    if shared:
        raise ValueError(
            "these are the samples that the point was fitted on; a certificate needs samples of their own: keep a part "
            "of the series back, such as SeriesSource(data[n:]) after a run on SeriesSource(data[:n])"
        )


def _rows(data: Any) -> np.ndarray:
    leaves = [np.asarray(leaf).reshape(np.shape(leaf)[0], -1).astype(np.float64) for leaf in jax.tree.leaves(data)]
    return np.concatenate(leaves, axis=1)


def _overlap(a: np.ndarray, b: np.ndarray, least: int = 20) -> bool:
    """Whether the end of one is the beginning of the other, or one lies within the other, by `least` rows or more.

    An end on a beginning must hold `least` different rows: a slow series of few values repeats itself at any cut.
    """
    if a.shape[1] != b.shape[1]:
        return False
    rows = np.unique(np.concatenate([a, b]), axis=0, return_inverse=True)[1].ravel()  # equal rows, equal numbers
    for long, short in [(rows[: len(a)], rows[len(a) :]), (rows[len(a) :], rows[: len(a)])]:
        if next(_places(long, short), None) is not None:
            return True
        new = np.sort(np.unique(short, return_index=True)[1])  # where a row stands for the first time
        if len(new) < least:
            continue
        for start in _places(long, short[: new[least - 1] + 1]):
            length = min(len(long) - start, len(short))
            if np.array_equal(long[start : start + length], short[:length]):
                return True
    return False


def _places(long: np.ndarray, short: np.ndarray) -> Iterator[int]:
    """Where a sequence of integers stands within another, by the linear search of bytes."""
    text, wanted, width = long.tobytes(), short.tobytes(), long.itemsize
    at = text.find(wanted)
    while at >= 0:
        if at % width == 0:
            yield at // width
        at = text.find(wanted, at + 1)


def _checked(confidence: float, method: str, tau_mix: float | None) -> tuple[float, float | None]:
    check.choice("method", method, METHODS)
    if tau_mix is not None:
        tau_mix = check.number("tau_mix", tau_mix, at_least=1)
    return check.number("confidence", confidence, above=0.5, below=1), tau_mix


def _behind(source: Source) -> Source:
    """Where the constraints come from."""
    return source.constraints if isinstance(source, Zip) else source


def _known_tau(source: Source, tau_mix: float | None) -> float | None:
    part = _behind(source)
    if tau_mix is None and isinstance(part, MarkovSource):
        return float(part.chain.mixing_time())
    if tau_mix is None and isinstance(part, IIDSource):
        return 1.0
    return tau_mix


def _started(source: Source) -> MarkovSource | None:
    """The chain behind the constraints, where it starts from a given state."""
    part = _behind(source)
    return part if isinstance(part, MarkovSource) and part.first is not None else None


def _ranges(
    found: tuple[np.ndarray, np.ndarray] | None, bounds: Any, number: int
) -> tuple[np.ndarray, np.ndarray] | None:
    if bounds is None:
        return found
    try:
        low, high = (np.atleast_1d(np.asarray(end, dtype=float)) for end in bounds)
    except (TypeError, ValueError):
        raise TypeError(f"bounds must be a pair (low, high), got {bounds!r}") from None
    for name, end in [("low", low), ("high", high)]:
        if end.shape not in [(1,), (number,)]:
            raise ValueError(
                f"bounds must be (low, high), each a number or {number} numbers, one for each constraint; got {name} "
                f"of shape {end.shape}"
            )
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise ValueError(f"bounds must be finite with low < high, got {bounds!r}")
    return low, high
