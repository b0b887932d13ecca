"""Values and slopes of a user's plain function over the rows of a table, by JAX, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core.precision import double
from ergodrift.types import PyTree


def values_and_slopes(
    function: Callable[[Any, Any], Any], scores: np.ndarray, rows: PyTree
) -> tuple[np.ndarray, np.ndarray]:
    """function(score, row) (n,) and its derivative by the score, in the shape of the scores.

    Raises:
        ValueError: it fails, or does not return one number per row.
    """

    def one(score: jax.Array, row: PyTree) -> jax.Array:
        value = jnp.asarray(function(score, row))
        if value.shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
            raise ValueError(f"it must return one number for a row, got {value.dtype} of shape {value.shape}")
        return value

    with double():
        try:
            found = jax.vmap(jax.value_and_grad(one))(jnp.asarray(scores), jax.tree.map(jnp.asarray, rows))
        except Exception as error:
            name = getattr(function, "__name__", repr(function))
            raise ValueError(f"constraints: {name}(score, row) fails: {error}") from error
        return np.asarray(found[0], dtype=float), np.asarray(found[1], dtype=float)
