"""What else multipliers of a network could do against winding up, measured on the networks of `ergodrift peers`.

`python -m studies.windup` prints the table of docs/howto/networks_torch.md; with --write-docs it goes there.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found]

from ergodrift._core.markdown import table
from ergodrift.peers.networks.bench import SEEDS, oscillation
from ergodrift.peers.networks.tasks import TASKS
from ergodrift.peers.networks.trainers import ours
from ergodrift.torch import multipliers, optimizer

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "networks_torch.md"
BEGIN, END = "<!-- windup: begin -->", "<!-- windup: end -->"


class Variant(multipliers.ScaleFree):
    """The default, with its parts exchanged.

    Attributes:
        stride: k.
        shared: whether violated constraints share a stride.
        averaged: whether those that share a stride are violated on average, not in the batch.
        counted: whether a stride is shared by as many as were violated in a batch on average, with weights t.
        forgetting: c; a multiplier whose constraint is slack on average is multiplied by 1 - c / (t + 1).
        damping: g_i is extrapolated by so many times what its short average has moved from its long one.
    """

    stride, shared, averaged, counted = multipliers.DUAL_STRIDE, True, False, False
    forgetting, damping = 0.0, 0.0

    def update(self, values: torch.Tensor, change: torch.Tensor | None, sizes: torch.Tensor | None) -> None:
        old, recent, long = self.multipliers, getattr(self, "recent", 0 * values), getattr(self, "long", 0 * values)
        t = self.t + 1
        self.recent, self.long = torch.lerp(recent, values, 8 / (t + 7)), torch.lerp(long, values, 2 / (t + 1))
        super().update(values, change, sizes)  # for all that it measures
        if self.t == 1:
            old = 0 * old
        loss = torch.where(self.heard, self.loss_grad, 1)
        known = self.constraint_jac[self.rows]
        ratio = torch.where(known > 0, loss / torch.where(known > 0, known, 1), 0).sqrt()
        energy = torch.where(self.energy > 0, self.energy, torch.inf)
        rates = torch.maximum(self.reached, ratio) / (self.t * energy).sqrt()
        pushing = ((self.recent if self.averaged else values) > 0) & (rates > 0)
        number = pushing.sum().to(values.dtype)
        self.number = torch.lerp(getattr(self, "number", 0 * number), number, 2 / (t + 1))
        sharing = self.number if self.counted else number
        stride = self.stride / (sharing.clamp(min=1) if self.shared else 1)
        moved = stride * rates * (values + self.damping * (self.recent - self.long))
        kept = torch.where(self.recent < 0, 1 - self.forgetting / (self.t + 1), 1.0)
        self.multipliers = kept * (old + moved).clamp(min=0)


VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "a stride each": {"shared": False},
    "k = 0.05": {"stride": 0.05},
    "k = 0.2": {"stride": 0.2},
    "sharing by their mean number": {"counted": True},
    "sharing by averages": {"averaged": True},
    "and forgetting": {"averaged": True, "forgetting": 1.0},
    "and damping": {"averaged": True, "damping": 1.0},
}


def measured(task: Any, seeds: int) -> str:
    """Loss, violation and oscillation of ours, means over seeds."""
    found: list[tuple[float, ...]] = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        model = task.network()
        seen = ours(task, model, task.batches(seed), {})
        found.append((*task.judge(model, task.train), oscillation(seen)))
    loss, violation, swing = np.mean(found, axis=0)
    return f"{loss:.4f} / {violation:.4f} / {swing:.3f}"


def rows(seeds: int) -> list[list[str]]:
    """One for each variant."""
    tasks = {name: make() for name, make in TASKS.items()}
    found: list[list[str]] = []
    for name, parts in VARIANTS.items():
        optimizer.ScaleFree = type("Variant", (Variant,), parts)  # type: ignore[misc]
        found.append([name, *(measured(task, seeds) for task in tasks.values())])
        print(" | ".join(found[-1]), flush=True)
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--write-docs", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    text = table(("Multipliers", *TASKS), rows(options.seeds))
    if options.write_docs:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")
    else:
        print(text)


if __name__ == "__main__":
    main()
