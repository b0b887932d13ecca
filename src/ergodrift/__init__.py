"""Constrained stochastic optimisation when the data are not i.i.d."""

from ergodrift import metrics, theory
from ergodrift.algorithms import Algorithm, adpp, dpp, edpp, mdpp, pd, pd2
from ergodrift.chain import MarkovChain
from ergodrift.feasibility import Feasibility, QueueEvidence, feasibility
from ergodrift.geometry import Ball, Box, EntropySimplex, Geometry, L1Ball, Product, Simplex
from ergodrift.problem import Problem
from ergodrift.reference import Reference, solve_reference
from ergodrift.run import NonFiniteError, Result, run
from ergodrift.source import IIDSource, MarkovSource, SeriesSource, Source, Zip
from ergodrift.types import Feedback, Info, Sizes, State, StepSizes, Weights

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "Ball",
    "Box",
    "EntropySimplex",
    "Feasibility",
    "Feedback",
    "Geometry",
    "IIDSource",
    "Info",
    "L1Ball",
    "MarkovChain",
    "MarkovSource",
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
    "dpp",
    "edpp",
    "feasibility",
    "mdpp",
    "metrics",
    "pd",
    "pd2",
    "run",
    "solve_reference",
    "theory",
]
