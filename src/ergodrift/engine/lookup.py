"""A run that looks up what is known of its states beforehand."""

from __future__ import annotations

import dataclasses

from ergodrift._core import tree
from ergodrift.data.stream import Replay, TableStream, stored
from ergodrift.engine.carry import RunSpec
from ergodrift.engine.margin import Tightened
from ergodrift.problem import Known, tabulated
from ergodrift.types import PyTree


def with_tables(spec: RunSpec, num_states: int, x0: PyTree, num_samples: int) -> RunSpec:
    """The same run over states that come back, with tables where they pay (`tabulated`)."""
    stream = spec.stream.stream if isinstance(spec.stream, Replay) else spec.stream
    if not isinstance(stream, TableStream) or tree.is_traced(spec.problem, stream, x0):
        return spec
    problem = spec.problem.original if isinstance(spec.problem, Tightened) else spec.problem
    asked, tables = tabulated(problem, stream, num_states, x0, num_samples)
    if tables is None:
        return spec
    if isinstance(spec.problem, Tightened):
        asked = dataclasses.replace(spec.problem, original=asked)
    loss, constraints, kept = tables
    known = stream._replace(data=Known(stream.data, loss, constraints, tuple(map(stored, kept))))
    return spec._replace(problem=asked, stream=Replay(known) if isinstance(spec.stream, Replay) else known)
