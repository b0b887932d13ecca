"""Sums over blocks of equal length of all rows so far, kept as rows arrive, in memory that does not grow."""

from __future__ import annotations

import numpy as np

FULL = 512  # blocks; then each two become one


class Record:
    """Numerators and denominators of m metrics in k groups, as sums over at most 512 consecutive blocks of rows.

    Rows are added one after the other, so it makes no difference how they were cut into calls. A group that turns up
    late was 0 before.

    Attributes:
        count: rows so far.
        length: rows in a block.
        sums: (512, m, 2, k).
        powers: (m, 4, k): sums of a^2, a b and b^2 over rows, and how many rows have b != 0.
    """

    def __init__(self, metrics: int, groups: int = 0) -> None:
        self.count, self.length = 0, 1
        self.sums, self.powers = np.zeros((FULL, metrics, 2, groups)), np.zeros((metrics, 4, groups))

    def widen(self, groups: int) -> None:
        """Room for so many groups."""
        more = groups - self.sums.shape[-1]
        self.sums = np.pad(self.sums, [(0, 0)] * 3 + [(0, more)])
        self.powers = np.pad(self.powers, [(0, 0)] * 2 + [(0, more)])

    def add(self, parts: np.ndarray, groups: np.ndarray) -> None:
        """More rows: (n, m, 2) numerators and denominators, and the group of each row (n,)."""
        while len(parts):
            if self.count == FULL * self.length:
                self._merge()
            now = parts[: FULL * self.length - self.count]
            of, block = groups[: len(now)], (self.count + np.arange(len(now))) // self.length
            metrics, size = self.powers.shape[0], self.powers.shape[2]
            for metric in range(metrics):
                above, below = now[:, metric].T
                for part, values in enumerate((above, below)):
                    np.add.at(self.sums.reshape(-1), ((block * metrics + metric) * 2 + part) * size + of, values)
                for power, values in enumerate((above * above, above * below, below * below, below != 0)):
                    np.add.at(self.powers[metric, power], of, values)
            self.count += len(now)
            parts, groups = parts[len(now) :], groups[len(now) :]

    def _merge(self) -> None:
        pairs = self.sums[::2] + self.sums[1::2]
        self.sums = np.concatenate([pairs, np.zeros_like(pairs)])
        self.length *= 2

    def blocks(self, metric: int) -> tuple[np.ndarray, np.ndarray]:
        """Numerators and denominators of the blocks so far, (blocks, groups and all of them together) each."""
        found = self.sums[: -(-self.count // self.length), metric]
        with_all = np.concatenate([found, found.sum(axis=2, keepdims=True)], axis=2)
        return with_all[:, 0], with_all[:, 1]

    def state(self) -> dict[str, np.ndarray]:
        """All that the next row needs."""
        numbers = {"count": np.array(self.count), "length": np.array(self.length)}
        return {**numbers, "sums": self.sums, "powers": self.powers}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from there."""
        self.count, self.length = int(state["count"]), int(state["length"])
        self.sums, self.powers = np.array(state["sums"]), np.array(state["powers"])
