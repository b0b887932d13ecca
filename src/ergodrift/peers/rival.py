"""What takes part: a name, how many settings its user has to choose, and how it runs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import tree
from ergodrift.peers.descent import seen
from ergodrift.peers.measure import Judge
from ergodrift.peers.rules import Seen
from ergodrift.peers.task import Task
from ergodrift.trust.diagnose import Diagnosis
from ergodrift.types import PyTree

Family: TypeAlias = Literal["ours", "research", "library", "baseline", "control"]
Setting: TypeAlias = dict[str, Any]  # by name
ASKED = 1000  # samples that tell the units of a task
DENSE_STATES = 2000  # chains up to this size have their mixing time computed in a moment
TUNING = 4  # seeds on which settings are tried
CURVE, CURVES = 24, 4  # records of a curve, and seeds it is the mean of


class NotForThisError(Exception):
    """A competitor that has nothing to say on a task, and why: no fault of anybody's."""


@dataclasses.dataclass(frozen=True, eq=False)
class Trial:
    """A task made ready: the samples that all see, and the judge of what they make of them."""

    task: Task
    seeds: int
    judge: Judge

    @staticmethod
    def of(task: Task, seeds: int) -> Trial:
        return Trial(task, seeds, Judge(task))

    @functools.cached_property
    def paths(self) -> PyTree:
        """The entries all see, one row per seed."""
        given = self.task.paths(self.seeds)
        return self.task.source.paths(self.seeds, self.task.num_samples) if given is None else given

    @functools.cached_property
    def shuffled(self) -> PyTree:
        """The same samples of each seed, in random order."""

        def mixed(leaf: np.ndarray) -> np.ndarray:
            orders = [np.random.default_rng(seed).permutation(leaf.shape[1]) for seed in range(leaf.shape[0])]
            return np.stack([row[order] for row, order in zip(leaf, orders, strict=True)])

        return jax.tree.map(lambda leaf: mixed(np.asarray(leaf)), self.paths)

    @property
    def cores(self) -> int:
        """How many cores all seeds of one setting are spread over: what times are multiplied by, for those of one."""
        return max(count for count in range(1, len(jax.devices()) + 1) if self.seeds % count == 0)

    @functools.cached_property
    def tau(self) -> float:
        """The mixing time: the source's own where it tells one in a moment, else what the samples behave like."""
        source = self.task.source
        few = source.stationary is None or len(source.stationary) <= DENSE_STATES
        known = source.mixing_time() if few else None
        return float(self.dependence.tau_mix if known is None else known)

    @functools.cached_property
    def dependence(self) -> Diagnosis:
        """What the samples say about themselves at the optimum."""
        return self.task.diagnosis()

    def first(self, flat: np.ndarray) -> Seen:
        """What the first samples of seed 0 say at a point, along a leading axis."""
        x = self.judge.point(flat)
        stream = tree.cast(self.task.source.stream(), self.judge.x0.dtype)
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf[0][:ASKED]), self.paths)
        found = jax.jit(jax.vmap(lambda entry: seen(self.task.problem, x, stream.xi(entry))))(rows)
        return Seen(*(np.asarray(part, float) for part in found))

    @property
    def stops(self) -> np.ndarray:
        """Sample counts at which curves are drawn, evenly in the logarithm."""
        total = self.task.num_samples
        return np.unique(np.geomspace(min(10, total), total, CURVE).round().astype(int))


class Found(NamedTuple):
    """What a competitor made of the samples, flat.

    Attributes:
        points: (seeds, d) what it recommends.
        seconds: of one run, once compiled.
        way: (seeds, records, d) what it would have recommended at `Trial.stops`; None where it is not followed.
        setting: what was chosen for it, by name.
        note: what a reader must know.
    """

    points: np.ndarray
    seconds: float
    way: np.ndarray | None = None
    setting: Setting | None = None
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Rival:
    """A competitor.

    Attributes:
        name: in tables and figures.
        family: "ours", a method of "research" by others, a "library" as it comes, a "baseline" that people write by
            hand, or a "control".
        tuned: whether its settings were chosen in hindsight.
        settings: how many settings a user has to choose.
        about: one line for the page.
        run: makes `Found` of a trial, or another dictionary of values for what has no point.
        needs: packages without which it is missing.
        rooms: parts of the package that its result depends on besides those of all.
        certified: whether the points of all seeds are looked at on later data, and not the first alone.
    """

    name: str
    family: Family
    tuned: bool
    settings: int
    about: str
    run: Callable[[Trial], Found | dict[str, Any]]
    needs: tuple[str, ...] = ()
    rooms: tuple[str, ...] = ()
    certified: bool = False
