"""Records of a run whose end nobody knows: as many as asked for, evenly spaced, however long it gets."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift.engine.carry import Record
from ergodrift.types import PyTree


class History:
    """At least `count` records and at most twice as many: when there is no more room, every second one is dropped.

    `due` is the sample count from which on the next one is to be made.
    """

    def __init__(self, count: int) -> None:
        self.count, self.spacing, self.due = count, 1, 1
        self.samples: list[int] = []
        self.records: list[Record] = []

    def add(self, samples: int, record: Record) -> None:
        self.samples.append(samples)
        self.records.append(record)
        if len(self.samples) == 2 * self.count:
            self.samples, self.records = self.samples[1::2], self.records[1::2]
            while self.spacing * self.count < samples:  # more than once, where samples come in chunks
                self.spacing *= 2
        self._set_due()

    def drop_after(self, samples: int) -> None:
        """Forget what was recorded after so many samples."""
        kept = sum(count <= samples for count in self.samples)
        self.samples, self.records = self.samples[:kept], self.records[:kept]
        self._set_due()

    def _set_due(self) -> None:
        self.due = self.spacing * (1 + (self.samples[-1] if self.samples else 0) // self.spacing)

    @staticmethod
    def stack(records: list[Record]) -> Record:
        """Records with the leading axes of a result, (1, records)."""
        return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves])[None], *records)

    def state(self) -> dict[str, PyTree]:
        """All that goes on with the next record."""
        return {
            "count": self.count,
            "spacing": self.spacing,
            "samples": np.array(self.samples, np.int64),
            "records": History.stack(self.records) if self.records else None,
        }

    @staticmethod
    def restored(state: dict[str, PyTree], like: PyTree) -> History:
        """From what `state` returned; `like` is the structure of a record."""
        found = History(int(state["count"]))
        found.spacing, found.samples = int(state["spacing"]), [int(count) for count in state["samples"]]
        leaves = jax.tree.leaves(state["records"])
        found.records = [
            jax.tree.unflatten(like, [jnp.asarray(leaf[0, row]) for leaf in leaves])
            for row in range(len(found.samples))
        ]
        found._set_due()
        return found
