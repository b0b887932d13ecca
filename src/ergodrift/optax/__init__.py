"""Drift-plus-penalty around any optax optimiser, for people who train networks under constraints."""

from ergodrift._core.extras import absent

try:
    import optax  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ModuleNotFoundError as error:
    raise absent("ergodrift.optax", "optax", error) from error

from ergodrift.optax.constraints import equality, seen
from ergodrift.optax.evaluate import value_and_constraints
from ergodrift.optax.transform import DUAL_STRIDE, EVERY, DriftPlusPenaltyState, drift_plus_penalty, sgd

__all__ = [
    "DUAL_STRIDE",
    "EVERY",
    "DriftPlusPenaltyState",
    "drift_plus_penalty",
    "equality",
    "seen",
    "sgd",
    "value_and_constraints",
]
