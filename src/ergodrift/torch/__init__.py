"""Drift-plus-penalty for PyTorch: constraints by a change of two lines, and no dual step to choose. JAX is not needed.

`DriftPlusPenalty` wraps any `torch.optim` optimiser; `diagnose` says how far the samples of a `DataLoader` depend on
each other (and is the one function here that loads JAX).
"""

from ergodrift._core.extras import absent

try:
    import torch  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ModuleNotFoundError as error:
    raise absent("ergodrift.torch", "torch", error) from error

from ergodrift.torch.loader import diagnose
from ergodrift.torch.optimizer import DriftPlusPenalty

__all__ = ["DriftPlusPenalty", "diagnose"]
