"""Constrained stochastic optimisation when the data are not i.i.d."""

from ergodrift import metrics, theory, xla
from ergodrift.algorithms import Algorithm, adpp, dpp, edpp, mdpp, pd, pd2, rdpp, wdpp
from ergodrift.auto import auto
from ergodrift.chain import MarkovChain
from ergodrift.feasibility import Feasibility, QueueEvidence, feasibility
from ergodrift.geometry import Ball, Box, EntropySimplex, Geometry, L1Ball, Product, Simplex
from ergodrift.linear import LinearModel
from ergodrift.problem import Problem
from ergodrift.reference import Reference, solve_reference
from ergodrift.result import Result
from ergodrift.run import NonFiniteError, run
from ergodrift.source import IIDSource, MarkovSource, SeriesSource, Source, Zip
from ergodrift.trust import Certificate, Diagnosis, Monitor, certify, diagnose
from ergodrift.types import Feedback, Info, Sizes, State, StepSizes, Weights

xla.set_flags()  # no import above starts XLA

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
