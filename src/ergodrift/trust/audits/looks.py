"""Intervals for groups and pairs of groups that hold at all times together, while rows arrive."""

from __future__ import annotations

import numpy as np
import scipy

from ergodrift.trust.audits.linear import FEWEST, Ends, effective_batches, ratio_of_means
from ergodrift.trust.audits.record import Record
from ergodrift.trust.blocks import Blocks
from ergodrift.trust.certificate import NEVER
from ergodrift.trust.sequence import (
    EARLY_DAYS,
    FEW_EVENTS,
    GIVEN,
    ONE_VALUE,
    SHORT_BLOCKS,
    VISIBLE,
    look,
    schedule,
)
from ergodrift.trust.watch import EMPTY

SPREAD, BATCHES = 2 * FEWEST, 40  # a group must be in so many of so many stretches of time
NO_VALUE, FEW_STRETCHES, NOT_POSITIVE = 5, 6, 7
WORDS = {
    GIVEN: "",
    ONE_VALUE: "one value in all its rows",
    SHORT_BLOCKS: "rows that stay correlated for too long",
    FEW_EVENTS: "too few rare, large values among its rows",
    NO_VALUE: "no value: nothing in its denominator",
    FEW_STRETCHES: "its rows lie in too few stretches of time",
    NOT_POSITIVE: "a ratio needs values above 0",
}


