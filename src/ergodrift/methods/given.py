"""What a caller passed as a problem, a source or an algorithm: anything else is refused with what to write instead."""

from __future__ import annotations

import reprlib

from ergodrift.data.source import Source
from ergodrift.methods.algorithms import Algorithm
from ergodrift.problem import Problem

WANTED: dict[str, tuple[type, str]] = {
    "algorithm": (Algorithm, "take ed.auto(problem, source, x0), or one by name, such as ed.sdpp()"),
    "problem": (Problem, "write ed.Problem(loss, constraints, geometry)"),
    "source": (Source, "wrap recorded samples in ed.SeriesSource(data)"),
}


def check_kinds(**given: object) -> None:
    """Raise where an argument of one of these names is something else."""
    for name, value in given.items():
        kind, remedy = WANTED[name]
        if isinstance(value, kind):
            continue
        if name == "algorithm" and callable(value):
            remedy = f"call it: {getattr(value, '__name__', 'algorithm')}()"
        shown = "" if hasattr(value, "shape") else f": {reprlib.repr(value)}"  # whole tables would hide the rest
        raise TypeError(f"{name} must be of type {kind.__name__}, got {type(value).__name__}{shown}; {remedy}")
