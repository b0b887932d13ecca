"""The shape of `results.json`; docs/laboratory/reproduction.md says what its entries mean."""

from __future__ import annotations

from typing import Any, TypedDict


class AlgorithmResults(TypedDict):
    """One algorithm over all seeds; the keys of the last three are metrics."""

    parameters: dict[str, float]
    seconds: float
    rounds: list[int]
    samples_used: list[int]
    solution: list[list[float]]
    curves: dict[str, list[list[float]]]
    final: dict[str, list[float]]
    summary: dict[str, dict[str, list[float]]]


class Results(TypedDict):
    """What `reproduce` finds."""

    schema: str
    config: dict[str, Any]
    versions: dict[str, str]
    chain: dict[str, Any]
    reference: dict[str, Any]
    samples: list[int]
    path_seeds: list[int]
    algorithms: dict[str, AlgorithmResults]


class Claim(TypedDict):
    """A claim of the paper beside what was measured."""

    claim: str
    measured: str
    verdict: str
    wins: int
    seeds: int


class TableRow(TypedDict):
    """Final infeasibility of constraint 0, ours beside the paper's."""

    algorithm: str
    paper: float | None
    mean: float
    std: float


class JudgedResults(Results):
    """The whole file: the results, judged."""

    claims: list[Claim]
    table: list[TableRow]
