"""What a network is trained for: samples, limits, and how long."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """Samples and a network.

    Attributes:
        about: one line for the page.
        train, test: tensors with one row a sample.
        network: makes one, with the weights of PyTorch's seed.
        ask: (model, *tensors) -> loss, constraints wanted <= 0, and what to take the gradients of in their place.
        count: of constraints.
        rate: of Adam, at the beginning.
        batch: samples in one.
        epochs: passes over the training part.
        in_order: whether batches come in the order of the samples.
    """

    about: str
    train: tuple[Any, ...]
    test: tuple[Any, ...]
    network: Callable[[], Any]
    ask: Callable[..., tuple[Any, Any, Any]]
    count: int
    rate: float
    batch: int
    epochs: int
    in_order: bool = False

    @property
    def rounds(self) -> int:
        return self.epochs * -(-len(self.train[0]) // self.batch)

    def judge(self, model: Any, part: tuple[Any, ...]) -> tuple[float, float]:
        """Loss and largest violation over a whole part."""
        import torch  # type: ignore[import-not-found]

        with torch.no_grad():
            loss, constraints, _ = self.ask(model, *part)
        return float(loss), max(float(constraints.max()), 0.0)

    def batches(self, seed: int) -> Iterator[tuple[Any, ...]]:
        import torch  # type: ignore[import-not-found]

        order, count = torch.Generator().manual_seed(seed), len(self.train[0])
        for _ in range(self.epochs):
            places = torch.arange(count) if self.in_order else torch.randperm(count, generator=order)
            for rows in places.split(self.batch):
                yield tuple(part[rows] for part in self.train)
