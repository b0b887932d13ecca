"""Two sources side by side."""

from __future__ import annotations

import jax
import numpy as np
from numpy.typing import ArrayLike

from ergodrift.data.sampler import Sampler
from ergodrift.data.source import Law, Source, Visits
from ergodrift.data.stream import Paired, Stream
from ergodrift.types import PyTree


class Zip(Source):
    """Two sources side by side: xi_t = (losses_t, constraints_t).

    This is online convex optimisation with ergodic constraints (Kim and Lee, section 2.2) when `losses` is a series and
    `constraints` a chain. The loss function may read xi[0] only and the constraints xi[1] only: each is averaged over
    its own source.

    >>> from ergodrift import MarkovChain, MarkovSource, SeriesSource
    >>> chain = MarkovChain([[0.9, 0.1], [0.3, 0.7]])
    >>> Zip(SeriesSource(np.arange(100.0)), MarkovSource(chain, np.array([1.0, -1.0]))).length
    100
    """

    def __init__(self, losses: Source, constraints: Source) -> None:
        for name, part in [("losses", losses), ("constraints", constraints)]:
            if not isinstance(part, Source) or part.paired:
                raise TypeError(f"{name} must be a plain source such as SeriesSource(data), got {type(part).__name__}")
            if part.rows_per_sample > 1:
                raise ValueError(f"{name} comes in batches of {part.rows_per_sample} rows; a Zip takes them row by row")
            if part.arrives:
                raise ValueError(
                    f"{name} is a stream, and a Zip keeps its parts: pair the chunks on their way in, such as "
                    "StreamSource(zip(losses, constraints))"
                )
        self.losses, self.constraints = losses, constraints

    @property
    def length(self) -> int | None:
        return min((part.length for part in self.parts if part.length is not None), default=None)

    @property
    def per_pass(self) -> int | None:
        return min((part.per_pass for part in self.parts if part.per_pass is not None), default=None)

    @property
    def in_order(self) -> Zip:
        once = self.losses.in_order, self.constraints.in_order
        return self if once == self.parts else Zip(*once)

    def rows_seen(self, num_samples: int) -> int:
        return min(part.rows_seen(num_samples) for part in self.parts)

    @property
    def parts(self) -> tuple[Source, Source]:
        return self.losses, self.constraints

    @property
    def independent(self) -> bool:
        return all(part.independent for part in self.parts)

    @property
    def starts_stationary(self) -> bool:
        return all(part.starts_stationary for part in self.parts)

    @property
    def law_is_simulated(self) -> bool:
        return any(part.law_is_simulated for part in self.parts)

    def mixing_time(self, eps: float = 0.25) -> int | None:
        times = [time for part in self.parts if (time := part.mixing_time(eps)) is not None]
        return max(times) if len(times) == 2 else None

    def sampler(self) -> Sampler:
        return Paired(tuple(part.sampler() for part in self.parts))

    def stream(self) -> Stream:
        return Paired(tuple(part.stream() for part in self.parts))

    @property
    def example(self) -> tuple[PyTree, PyTree]:
        return self.losses.example, self.constraints.example

    @property
    def entry(self) -> tuple[PyTree, PyTree]:
        return self.losses.entry, self.constraints.entry

    @property
    def loss_law(self) -> Law:
        law = self.losses.loss_law
        return Law(self._beside(0, law.points), law.weights)

    @property
    def constraint_law(self) -> Law:
        law = self.constraints.constraint_law
        return Law(self._beside(1, law.points), law.weights)

    def samples_in(self, paths: PyTree) -> int:
        losses, constraints = (part.samples_in(path) for part, path in self._pairs(paths))
        if losses != constraints:
            raise ValueError(f"paths of a Zip must be equally long, got {losses} and {constraints} samples per seed")
        return losses

    def check_paths(self, paths: PyTree, num_seeds: int, num_samples: int) -> tuple[PyTree, ...]:
        return tuple(part.check_paths(path, num_seeds, num_samples) for part, path in self._pairs(paths))

    def path_of(self, paths: PyTree, row: int) -> tuple[PyTree, ...]:
        return tuple(part.path_of(path, row) for part, path in self._pairs(paths))

    def visits(self, path: PyTree) -> tuple[Visits, Visits]:
        (losses, _), (_, constraints) = (part.visits(own) for part, own in self._pairs(path))
        return (
            losses._replace(points=self._beside(0, losses.points)),
            constraints._replace(points=self._beside(1, constraints.points)),
        )

    def _pairs(self, paths: PyTree) -> list[tuple[Source, PyTree]]:
        if not isinstance(paths, tuple) or len(paths) != 2:
            raise TypeError("paths of a Zip must be a pair (losses, constraints) of paths; see source.paths(...)")
        return list(zip(self.parts, paths, strict=True))

    def _beside(self, part: int, points: PyTree) -> tuple[PyTree, PyTree]:
        """Points of one part beside one sample of the other, which is there for its shape alone."""
        count = len(jax.tree.leaves(points)[0])

        def repeated(leaf: ArrayLike) -> np.ndarray:
            return np.broadcast_to(np.asarray(leaf), (count, *np.shape(leaf)))

        other = jax.tree.map(repeated, self.parts[1 - part].example)
        return (points, other) if part == 0 else (other, points)
