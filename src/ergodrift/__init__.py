"""Constrained stochastic optimisation when the data are not i.i.d."""

from typing import TYPE_CHECKING, Any

from ergodrift._core import interrupt as interrupt  # first: the others take their time

# isort: split
from ergodrift import metrics
from ergodrift._core import precision, xla
from ergodrift.auto import auto
from ergodrift.data.chain import MarkovChain
from ergodrift.data.source import Law, Source
from ergodrift.data.stream import Stream
from ergodrift.data.tables import IIDSource, MarkovSource, SeriesSource
from ergodrift.data.zip import Zip
from ergodrift.engine.result import Result, load_result
from ergodrift.engine.run import NonFiniteError, run
from ergodrift.geometry import Ball, Box, EntropySimplex, Geometry, L1Ball, Product, Region, Simplex
from ergodrift.methods.algorithms import Algorithm, adpp, dpp, edpp, mdpp, pd, pd2, rdpp, wdpp
from ergodrift.methods.estimator import Estimator, MultiLevel, SingleSample
from ergodrift.methods.method import DriftPlusPenalty, Method, PrimalDual
from ergodrift.methods.schedule import FeedbackSchedule, PresetSchedule, Schedule
from ergodrift.problem import CompactForm, LinearModel, Problem
from ergodrift.solve.feasibility import Feasibility, QueueEvidence, feasibility
from ergodrift.solve.reference import Reference, solve_reference
from ergodrift.types import Compact, Feedback, Info, Sizes, State, StepSizes, Weights

if TYPE_CHECKING:
    from ergodrift import theory
    from ergodrift.trust import Certificate, CertificateMethod, Diagnosis, Monitor, certify, diagnose

xla.set_flags()  # no import above starts XLA
precision.separate_constants()

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "Ball",
    "Box",
    "Certificate",
    "CertificateMethod",
    "Compact",
    "CompactForm",
    "Diagnosis",
    "DriftPlusPenalty",
    "EntropySimplex",
    "Estimator",
    "Feasibility",
    "Feedback",
    "FeedbackSchedule",
    "Geometry",
    "IIDSource",
    "Info",
    "L1Ball",
    "Law",
    "LinearModel",
    "MarkovChain",
    "MarkovSource",
    "Method",
    "Monitor",
    "MultiLevel",
    "NonFiniteError",
    "PresetSchedule",
    "PrimalDual",
    "Problem",
    "Product",
    "QueueEvidence",
    "Reference",
    "Region",
    "Result",
    "Schedule",
    "SeriesSource",
    "Simplex",
    "SingleSample",
    "Sizes",
    "Source",
    "State",
    "StepSizes",
    "Stream",
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

_LATER = ("Certificate", "CertificateMethod", "Diagnosis", "Monitor", "certify", "diagnose")


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
