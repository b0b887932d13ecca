"""Certificate methods: how a held-out path becomes intervals, and these a certificate."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import numpy as np

from ergodrift._core import check, tree
from ergodrift.trust import intervals
from ergodrift.trust.autocorrelation import checked_series
from ergodrift.trust.certificate import NEVER, TUNED_FOR, Certificate, to_decide, verdicts
from ergodrift.trust.ranges import Ranges, within
from ergodrift.trust.watch import Watch

NEEDED = 15  # relaxation or mixing times below which a held-out path is refused
WORTH = 1.5  # how much wider than the batch interval one that holds for every n may be to be preferred


class HeldOut(NamedTuple):
    """A held-out path at one point, and what is known of it.

    Attributes:
        losses: (n,).
        constraints: (n, m).
        tau_mix: the mixing time; None where it is not known.
        ranges: (low, high) of the constraints; None where they are not known.
        constant_loss: whether the loss is the same for every sample there can be.
        fixed_start: whether the first sample was not drawn from the stationary law.
        tuned_for: the number of samples at which an anytime interval should be tightest.
    """

    losses: np.ndarray
    constraints: np.ndarray
    tau_mix: float | None = None
    ranges: Ranges | None = None
    constant_loss: bool = False
    fixed_start: bool = False
    tuned_for: int = TUNED_FOR

    def known(self, low: np.ndarray, high: np.ndarray) -> SeriesInfo:
        """What is known of series in these ranges along the path."""
        return SeriesInfo(self.tau_mix, low, high, self.fixed_start, self.tuned_for)


class SeriesInfo(NamedTuple):
    """What is known of some series, (n, k), beside their values.

    Attributes:
        tau_mix: the mixing time; None where it is not known.
        low: (k,), below which no value can be; -inf where that is not known.
        high: (k,), likewise above.
        fixed_start: whether the first sample was not drawn from the stationary law.
        tuned_for: the number of samples at which an anytime interval should be tightest.
    """

    tau_mix: float | None
    low: np.ndarray
    high: np.ndarray
    fixed_start: bool = False
    tuned_for: int = TUNED_FOR

    def of(self, columns: np.ndarray) -> SeriesInfo:
        """The same of some columns."""
        return self._replace(low=self.low[columns], high=self.high[columns])


class CertificateMethod(tree.Module, abc.ABC):
    """Intervals for the stationary means of dependent series; pass one to `certify(..., method=...)`.

    A subclass is a frozen dataclass; `intervals` is all that it must have. What surrounds it is the same for all: the
    confidence is shared out among constraints, a path too short and a constraint that shows one value only are named,
    verdicts and the samples that are missing follow.

    Attributes:
        every_n: whether intervals hold for every n, given mixing time and bounds, or as n grows.
        from_stationary: whether they are about paths that start in the stationary law only.
    """

    every_n: ClassVar[bool] = False
    from_stationary: ClassVar[bool] = False

    @abc.abstractmethod
    def intervals(self, values: np.ndarray, delta: float, known: SeriesInfo) -> Ranges:
        """Lower and upper ends, (k,) each, that hold for each column of `values` (n, k) with probability 1 - delta.

        (-inf, inf) where too little was seen.
        """

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    def certificate(self, path: HeldOut, confidence: float, why: str = "") -> Certificate:
        """The certificate of a whole path; `why` this method was chosen, where it was."""
        n, number = path.constraints.shape
        delta = (1 - confidence) / number
        low, high = within(path.constraints, path.ranges)
        moving = low < high  # else the same for every sample there can be: nothing to estimate
        self._refuse_unknown(path.tau_mix, bool(np.isfinite((high - low)[moving]).all()))
        least, most = low.copy(), high.copy()  # as found, before they are cut to the bounds
        reasons, more = [""] * number, [0] * number
        if moving.any():
            part = path.constraints[:, moving]
            known = path.known(low, high).of(moving)
            if self.every_n:
                found = _ends(self, self.intervals(part, delta, known), part.shape[1])
            else:
                found = self._as_n_grows("constraints along the path", part, delta, known)
                for column, (reason, wanted) in zip(np.flatnonzero(moving), unseen(part, *found), strict=True):
                    reasons[column], more[column] = reason, wanted
            least[moving], most[moving] = found
        cut = (np.maximum(least, low), np.minimum(most, high)) if self.every_n else (least, most)
        verdict, estimate = verdicts(*cut), path.constraints.mean(axis=0)
        for column, said in enumerate(verdict):
            if said == "undecided" and not reasons[column]:
                more[column] = to_decide(n, estimate[column], least[column], most[column])
        plain = Batch() if self.every_n else self
        return Certificate(
            *(estimate, *cut, verdict, more),
            *(float(path.losses.mean()), *plain._loss_ends(path, 1 - confidence)),
            *(confidence, self.name, "every n" if self.every_n else "as n grows", n),
            reason=reasons,
            why=why,
        )

    def _refuse_unknown(self, tau_mix: float | None, bounded: bool) -> None:
        known = {"tau_mix": tau_mix is not None, "bounds": bounded}
        missing = " and ".join(name for name, given in known.items() if not given)
        if self.every_n and missing:
            raise ValueError(
                f"method={self.name!r} needs {missing}: pass the tau_mix that you know, or "
                "tau_mix=ed.diagnose(source).tau_mix_interval[1], which is an estimate, so that the certificate is "
                "only as good as it is, and bounds=(low, high) for the constraints; or use method='batch'"
            )

    def _loss_ends(self, path: HeldOut, delta: float) -> tuple[float, float]:
        """The loss has no bounds given: its interval holds as n grows. Constraints do not depend on it: a loss that the
        path says too little about has no ends, and does not stop their certificate."""
        losses = path.losses
        if path.constant_loss:
            return float(losses[0]), float(losses[0])
        try:
            known = path.known(np.full(1, -np.inf), np.full(1, np.inf))
            low, high = self._as_n_grows("loss along the path", losses[:, None], delta, known)
        except ValueError:
            return -np.inf, np.inf
        return float(low[0]), float(high[0])

    def _as_n_grows(self, name: str, values: np.ndarray, delta: float, known: SeriesInfo) -> Ranges:
        """Ends that hold as n grows. Columns that show one value only have none; a path too short is refused."""
        low, high = np.full(values.shape[1], -np.inf), np.full(values.shape[1], np.inf)
        moving = np.ptp(values, axis=0) > 0
        part = checked_series(name, values[:, moving] if moving.any() else values)  # none moves: refused by name
        seen = intervals.relaxation_time(part)
        tau = max(seen, known.tau_mix or 0.0)
        if len(part) < NEEDED * tau:
            why = f"that stay correlated for about {tau:.0f}" if tau == seen else f"of mixing time {tau:.0f}"
            raise ValueError(
                f"path too short to certify anything: {len(part)} samples {why} ({name}); "
                f"take at least {int(200 * tau):,}"
            )
        low[moving], high[moving] = _ends(self, self.intervals(part, delta, known.of(moving)), part.shape[1])
        return low, high


def _ends(method: CertificateMethod, found: Ranges, count: int) -> Ranges:
    """What `intervals` returned, checked: anybody may write one."""
    name = f"{type(method).__name__}.intervals(...)"
    if not isinstance(found, tuple) or len(found) != 2:
        raise TypeError(f"{name} must return a pair (lower, upper), got {type(found).__name__}")
    low, high = (np.asarray(end, dtype=float) for end in found)
    if low.shape != (count,) or high.shape != (count,):
        raise ValueError(f"{name} must return ends of shape ({count},), got {low.shape} and {high.shape}")
    if not (low <= high).all():
        raise ValueError(f"{name} must return lower ends that are at most the upper ones, got {low} and {high}")
    return low, high


class Batch(CertificateMethod):
    """Batch means."""

    def intervals(self, values: np.ndarray, delta: float, known: SeriesInfo) -> Ranges:
        return intervals.batch(values, delta)


class Overlapping(CertificateMethod):
    """Overlapping batch means."""

    def intervals(self, values: np.ndarray, delta: float, known: SeriesInfo) -> Ranges:
        return intervals.overlapping(values, delta)


class Bootstrap(CertificateMethod):
    """The stationary bootstrap, studentised."""

    def intervals(self, values: np.ndarray, delta: float, known: SeriesInfo) -> Ranges:
        return intervals.bootstrap(values, delta)


class Hoeffding(CertificateMethod):
    """Paulin's inequality of Hoeffding's kind, from any start."""

    every_n = True

    def intervals(self, values: np.ndarray, delta: float, known: SeriesInfo) -> Ranges:
        tau, start = known.tau_mix or 1.0, known.fixed_start
        return intervals.hoeffding(values, delta, tau, known.low, known.high, fixed_start=start, clip=False)


class Bernstein(CertificateMethod):
    """Paulin's inequality of Bernstein's kind."""

    every_n = True
    from_stationary = True

    def intervals(self, values: np.ndarray, delta: float, known: SeriesInfo) -> Ranges:
        return intervals.bernstein(values, delta, known.tau_mix or 1.0, known.low, known.high, clip=False)


class Anytime(CertificateMethod):
    """Intervals that may be watched while samples arrive: for every n where that can be, else as n grows."""

    def intervals(self, values: np.ndarray, delta: float, known: SeriesInfo) -> Ranges:
        if known.tau_mix is None or not np.isfinite(known.high - known.low).all():
            return intervals.anytime_asymptotic(values, delta, known.tuned_for)
        return intervals.anytime(values, delta, known.tau_mix, known.low, known.high, known.tuned_for)

    def certificate(self, path: HeldOut, confidence: float, why: str = "") -> Certificate:
        number = path.constraints.shape[1]
        watch = Watch(number, confidence, path.tau_mix, path.ranges, path.tuned_for, constant_loss=path.constant_loss)
        watch.add(path.losses, path.constraints)
        return watch.certificate()


class Auto(CertificateMethod):
    """Hoeffding's, which holds for every n, where mixing time and bounds are known and it costs little (1.5 times the
    width of the batch interval), or where the batch interval has nothing to say; else batch means. The choice looks at
    widths, never at what the intervals say of 0.
    """

    def intervals(self, values: np.ndarray, delta: float, known: SeriesInfo) -> Ranges:
        return self._chosen(values, delta, known)[0].intervals(values, delta, known)

    def certificate(self, path: HeldOut, confidence: float, why: str = "") -> Certificate:
        low, high = within(path.constraints, path.ranges)
        moving = low < high
        known = path.known(low, high).of(moving)
        method, why = self._chosen(path.constraints[:, moving], (1 - confidence) / len(low), known)
        return method.certificate(path, confidence, why)

    def _chosen(self, values: np.ndarray, delta: float, known: SeriesInfo) -> tuple[CertificateMethod, str]:
        """Which method the columns that move call for, and why."""
        if not values.shape[1]:
            return Batch(), "no constraint depends on the sample"
        if known.tau_mix is None or not np.isfinite(known.high - known.low).all():
            return Batch(), "mixing time and bounds are not both known, so it holds as n grows"
        sure = Hoeffding().intervals(values, delta, known)
        try:
            plain = Batch()._as_n_grows("constraints along the path", values, delta, known)
        except ValueError:
            return Hoeffding(), "the path is too short for intervals that hold as n grows"
        if np.isinf(plain[1] - plain[0]).any():
            return Hoeffding(), "too few rare, large values for intervals that hold as n grows"
        ratio = float(np.max((sure[1] - sure[0]) / (plain[1] - plain[0])))
        if ratio <= WORTH:
            why = f"it holds for every n, and is {ratio:.1f} times as wide as the batch interval at most"
            return Hoeffding(), why
        return Batch(), f"Hoeffding's interval, which holds for every n, would be up to {ratio:.1f} times as wide"


METHODS = {kind().name: kind() for kind in (Batch, Overlapping, Bootstrap, Hoeffding, Bernstein, Anytime, Auto)}


def certificate_method(method: str | CertificateMethod | None) -> CertificateMethod:
    """What a caller asks for by name, or as it is."""
    if isinstance(method, CertificateMethod):
        return method
    if isinstance(method, type) and issubclass(method, CertificateMethod):
        raise TypeError(f"method must be an instance, {method.__name__}(...), not the class {method.__name__}")
    return METHODS[check.choice("method", "auto" if method is None else method, tuple(METHODS))]


def unseen(values: np.ndarray, low: np.ndarray, high: np.ndarray) -> Iterator[tuple[str, int]]:
    """For each column why it has no ends, where it has none, and how many more samples would show enough."""
    n, constant = len(values), np.ptp(values, axis=0) == 0
    skewed = np.maximum(*intervals.skewness(values))
    for column, given in enumerate(np.isfinite(high - low)):
        if given:
            yield "", 0
        elif constant[column]:
            yield f"one value in all {n:,} samples", NEVER
        elif skewed[column] <= intervals.SKEWED:
            yield f"the method gives no interval for {n:,} samples", NEVER
        else:
            wanted = n * (np.square(skewed[column] / intervals.SKEWED) - 1)
            yield f"too few rare, large values in {n:,} samples", int(np.ceil(max(wanted, 1)))
