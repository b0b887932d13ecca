"""The convex problem behind an estimator: a mean loss, tangents of what is asked for, and a ball of coefficients."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import tree
from ergodrift._core.compiled import compiled
from ergodrift._core.logarithm import rewritten
from ergodrift.data.series import SeriesSource
from ergodrift.engine.result import Result
from ergodrift.engine.run import run
from ergodrift.geometry import Ball
from ergodrift.methods.algorithms import Algorithm
from ergodrift.problem import Problem
from ergodrift.sklearn.losses import FAMILIES, Loss
from ergodrift.types import Array, Feedback, PyTree

MOST_TANGENTS = 256  # that a run has at a time: the limits that are closest to being broken
STEPS, LEAST_BATCH = 512, 8  # batches of a pass at most, and their rows at least
RUN = 2048  # steps of a run


class Tangents(Problem):
    """A mean loss over batches of rows, and constraints normals . x <= limits, whose limits are the margin of a run.

    What is asked for is not convex, where it is a rate of decisions; its tangents are, and they are taken over all rows
    at once, so that no sample is needed to know them. They are leaves: no value recompiles.
    """

    normals: Array

    @compiled()
    def _feedback(self, x: PyTree, xi: PyTree) -> Feedback:
        xi = tree.cast(xi, tree.dtype(x))
        loss, grad = jax.value_and_grad(rewritten(self.loss))(x, xi)
        return Feedback(loss, grad, tree.pushforward(self.normals, x), self.normals)

    def check(self, x: PyTree, xi: PyTree) -> int:
        """The number of tangents."""
        return len(self.normals)


def _known_without_samples(x: PyTree, xi: PyTree) -> jax.Array:
    """Tangents hold no sample: whoever asks for constraints by sample finds them kept."""
    return jnp.zeros(1, tree.dtype(x))


@functools.cache
def batch_loss(family: str, name: str) -> Callable[[PyTree, PyTree], jax.Array]:
    """The mean loss of a batch {"a": (B, d), "y": (B,), "w": (B,), "setting": ()}; one function for each loss."""
    loss: Loss = FAMILIES[family][name]

    def mean(x: PyTree, xi: PyTree) -> jax.Array:
        return jnp.mean(xi["w"] * loss.value(jnp, xi["a"] @ x, xi["y"], xi["setting"]))

    return mean


class Solver:
    """Runs of one algorithm over the same rows, with tangents that differ from run to run; compiled once.

    Args:
        design: (n, d) rows, in units in which they are of order 1.
        target: (n,) as the loss wants it.
        weights: (n,) with mean 1.
        family: "binary", "multiclass" or "regression".
        loss: its name.
        setting: of the loss.
        radius: of the ball of coefficients.
        num_limits: how many tangents a run has.
        algorithm: of a distance that the solution may be away.
        epochs: passes of a run; as many as make some 2,000 steps unless given.
        order: of the rows in a pass.
        batch_size: rows of a step; unless given, so many that a pass has 256 to 512 steps.
        seed: of the order.
    """

    def __init__(
        self, design: np.ndarray, target: np.ndarray, weights: np.ndarray, *, family: str, loss: str, setting: float,
        radius: float, num_limits: int, num_classes: int, algorithm: Callable[[float], Algorithm],
        epochs: int | None, order: str, batch_size: int | None, seed: int,
    ) -> None:  # fmt: skip
        count = len(target)
        # Powers of two, and multiples of four: tables of about the same size share what is compiled.
        steps = 2 ** int(np.clip(np.log2(max(count / LEAST_BATCH, 1)), 0, np.log2(STEPS)))
        self.size = -(-count // (4 * steps)) * 4
        if batch_size is not None:
            self.size = min(batch_size, count)
            steps = -(-count // self.size)
        passes = -(-RUN // steps) if epochs is None else epochs
        kind = design.dtype
        rows = np.random.default_rng(seed).permutation(count) if order == "shuffled" else np.arange(count)
        # The last batch is filled up with rows that weigh nothing.
        rows = np.concatenate([rows, np.zeros(steps * self.size - count, dtype=rows.dtype)])
        own = weights[rows].astype(kind)
        own[count:] = 0
        cut = (steps, self.size)
        data = {
            "a": design[rows].reshape(*cut, -1),
            "y": target[rows].astype(kind).reshape(cut),
            "w": own.reshape(cut),
            "setting": np.full(steps, setting, dtype=kind),
        }
        self.source = SeriesSource(data)
        self.paths = _passes(steps, passes, order, seed)
        self.loss, self.geometry, self.algorithm, self.seed = batch_loss(family, loss), Ball(radius), algorithm, seed
        shape = design.shape[1:] if family != "multiclass" else (design.shape[1], num_classes)
        self.start = np.zeros(shape, dtype=kind)
        self.num_tangents = 2 ** int(np.ceil(np.log2(max(min(num_limits, MOST_TANGENTS), 1))))

    def solve(
        self, start: np.ndarray, normals: np.ndarray | None, limits: np.ndarray | None, distance: float
    ) -> tuple[np.ndarray, Result]:
        """The coefficients, and the run: as few tangents as there are, filled up with such as always hold."""
        kind, count = self.start.dtype, self.num_tangents
        every, bounds = np.zeros((count, *self.start.shape), dtype=kind), np.ones(count, dtype=kind)
        if normals is not None and limits is not None:
            every[: len(normals)], bounds[: len(limits)] = normals, limits
        problem = Tangents(self.loss, _known_without_samples, self.geometry, jnp.asarray(every))
        found = run(
            self.algorithm(distance),
            problem,
            self.source,
            x0=start.astype(kind),
            seeds=[self.seed],
            record=1,
            paths=self.paths,
            margin=-bounds,
        )
        return np.asarray(jax.tree.leaves(found.solution)[0][0], dtype=float), found


def _passes(steps: int, passes: int, order: str, seed: int) -> np.ndarray:
    """(1, passes x steps) the batches in the order in which a run takes them.

    Drawn here, and not by the source inside the loop: a fit is compiled for its table, and this is half of it.
    """
    rng = np.random.default_rng(seed)
    if order == "given":
        return np.tile(np.arange(steps), passes)[None]
    length = max(round(steps ** (1 / 3)), 1) if order == "blocks" else 1
    rows = []
    for _ in range(passes):
        around = np.roll(np.arange(steps), -int(rng.integers(steps))) if order == "blocks" else np.arange(steps)
        blocks = [around[start : start + length] for start in range(0, steps, length)]
        rows += [blocks[number] for number in rng.permutation(len(blocks))]
    return np.concatenate(rows)[None]
