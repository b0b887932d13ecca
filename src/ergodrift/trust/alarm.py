"""An alarm for data whose law changes while they arrive: a sequential test that may be looked at for ever."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from ergodrift._core import check
from ergodrift.trust.epochs import GRAIN, Epochs

ASPECTS = ("level", "spread")


@dataclasses.dataclass(frozen=True)
class Drift:
    """That a law has changed, and when it was found; prints as a sentence.

    Attributes:
        sample: after how many samples it was found.
        since: the samples after this one are what differs from those before.
        column: of the values.
        aspect: "level" or "spread".
        before: the mean of the column over the baseline, or for "spread" its mean distance from the first samples'
            median.
        after: the same over the samples that differ.
        excess: by how much the threshold was exceeded, as a ratio above 1.
    """

    sample: int
    since: int
    column: int
    aspect: str
    before: float
    after: float
    excess: float

    def __str__(self) -> str:
        return (
            f"the {self.aspect} of column {self.column} has changed: from {self.before:.4g} to {self.after:.4g} in "
            f"samples {self.since + 1:,} to {self.sample:,}"
        )


class DriftAlarm:
    """A sequential test that the law of dependent data is still the one it began with.

    The alarm is raised on data whose law never changes with probability 1 - `confidence` at most, over its whole life:
    looks after every sample and for ever. That holds as samples grow, for stationary series whose means over blocks
    obey a central limit theorem, and rests on relaxation times that the baseline has shown: nothing is tested before
    48 blocks of 10 integrated autocorrelation times each were seen (docs/laboratory/coverage.md has the argument and
    what was measured). It says nothing about data with a season: take it off first.

    What it says depends on the samples alone, not on how they were cut into updates; memory and cost per sample do not
    grow.

    Args:
        confidence: 1 - the probability of a false alarm, over all columns and for ever.
        warm_up: samples that make the empirical law, a power of two. Testing begins after five times as many at the
            earliest.

    >>> rng = np.random.default_rng(0)
    >>> alarm = DriftAlarm()
    >>> alarm.update(rng.normal(size=20_000))
    >>> print(alarm.update(rng.normal(size=2_000) + 0.5))
    the level of column 0 has changed: from 0.008266 to 0.4745 in samples 20,097 to 20,608
    """

    def __init__(self, confidence: float = 0.95, *, warm_up: int = 1024) -> None:
        self.confidence = float(check.number("confidence", confidence, above=0, below=1))
        self.warm_up = check.integer("warm_up", warm_up, at_least=8 * GRAIN, at_most=2**20)
        if self.warm_up & (self.warm_up - 1):
            raise ValueError(f"warm_up must be a power of two such as 1024, got {warm_up}")
        self.count = 0
        self.drift: Drift | None = None
        self._epochs: Epochs | None = None

    @property
    def raised(self) -> bool:
        """Whether a change was found; then it stays found, and further samples are only counted."""
        return self.drift is not None

    def update(self, values: ArrayLike) -> Drift | None:
        """More values, (n,) or (n, m): what was found, in these or in earlier ones; None where there is nothing."""
        array = np.asarray(values)
        if array.dtype.kind not in "iufb":
            raise TypeError(f"values must be numbers, got {array.dtype}")
        if array.ndim not in (1, 2):
            raise ValueError(f"values must have shape (n,) or (n, m), got {array.shape}")
        array = np.asarray(array, dtype=np.float64)
        array = array[:, None] if array.ndim == 1 else array
        if not np.isfinite(array).all():
            row, column = (int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise ValueError(
                f"values holds {array[row, column]} in column {column}, sample {self.count + row + 1}: its law cannot "
                "be watched; drop such samples, or watch whether they are finite as a column of 0 and 1"
            )
        if self._epochs is None:
            if not array.size:
                return None
            self._epochs = Epochs(array.shape[1], 1 - self.confidence, self.warm_up)
        if len(array) and array.shape[1] != self._epochs.columns:
            raise ValueError(f"values has {array.shape[1]} columns, but the first ones had {self._epochs.columns}")
        if not self.raised and len(array):
            found = self._epochs.add(array)
            self.drift = None if found is None else Drift(*found[:3], ASPECTS[found.spread], *found[4:])
        self.count += len(array)
        return self.drift

    def state(self) -> dict[str, np.ndarray]:
        """All that the next sample needs: arrays by name, to be saved as they are."""
        told: list[float] = []
        if self.drift is not None:
            sample, since, column, aspect, *means = dataclasses.astuple(self.drift)
            told = [sample, since, column, ASPECTS.index(aspect), *means]
        own = {"settings": np.array([self.confidence, self.warm_up]), "seen": np.array(self.count)}
        rest = {} if self._epochs is None else self._epochs.state()
        return {**own, "drift": np.array(told, dtype=float), **rest}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from there; a state of an alarm with other settings is refused."""
        settings = np.asarray(state["settings"]).tolist()
        if settings != [self.confidence, self.warm_up]:
            raise ValueError(
                f"this state is of an alarm with confidence={settings[0]:g} and warm_up={settings[1]:g}, not "
                f"confidence={self.confidence:g} and warm_up={self.warm_up}; make one like it"
            )
        self.count, told = int(state["seen"]), np.asarray(state["drift"]).tolist()
        self.drift = None
        if told:
            self.drift = Drift(int(told[0]), int(told[1]), int(told[2]), ASPECTS[int(told[3])], *told[4:])
        self._epochs = None
        if "warm" in state:
            self._epochs = Epochs(state["warm"].shape[1], 1 - self.confidence, self.warm_up)
            self._epochs.restore(state)
