"""Losses and constraints watched while they arrive, and the certificate so far."""

from __future__ import annotations

import numpy as np

from ergodrift.trust.certificate import NEVER, Certificate, to_decide, verdicts
from ergodrift.trust.ranges import Ranges, within
from ergodrift.trust.sequence import KnownSequence, LearnedSequence

EMPTY = (
    "intervals given at different times exclude each other or the mean of all samples; the series is not stationary, "
    "or too little was seen"
)


class Watch:
    """Anytime intervals for m constraints and the loss.

    Constraints have intervals for every n where mixing time and ranges are known, else as n grows, as the loss always
    has. `constant_loss`: the loss is the same for every sample there can be.
    """

    def __init__(
        self,
        number: int,
        confidence: float,
        tau_mix: float | None,
        ranges: Ranges | None,
        tuned_for: int,
        *,
        constant_loss: bool = False,
    ) -> None:
        self.confidence, self.ranges, self.constant_loss, self.number = confidence, ranges, constant_loss, number
        self.low, self.high = within(np.empty((0, number)), ranges)
        self.moving = self.low < self.high  # else the same for every sample there can be: nothing to estimate
        delta = (1 - confidence) / number
        ends = self.low[self.moving], self.high[self.moving]
        if tau_mix is not None and np.isfinite(ends).all():
            self.constraints: KnownSequence | LearnedSequence = KnownSequence(delta, tau_mix, *ends, tuned_for)
        else:
            self.constraints = LearnedSequence(delta, len(ends[0]), tuned_for, tau_mix)
        self.loss = LearnedSequence(1 - confidence, 1, tuned_for, tau_mix)

    def add(self, losses: np.ndarray, constraints: np.ndarray) -> None:
        """More losses (n,) and constraints (n, m)."""
        within(constraints, self.ranges)
        if self.moving.any():
            self.constraints.add(constraints[:, self.moving])
        self.loss.add(losses[:, None])

    def certificate(self) -> Certificate:
        """Where things stand."""
        estimate, least, most = self.low.copy(), self.low.copy(), self.high.copy()
        estimate[self.moving] = self.constraints.mean
        least[self.moving], most[self.moving] = self.constraints.ends()
        every, n = isinstance(self.constraints, KnownSequence), self.loss.count
        low, high = (np.maximum(least, self.low), np.minimum(most, self.high)) if every else (least, most)
        empty = low > high
        if isinstance(self.constraints, LearnedSequence):
            empty[self.moving] = self.constraints.inconsistent()
        ends = np.where(empty, -np.inf, low), np.where(empty, np.inf, high)
        verdict = ["inconsistent" if bad else said for bad, said in zip(empty, verdicts(*ends), strict=True)]
        reasons, more = [""] * self.number, [0] * self.number
        for column, i in enumerate(np.flatnonzero(self.moving)):
            said = verdict[i]
            if said == "inconsistent":
                reasons[i], more[i] = EMPTY, NEVER
            elif isinstance(self.constraints, LearnedSequence) and self.constraints.why(column):
                reasons[i] = self.constraints.why(column)
                more[i] = int(min(np.ceil(self.constraints.more(column)), NEVER))
            elif said == "undecided":
                more[i] = to_decide(n, estimate[i], least[i], most[i])
        guarantee = "every n" if every else "as n grows"
        return Certificate(
            *(estimate, *ends, verdict, more, *self._of_loss(), self.confidence, "anytime", guarantee, n),
            reason=reasons,
        )

    def _of_loss(self) -> tuple[float, float, float]:
        mean = float(self.loss.mean[0])
        if self.constant_loss:
            return mean, mean, mean
        low, high = (float(end[0]) for end in self.loss.ends())
        return (mean, -np.inf, np.inf) if self.loss.inconsistent()[0] else (mean, low, high)

    def state(self) -> dict[str, np.ndarray]:
        """All that the next sample needs."""
        parts = {"constraints": self.constraints, "loss": self.loss}
        return {f"{name}_{key}": value for name, part in parts.items() for key, value in part.state().items()}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from there; a state of other shapes is refused."""
        for name, part in {"constraints": self.constraints, "loss": self.loss}.items():
            mine = {key: state[f"{name}_{key}"] for key in part.state()}
            for key, value in part.state().items():
                if (mine[key].shape, mine[key].dtype) != (value.shape, value.dtype):
                    raise ValueError(f"{name}_{key} is {mine[key].dtype} of shape {mine[key].shape}")
            part.restore(mine)
