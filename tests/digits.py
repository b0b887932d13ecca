"""What rounding allows, in the precision that the tests run with."""

import jax
import jax.numpy as jnp

KIND = jax.dtypes.canonicalize_dtype(float)
LIMITS = jnp.finfo(KIND)
WIDE = LIMITS.bits == 64


def rounded(tolerance: float) -> float:
    """A tolerance that counts float64 roundings: in float32 as many of float32's, and each is 2^29 times as large."""
    return tolerance if WIDE else tolerance * 2.0**29
