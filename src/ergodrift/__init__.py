"""Constrained stochastic optimisation when the data are not i.i.d."""

from typing import TYPE_CHECKING, Any

from ergodrift._core import interrupt as interrupt  # first: the others take their time

# isort: split
from ergodrift import metrics
from ergodrift._core import precision, xla
from ergodrift.auto import auto
from ergodrift.data.chain import MarkovChain
from ergodrift.data.source import IIDSource, MarkovSource, SeriesSource, Source, Zip
from ergodrift.engine.result import Result, load_result
from ergodrift.engine.run import NonFiniteError, run
from ergodrift.geometry import Ball, Box, EntropySimplex, Geometry, L1Ball, Product, Simplex
from ergodrift.methods.algorithms import Algorithm, adpp, dpp, edpp, mdpp, pd, pd2, rdpp, wdpp
from ergodrift.problem import LinearModel, Problem
from ergodrift.solve.feasibility import Feasibility, QueueEvidence, feasibility
from ergodrift.solve.reference import Reference, solve_reference
from ergodrift.types import Feedback, Info, Sizes, State, StepSizes, Weights

if TYPE_CHECKING:
    from ergodrift import theory
    from ergodrift.trust import Certificate, Diagnosis, Monitor, certify, diagnose

xla.set_flags()  # no import above starts XLA
precision.separate_constants()

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "Ball",
    "Box",
    "Certificate",
    "Diagnosis",
    "EntropySimplex",
    "Feasibility",
    "Feedback",
    "Geometry",
    "IIDSource",
    "Info",
    "L1Ball",
    "LinearModel",
    "MarkovChain",
    "MarkovSource",
    "Monitor",
    "NonFiniteError",
    "Problem",
    "Product",
    "QueueEvidence",
    "Reference",
    "Result",
    "SeriesSource",
    "Simplex",
    "Sizes",
    "Source",
    "State",
    "StepSizes",
    "Weights",
    "Zip",
    "adpp",
    "auto",
    "certify",
    "diagnose",
    "dpp",
    "edpp",
    "feasibility",
    "load_result",
    "mdpp",
    "metrics",
    "pd",
    "pd2",
    "rdpp",
    "run",
    "solve_reference",
    "theory",
    "wdpp",
]

_LATER = ("Certificate", "Diagnosis", "Monitor", "certify", "diagnose")


def __getattr__(name: str) -> Any:
    """Rooms that not every run enters are opened when they are asked for: importing stays as quick as JAX's own."""
    import importlib

    if name == "theory":
        return importlib.import_module("ergodrift.theory")
    if name in _LATER:
        return getattr(importlib.import_module("ergodrift.trust"), name)
    raise AttributeError(f"module 'ergodrift' has no attribute {name!r}")


def __dir__() -> list[str]:
    """All there is, also what has not been asked for yet."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
