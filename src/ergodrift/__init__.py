"""Constrained stochastic optimisation when the data are not i.i.d."""

from ergodrift._core import interrupt as interrupt  # first: the others take their time

# isort: split
import ast
import importlib
from pathlib import Path
from typing import Any

from ergodrift._core import xla

xla.set_flags()  # before JAX is there, or at least before it starts XLA

__version__ = "0.1.0"


def _homes() -> dict[str, str]:
    """In which module each public name is found; `__init__.pyi` lists them."""
    lines = ast.parse(Path(__file__).with_suffix(".pyi").read_text()).body
    return {name.name: line.module or "" for line in lines if isinstance(line, ast.ImportFrom) for name in line.names}


_HOMES = _homes()
__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """What is asked for is loaded then: `ergodrift.torch` needs no JAX, and not every run enters every room."""
    if name not in _HOMES:
        raise AttributeError(f"module 'ergodrift' has no attribute {name!r}")
    importlib.import_module("ergodrift._core.precision")  # before anything of the user's is traced
    home = importlib.import_module(_HOMES[name])
    globals()[name] = getattr(home, name) if home.__name__ != __name__ else importlib.import_module(f"ergodrift.{name}")
    return globals()[name]


def __dir__() -> list[str]:
    """All there is, also what has not been asked for yet."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
