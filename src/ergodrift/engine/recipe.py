"""An algorithm of the library as plain data, and back: so that a file can say which one it is without pickles."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil

from ergodrift import methods
from ergodrift.methods.algorithms import Algorithm
from ergodrift.methods.estimator import Estimator
from ergodrift.methods.method import Method
from ergodrift.methods.scalefree import Scales
from ergodrift.methods.schedule import Schedule
from ergodrift.problem.rows import SAVED
from ergodrift.types import PyTree


def described(algorithm: Algorithm) -> dict[str, PyTree] | None:
    """Names and numbers that make it; None where it has a part that is not the library's own."""
    rule = algorithm.rule
    options = rule.keywords if isinstance(rule, functools.partial) else {}
    name = getattr(rule.func if isinstance(rule, functools.partial) else rule, "__name__", "")
    parts = {"schedule": _plain(algorithm.schedule), "estimator": _plain(algorithm.estimator)}
    if _known().get(name) is not (rule.func if isinstance(rule, functools.partial) else rule) or None in parts.values():
        return None
    return {
        "name": algorithm.name,
        "rule": name,
        "options": options,
        "average": algorithm.average,
        "reason": algorithm.reason,
        **parts,
    }


def made(plain: dict[str, PyTree]) -> Algorithm:
    """The algorithm that `described` described."""
    known = _known()
    rule = functools.partial(known[plain["rule"]], **plain["options"]) if plain["options"] else known[plain["rule"]]
    schedule, estimator = (_object(known, plain[name]) for name in ("schedule", "estimator"))
    return Algorithm(plain["name"], rule, schedule, estimator, plain["average"], plain["reason"])


def _plain(part: Schedule | Estimator) -> dict[str, PyTree] | None:
    if _known().get(type(part).__name__) is not type(part):
        return None
    fields = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}  # type: ignore[arg-type]
    return {"class": type(part).__name__, "fields": fields}


def _object(known: dict[str, type], plain: dict[str, PyTree]) -> PyTree:
    return known[plain["class"]](**plain["fields"])


KNOWN: dict[str, type] = {"Scales": Scales, **SAVED}  # NamedTuples among the fields, and of samples


@functools.cache
def _known() -> dict[str, type]:
    """The classes of `ergodrift.methods`, by name."""
    for module in pkgutil.iter_modules(methods.__path__):
        importlib.import_module(f"{methods.__name__}.{module.name}")
    found: dict[str, type] = {}
    waiting: list[type] = [Schedule, Estimator, Method]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if cls.__module__.startswith(methods.__name__ + "."):
            found[cls.__name__] = cls
    return found
