"""A function of one seed as a CUDA kernel for all seeds: what XLA would launch piece by piece, in one launch."""

from ergodrift._core.cuda.launch import fused, sum_of_logs
from ergodrift._core.cuda.values import Unsupported

__all__ = ["Unsupported", "fused", "sum_of_logs"]