class Looks:
    """What looks at a `Record` have said, as matrices over columns: groups in the order in which they turned up, and
    all rows last.

    On the diagonal stand values, elsewhere differences row minus column; of values, and of their logarithms. Entries
    above the diagonal are kept. A look is after 2^k or 3 x 2^k rows, and has the interval of `sequence.look` for the
    linearised series (`linear`) of blocks, at its share of delta; all looks that were not too early are intersected.
    """

    def __init__(self, metrics: int, delta: float, tuned_for: int) -> None:
        self.metrics, self.delta = metrics, delta
        self.looks, self.shares = schedule(tuned_for)
        shape = (metrics, 2, 1, 1)
        self.low, self.high = np.zeros((0, *shape)), np.zeros((0, *shape))
        self.early, self.needed = np.zeros(shape), np.full(shape, np.inf)
        self.reason = np.full(shape, EARLY_DAYS)

    def widen(self, groups: int) -> None:
        """Room for so many groups; all rows stay last."""
        more = groups + 1 - self.early.shape[-1]

        def wider(values: np.ndarray, fill: float) -> np.ndarray:
            old = values.shape[-1] - 1
            order = [*range(old), *range(old + 1, old + 1 + more), old]
            padded = np.pad(values, [(0, 0)] * (values.ndim - 2) + [(0, more)] * 2, constant_values=fill)
            return padded[..., order, :][..., order]

        self.low, self.high = wider(self.low, -np.inf), wider(self.high, np.inf)
        self.early, self.needed = wider(self.early, 0.0), wider(self.needed, np.inf)
        self.reason = wider(self.reason, EARLY_DAYS)

    def until(self, count: int) -> int:
        """Rows until the next look."""
        return int(self.looks[np.searchsorted(self.looks, count, side="right")]) - count

    def due(self, count: int) -> bool:
        """Whether it is time for one."""
        return bool(count == self.looks[np.searchsorted(self.looks, count)])

    def take(self, record: Record) -> None:
        """Look at the record."""
        share = self.shares[np.searchsorted(self.looks, record.count)]
        size = self.early.shape[-1]
        low, high = np.full((self.metrics, 2, size, size), -np.inf), np.full((self.metrics, 2, size, size), np.inf)
        for metric in range(self.metrics):
            self._one(metric, record, share, low, high)
        self.low, self.high = np.append(self.low, low[None], axis=0), np.append(self.high, high[None], axis=0)
        given = np.isfinite(self._kept()[1])
        self.reason = np.where(given, GIVEN, self.reason)

    def _one(self, metric: int, record: Record, share: float, low: np.ndarray, high: np.ndarray) -> None:
        linear = ratio_of_means(*record.blocks(metric), record.count)
        k, tau, value = len(linear.value), linear.tau, linear.value
        spread = effective_batches(linear.weight, BATCHES)
        pairs = [(i, i) for i in range(k)] + [(i, j) for i in range(k) for j in range(i + 1, k)]
        rows, columns = np.array(pairs).T
        delta = share * self.delta / self.metrics / self._together(k, rows, columns)
        amiss = np.select([np.isnan(value), spread < SPREAD], [NO_VALUE, FEW_STRETCHES], GIVEN)
        for log in (0, 1):
            scale = 1 / np.where(value > 0, value, 1.0) if log else np.ones(k)
            weights = np.zeros((k, len(pairs)))
            weights[rows, np.arange(len(pairs))] = scale[rows]
            apart = rows != columns
            weights[columns[apart], np.flatnonzero(apart)] -= scale[columns[apart]]
            series, taus = linear.influence @ weights, np.maximum(tau[rows], tau[columns])
            blocks = Blocks(len(pairs))
            blocks.add(series)
            found = look(blocks.moments(VISIBLE), np.zeros(len(pairs)), len(series), delta, taus)
            freedom = np.minimum(np.clip(spread, SPREAD, BATCHES)[rows], np.clip(spread, SPREAD, BATCHES)[columns]) - 1
            wider = scipy.stats.t.isf(delta / 2, freedom) / scipy.stats.t.isf(delta / 2, BATCHES - 1)
            level = np.log(np.where(value > 0, value, 1.0)) if log else np.nan_to_num(value)
            middle = np.where(apart, level[rows] - level[columns], level[rows])
            own = np.where(amiss == GIVEN, np.where(np.isfinite(found.low[:k]), GIVEN, found.reason[:k]), amiss)
            own = np.where(log & (own == GIVEN) & ~(value > 0), NOT_POSITIVE, own)
            fault = np.where(own[rows] != GIVEN, own[rows], own[columns])
            fine = (fault == GIVEN) & np.isfinite(found.low)
            low[metric, log, rows, columns] = np.where(fine, middle + found.low * wider, -np.inf)
            high[metric, log, rows, columns] = np.where(fine, middle + found.high * wider, np.inf)
            length = record.length
            self.early[metric, log, rows, columns] = found.early * length
            self.needed[metric, log, rows, columns] = np.where(
                fault > FEW_EVENTS, 2.0 * record.count, found.needed * length
            )
            self.reason[metric, log, rows, columns] = np.where(fault == GIVEN, found.reason, fault)

    def _together(self, k: int, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """How many intervals share delta with each: values of groups, all rows, groups beside all rows, pairs."""
        groups = k - 1
        every, pair = rows == k - 1, (rows != columns) & (columns < k - 1)
        return np.select([every, pair], [1, groups * (groups - 1) / 2], groups)

    def _kept(self) -> tuple[np.ndarray, np.ndarray]:
        if not len(self.low):
            return np.full(self.early.shape, -np.inf), np.full(self.early.shape, np.inf)
        kept = self.looks[: len(self.low), None, None, None, None] >= self.early
        return np.where(kept, self.low, -np.inf).max(axis=0), np.where(kept, self.high, np.inf).min(axis=0)

    def ends(self, metric: int, log: bool, pairs: list[tuple[int, int]], values: np.ndarray, count: int) -> Ends:
        """Of these entries, with the estimates `values` after `count` rows."""
        rows, columns = np.array([(i, i if j < 0 else j) for i, j in pairs], dtype=int).reshape(-1, 2).T
        low, high = (end[metric, int(log), rows, columns] for end in self._kept())
        empty = (low > high) | (values < low) | (values > high)
        low, high = np.where(empty, -np.inf, low), np.where(empty, np.inf, high)
        said, more = [], []
        for at, (i, j) in enumerate(zip(rows, columns, strict=True)):
            code = int(self.reason[metric, int(log), i, j])
            early = code == EARLY_DAYS
            text = f"nothing is said before {self.looks[0]:,.0f} rows" if early else WORDS[code]
            wanted = max(count + self.until(count), self.needed[metric, int(log), i, j] if not early else 0.0)
            given = bool(np.isfinite(low[at]))
            said.append("" if given else EMPTY if empty[at] else text)
            more.append(0 if given else int(min(max(wanted - count, 1.0), NEVER)) if not empty[at] else NEVER)
        return Ends(values, low, high, said, more, [-1] * len(said))

    def state(self) -> dict[str, np.ndarray]:
        """All that the next look needs."""
        return {name: getattr(self, name) for name in ("low", "high", "early", "needed", "reason")}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from there."""
        for name in self.state():
            setattr(self, name, np.array(state[name]))
