"""Packages that are extras: where one is missing, how to install it."""

from __future__ import annotations


def absent(what: str, extra: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """What to raise in the place of `error`.

    >>> absent("ergodrift.optax", "optax", ModuleNotFoundError("No module named 'optax'", name="optax"))
    ModuleNotFoundError("ergodrift.optax needs optax: pip install 'ergodrift[optax]'")
    """
    name = (error.name or "").partition(".")[0]
    return ModuleNotFoundError(f"{what} needs {name}: pip install 'ergodrift[{extra}]'", name=name)
