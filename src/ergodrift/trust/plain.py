"""A plain function of samples in the place of a problem: a trained network of any framework, judged as it is."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np

from ergodrift._core import check
from ergodrift.types import PyTree

CHUNK = 4096  # samples that the function is handed at once


class Plain:
    """g(xi), from a function that takes samples with a leading axis, as NumPy arrays, and returns a row for each.

    Args:
        function: samples of shape (k, ...), or a nest of such arrays, to constraints (<= 0) of shape (k,) or (k, m); an
            array of NumPy, JAX or PyTorch.

    >>> Plain(lambda xi: xi - 1.0).values(np.arange(3.0))
    array([[-1.],
           [ 0.],
           [ 1.]])
    """

    def __init__(self, function: Callable[[PyTree], object]) -> None:
        if not callable(function):
            raise TypeError(f"problem must be a Problem, or a function of samples; got {type(function).__name__}")
        self.function = function

    def values(self, points: PyTree) -> np.ndarray:
        """The constraints of every sample, (k, m), in float64."""
        points = jax.tree.map(np.asarray, points)
        count = len(jax.tree.leaves(points)[0])
        parts = [jax.tree.map(lambda leaf, at=at: leaf[at : at + CHUNK], points) for at in range(0, count, CHUNK)]
        values = np.concatenate([self._rows(part) for part in parts])
        check.finite("constraints along the path", values)
        return values

    def _rows(self, points: PyTree) -> np.ndarray:
        count, found = len(jax.tree.leaves(points)[0]), self.function(points)
        detach = getattr(
            found, "detach", None
        )  # of PyTorch: NumPy takes no tensor that has a gradient, or is elsewhere
        rows = np.asarray(found if detach is None else detach().cpu(), dtype=float)
        if rows.ndim not in (1, 2) or len(rows) != count or not rows.size:
            raise ValueError(
                f"the function must return one row for each sample: ({count},) or ({count}, m) for {count} samples, "
                f"got shape {rows.shape}; means over a batch have lost what belongs to which sample"
            )
        return rows.reshape(count, -1)
