"""Which algorithm to use, from a short look at the problem and its samples."""

from ergodrift.advice.choose import auto

__all__ = ["auto"]
