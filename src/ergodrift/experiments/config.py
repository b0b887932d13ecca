"""The configuration of the paper's experiment: one frozen record that prints with the results."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

from ergodrift._core import check

DESIGNS: dict[str, dict[str, Any]] = {
    "default": {},
    "wide": {"angles": (-45.0, 0.0, 45.0)},
    "infeasible-start": {"x0": (3.0, 3.0, 0.0)},
    "literal": {"angles": (0.0, 0.0, 0.0), "scale": 1.0},
}
QUICK: dict[str, Any] = {"seeds": 4, "samples": 20_000}


@dataclasses.dataclass(frozen=True)
class Config:
    """Section 5 of Kim and Lee; what the paper leaves open is ours, and said so in the report.

    Attributes:
        design: the name of the design these values started from.
        seed: fixes everything: the data, and the paths with `seeds` of them.
        seeds: how many independent paths.
        samples: how many samples each algorithm sees, on the same path. 25,000 rounds of MDPP take 101,562 on average.
        records: how many points of each curve are kept.
        points: rows in each of the two clusters of a state.
        angles: rotation of the cluster means in each state, degrees.
        scale: factor on the cluster means of Zafar et al.
        phi: rotation in the sensitive feature, degrees.
        p: the probability with which the chain moves from its state to each of the others.
        limit: c, of the fairness constraint.
        radius: of the ball that (w1, w2, b) lies in.
        x0: x_1.
        beta: of the drift-plus-penalty algorithms.
        cap: the most samples in a round of MDPP.
    """

    design: str = "default"
    seed: int = 0
    seeds: int = 20
    samples: int = 101_562
    records: int = 120
    points: int = 1000
    angles: tuple[float, ...] = (-30.0, 0.0, 30.0)
    scale: float = 2.0
    phi: float = 90.0
    p: float = 0.001
    limit: float = 0.5
    radius: float = 5.0
    x0: tuple[float, ...] = (0.0, 0.0, 0.0)
    beta: float = 0.5
    cap: int = 16

    def __post_init__(self) -> None:
        check.choice("design", self.design, tuple(DESIGNS))
        ranges = {"seed": 0, "seeds": 1, "samples": 100, "records": 2, "points": 2, "cap": 1}
        for name, least in ranges.items():
            object.__setattr__(self, name, check.integer(name, getattr(self, name), at_least=least))
        check.number("scale", self.scale, above=0)
        check.number("phi", self.phi)
        check.number("p", self.p, above=0, below=0.5)
        check.number("limit", self.limit, above=0)
        check.number("radius", self.radius, above=0)
        check.number("beta", self.beta, above=0, at_most=0.5)
        for name in ("angles", "x0"):
            values = getattr(self, name)
            if not isinstance(values, tuple | list) or not values:
                raise TypeError(f"{name} must be a list of numbers, got {values!r}")
            object.__setattr__(self, name, tuple(check.number(name, value) for value in values))
        if len(self.x0) != 3:
            raise ValueError(f"x0 must have three entries (w1, w2, b), got {list(self.x0)}")

    @property
    def tau_mix(self) -> float:
        """1 / (number of states p): the paper's approximation of the mixing time, 333.3 for three states."""
        return 1 / (len(self.angles) * self.p)


def configure(design: str = "default", *, quick: bool = False, file: Path | None = None, **changes: Any) -> Config:
    """A design, then what --quick changes, then a TOML file, then single values; unknown names are refused.

    >>> configure("wide", seeds=3).angles
    (-45.0, 0.0, 45.0)
    """
    check.choice("design", design, tuple(DESIGNS))
    values: dict[str, Any] = {"design": design, **DESIGNS[design], **(QUICK if quick else {})}
    if file is not None:
        try:
            values |= tomllib.loads(file.read_text())
        except OSError as error:
            raise ValueError(f"config file {file} cannot be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"config file {file} is not TOML: {error}") from error
    values |= {name: value for name, value in changes.items() if value is not None}
    known = {field.name for field in dataclasses.fields(Config)}
    if unknown := sorted(set(values) - known):
        raise ValueError(f"unknown field {', '.join(unknown)}; the fields are {', '.join(sorted(known))}")
    return Config(**values)
