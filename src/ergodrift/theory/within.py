"""Does a run stay within the theory? Every bound that applies, at every record."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ergodrift._core import tree
from ergodrift._core.precision import double
from ergodrift.data.expectation import expectations, wide
from ergodrift.data.source import Source
from ergodrift.methods.algorithms import Algorithm
from ergodrift.methods.average import Average
from ergodrift.methods.estimator import MultiLevel, SingleSample
from ergodrift.methods.method import DriftPlusPenalty
from ergodrift.methods.scalefree import CoordinateDrift, ScaledDrift
from ergodrift.methods.schedule import AdaGrad, PresetSchedule, Schedule
from ergodrift.problem import Problem
from ergodrift.solve.feasibility import feasibility
from ergodrift.solve.hindsight import best_on_paths
from ergodrift.solve.reference import Reference, solve_reference
from ergodrift.theory.bounds import Bounds, Constants, PresetWeights, appendix_c_bounds, constants, expected
from ergodrift.theory.paths import LEMMAS, pathwise
from ergodrift.trust.values import path_values
from ergodrift.types import PyTree

ROUNDING = {"float64": 1e-9, "float32": 1e-4}  # of sums over a run, relative to the bound
EXACT = 1e-10  # of a round's terms in float64
CHANCE = 3.0  # standard errors by which a mean must pass a bound on its expectation


class Records(Protocol):
    """What is asked of a result; `Result` has it."""

    @property
    def seeds(self) -> PyTree: ...
    @property
    def samples(self) -> PyTree: ...
    @property
    def queue(self) -> PyTree: ...
    @property
    def weights(self) -> PyTree: ...
    @property
    def loss_sum(self) -> PyTree: ...
    @property
    def constraint_sum(self) -> PyTree: ...
    @property
    def x_mean(self) -> PyTree: ...
    @property
    def solution(self) -> PyTree: ...
    @property
    def paths(self) -> PyTree: ...


class Entry(NamedTuple):
    """One bound against what a run did.

    Attributes:
        quantity: what is bounded.
        statement: where the bound is stated.
        kind: "every path" (no seed may cross it) or "expectation" (the mean over seeds, less three standard errors).
        value: at each record, the largest seed, or the mean over seeds; for several constraints, the one nearest to its
            bound.
        error: the standard error of that mean, 0 for "every path".
        bound: at each record.
        holds: whether it holds at all records.
    """

    quantity: str
    statement: str
    kind: str
    value: np.ndarray
    error: np.ndarray
    bound: np.ndarray
    holds: bool

    @property
    def share(self) -> float:
        """The largest part of the bound that was used up; negative where the value always was."""
        return float(np.max(self.value / np.maximum(self.bound, np.finfo(float).tiny)))


@dataclasses.dataclass(frozen=True, eq=False)
class TheoryCheck:
    """What `within_theory` found. True in a condition where every bound that was checked holds.

    Where nothing was checked there is no such answer: `checked` is False, `holds` is None, and a condition raises.

    Attributes:
        entries: one for each bound that was checked.
        left_out: (bound, why) for those that do not apply or cannot be evaluated.
        samples: of the records.
        certified: whether F, G and H are proven bounds; where they are only the largest values seen, so are the bounds
            built from them.
    """

    entries: tuple[Entry, ...]
    left_out: tuple[tuple[str, str], ...]
    samples: np.ndarray
    certified: bool

    @property
    def checked(self) -> bool:
        """Whether any bound was checked at all."""
        return bool(self.entries)

    @property
    def holds(self) -> bool | None:
        """Whether every bound that was checked holds; None where none was."""
        return all(entry.holds for entry in self.entries) if self.checked else None

    def __bool__(self) -> bool:
        if self.holds is None:
            raise ValueError(f"{self}\nthat is neither true nor false: look at .checked first")
        return self.holds

    def __str__(self) -> str:
        if not self.checked:
            return "\n".join(
                ["nothing was checked, since no bound applies:", *(f"    {what}: {why}" for what, why in self.left_out)]
            )
        crossed = sum(not entry.holds for entry in self.entries)
        lines = [
            f"{crossed} of {len(self.entries)} bounds crossed" if crossed else f"all {len(self.entries)} bounds hold"
        ]
        if not self.certified:
            lines[0] += "; F, G and H are the largest values seen, not proven bounds (pass bounds=...)"
        lines.append(f"{'':4}{'quantity':24}{'stated in':26}{'holds':13}{'value':>11}{'bound':>11}{'share':>9}")
        for entry in self.entries:
            # The record that comes nearest to the bound, or passes it most.
            at = int(np.argmax(entry.value / np.maximum(entry.bound, np.finfo(float).tiny)))
            mark = "    " if entry.holds else "  X "
            where = "" if entry.holds else f"  at {self.samples[at]} samples"
            share = f"{entry.share:9.2%}" if entry.share > -9.99 else "  < -999%"
            numbers = f"{entry.value[at]:11.4g}{entry.bound[at]:11.4g}{share}"
            lines.append(f"{mark}{entry.quantity:24}{entry.statement:26}{entry.kind:13}{numbers}{where}")
        lines += [f"    not checked: {what}: {why}" for what, why in self.left_out]
        return "\n".join(lines)


def within_theory(
    result: Records, algorithm: Algorithm, problem: Problem, source: Source, x0: PyTree, *,
    bounds: Bounds | None = None, levels: ArrayLike | None = None, replay: bool = True,
    reference: Reference | None = None, margin: float | None = None, average: Average | None = None,
) -> TheoryCheck:  # fmt: skip
    """Hold the records of a run against every bound that its algorithm has.

    - drift-plus-penalty with any schedule: the lemmas of appendix A, on every path (the run is made once more);
    - weights set beforehand (EDPP, DPP, any `PresetSchedule` that never decreases): theorems 1 and 2 with their
      constants, with the queues of theorem 3 where Slater's condition holds; on expectations, so the mean over seeds is
      judged, with its standard error;
    - ADPP: appendix C, on every path, where some point meets the constraints of every sample;
    - MDPP: appendix A alone. Theorem 5 has no constants to check: its proof bounds a_t by a constant, which the
      estimates exceed;
    - RDPP and WDPP: appendix A alone. No theorem is about them;
    - SDPP, SRDPP, PD, PD2 and other rules than drift-plus-penalty: nothing. That is an answer of its own
      (`TheoryCheck.checked`), as it is wherever what is left of the above is nothing, such as appendix A alone with
      `replay=False`.

    Args:
        result: of `run`, or anything with its records.
        algorithm: that was run.
        problem: loss, constraints and domain.
        source: where samples came from.
        x0: x_1.
        bounds: F, G and H; see `constants`.
        levels: that were replayed, if any.
        replay: whether to go through the run again for the lemmas of appendix A.
        reference: the optimum; solved for unless given.
        margin: Slater's epsilon, 0 where there is none; solved for unless given.
        average: how the run weighed the points in x̄; as the algorithm recommends unless given. Theorems 2 and 3 are
            about the uniform average alone.
    """
    entries: list[Entry] = []
    left_out: list[tuple[str, str]] = []
    if algorithm.rule in (ScaledDrift, CoordinateDrift):
        why = f"no bound is proven for {algorithm.name}, whose constraints are scaled round by round"
        return TheoryCheck((), (("everything", why),), result.samples, True)
    if algorithm.rule is not DriftPlusPenalty:
        return TheoryCheck((), (("everything", f"{algorithm.name} is not drift-plus-penalty"),), result.samples, True)
    kept = np.flatnonzero(np.asarray(result.samples) > 0)
    if not kept.size:
        raise ValueError("the result has no record after the start; record at least once")
    with double():
        radius = float(problem.geometry.diameter(wide(x0)))
    if not np.isfinite(radius):
        why = f"{type(problem.geometry).__name__} has no finite diameter R, which every bound needs"
        return TheoryCheck((), (("everything", why),), result.samples, True)
    size = constants(problem, source, x0, bounds)
    records = _Records(result, kept)
    if replay:
        entries += _lemmas(records, algorithm, problem, source, x0, levels)
    preset = _preset(algorithm.schedule)
    if isinstance(algorithm.estimator, MultiLevel):
        left_out.append(("theorem 5", "its constants are not proven for estimates, which no constant bounds"))
    elif not isinstance(algorithm.estimator, SingleSample):
        left_out.append(("theorems", f"there is no theorem for this algorithm, {algorithm.name}"))
    elif preset is not None:
        average = Average.of(algorithm.average) if average is None else average
        _theorems(records, preset, problem, source, x0, size, reference, margin, average, entries, left_out)
    else:
        _appendix_c(records, algorithm.schedule, problem, source, x0, size, entries, left_out)
    if not replay:
        left_out.append(("appendix A", "its lemmas are about every round, and replay=False leaves the rounds out"))
    return TheoryCheck(tuple(entries), tuple(left_out), records.samples, size.certified)


class _Records:
    """The records of a result in float64, those after the start alone."""

    def __init__(self, result: Records, kept: np.ndarray) -> None:
        self.result, self.kept = result, kept
        self.samples = np.asarray(result.samples)[kept]
        self.rounding = ROUNDING[str(np.asarray(result.queue).dtype)]

    def __call__(self, leaf: ArrayLike) -> np.ndarray:
        return np.asarray(leaf, dtype=float)[:, self.kept]

    def every_path(self, quantity: str, statement: str, values: np.ndarray, bound: np.ndarray) -> Entry:
        """values and bound (seeds, records) or (seeds, records, n)."""
        values, bound = np.broadcast_arrays(values, bound)
        over = values - bound
        axes = (0, *range(2, over.ndim))
        worst = _pick(over / np.maximum(np.abs(bound), 1e-300), values, bound, axes)
        holds = bool((over <= self.rounding * (np.abs(bound) + np.abs(values))).all())
        return Entry(quantity, statement, "every path", worst[0], np.zeros(len(self.kept)), worst[1], holds)

    def expectation(self, quantity: str, statement: str, values: np.ndarray, bound: np.ndarray) -> Entry:
        """values (seeds, records) or (seeds, records, n); bound without the seeds."""
        count = len(values)
        mean = values.mean(axis=0)
        error = values.std(axis=0, ddof=1) / np.sqrt(count) if count > 1 else np.zeros(mean.shape)
        over = mean - CHANCE * error - bound
        axes = tuple(range(1, mean.ndim))
        nearest = (
            _pick((mean - bound) / np.maximum(bound, 1e-300), mean, bound, axes),
            _pick((mean - bound) / np.maximum(bound, 1e-300), error, bound, axes),
        )
        holds = bool((over <= self.rounding * bound).all())
        return Entry(quantity, statement, "expectation", nearest[0][0], nearest[1][0], nearest[0][1], holds)


def _pick(
    rank: np.ndarray, values: np.ndarray, bound: np.ndarray, axes: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """At each record, value and bound of the seed and constraint that rank highest; records are the axis left over."""
    if not axes:
        return values, bound
    keep = [axis for axis in range(rank.ndim) if axis not in axes]
    order = (*keep, *axes)
    flat = [np.transpose(array, order).reshape(array.shape[keep[0]], -1) for array in (rank, values, bound)]
    at = flat[0].argmax(axis=1)[:, None]
    return tuple(np.take_along_axis(array, at, axis=1)[:, 0] for array in flat[1:])  # type: ignore[return-value]


def _preset(schedule: Schedule) -> PresetWeights | None:
    """t -> (V_t, alpha_t) in float64, where they are set beforehand."""
    if not isinstance(schedule, PresetSchedule):
        return None

    def weights(t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with double():
            found = tree.cast(schedule, jnp.float64).at(jnp.asarray(t, jnp.float64))
            penalty, proximity = (np.broadcast_to(part, t.shape) for part in (found.penalty, found.proximity))
        return penalty, proximity

    return weights


def _lemmas(
    records: _Records, algorithm: Algorithm, problem: Problem, source: Source, x0: PyTree, levels: ArrayLike | None
) -> list[Entry]:
    result = records.result
    comparator = jax.tree.map(lambda leaf: np.asarray(leaf, dtype=float).mean(axis=0), result.solution)
    with double():  # a point of X to float64, however rounded the run was
        comparator = problem.geometry.project(comparator)
    seen = pathwise(
        algorithm, problem, source, x0=x0, num_samples=int(records.samples[-1]), seeds=[int(s) for s in result.seeds],
        comparator=comparator, record=records.samples, paths=result.paths, levels=levels,
    )  # fmt: skip
    entries = []
    for lemma in LEMMAS:
        least = float(np.min(getattr(seen.slack, lemma)))
        if lemma in ("queue", "violation"):
            entry = records.every_path(lemma, "appendix A", getattr(seen, lemma), getattr(seen, f"{lemma}_bound"))
        else:  # sides of a round: the larger one as 1
            one = np.ones(len(records.kept))
            entry = Entry(f"{lemma} lemma", "appendix A", "every path", (1 - least) * one, 0 * one, one, True)
        entries.append(entry._replace(holds=least >= -EXACT))
    return entries


def _theorems(
    records: _Records, preset: PresetWeights, problem: Problem, source: Source, x0: PyTree, size: Constants,
    reference: Reference | None, margin: float | None, average: Average, entries: list[Entry],
    left_out: list[tuple[str, str]],
) -> None:  # fmt: skip
    T = int(records.samples[-1])
    V, alpha = preset(np.arange(1, T + 1, dtype=float))
    if not all((np.diff(part) >= -ROUNDING["float64"] * part[1:]).all() for part in (V, alpha, alpha / V)):
        left_out.append(("theorems 1 to 3", "they ask for V_t, alpha_t and alpha_t / V_t that never decrease"))
        return
    try:
        tau, distance = mixing_lag(source, T)
        reference = solve_reference(problem, source, x0) if reference is None else reference
        if margin is None:
            found = feasibility(problem, source, x0)
            margin = found.margin if found.verdict == "slater" else 0.0
    except ValueError as error:
        left_out.append(("theorems 1 to 3", str(error)))
        return
    bound = expected(size, preset, T, tau, distance, margin or None)
    at = records.samples - 1
    result = records.result
    queue = np.linalg.norm(records(result.queue), axis=2)
    crude = records.samples[None, :, None] * size.constraints
    entries.append(records.every_path("queue", "Q_t <= (t - 1) H", records(result.queue), crude))
    entries.append(records.expectation("queue", "theorems 1 and 3", queue, bound.queue[at]))
    # E f_t(x#) is f#, since the first state is drawn from the stationary law
    regret = records(result.loss_sum) - records.samples * reference.value
    entries.append(records.expectation("regret against x#", "theorem 1", regret, bound.regret[at]))
    entries.append(
        records.expectation("violation", "theorems 1 and 3", records(result.constraint_sum), bound.violation[at])
    )
    if average.degree or average.suffix:
        kind = "a suffix average" if average.suffix else f"weighed by t^{average.degree}"
        reason = f"x̄ is {kind}, and they are about the uniform average; run with average='uniform'"
        left_out.append(("gap and infeasibility of x̄ (theorems 2 and 3)", reason))
        return
    means = jax.tree.map(lambda leaf: np.asarray(leaf)[:, records.kept], result.x_mean)
    losses, over = expectations(problem, source, means, axes=2)
    entries.append(records.expectation("gap of x̄", "theorems 2 and 3", losses - reference.value, bound.gap[at]))
    entries.append(records.expectation("infeasibility of x̄", "theorems 2 and 3", over, bound.infeasibility[at]))


def _appendix_c(
    records: _Records, schedule: Schedule, problem: Problem, source: Source, x0: PyTree, size: Constants,
    entries: list[Entry], left_out: list[tuple[str, str]],
) -> None:  # fmt: skip
    if not isinstance(schedule, AdaGrad) or schedule.lagged:
        left_out.append(("appendix C", "it is about weights from S_t, which this schedule does not have"))
        return
    radius = size.diameter if schedule.diameter is None else float(schedule.diameter)
    if radius < size.diameter * (1 - 1e-9):
        left_out.append(
            ("appendix C", f"the algorithm was given R = {radius:g}, less than the domain's {size.diameter:g}")
        )
        return
    try:
        solve_reference(problem, source, x0, per_sample=True)
    except ValueError as error:
        left_out.append(("appendix C", f"it asks for a point that meets every sample's constraints: {error}"))
        return
    result = records.result
    energy = records(result.weights.proximity) * radius**2
    bound = appendix_c_bounds(energy, records.samples, radius, float(schedule.beta))
    queue = np.linalg.norm(records(result.queue), axis=2)
    entries.append(records.every_path("queue", "appendix C", queue, bound.queue))
    violation = records(result.constraint_sum)
    entries.append(records.every_path("violation", "appendix C", violation, bound.violation[..., None]))
    total = int(records.samples[-1])
    paths = [_path(result, source, row, total) for row in range(len(result.seeds))]
    best = best_on_paths(problem, source, paths, x0, per_sample=True)
    sums = [
        np.cumsum(path_values(problem, source, found.x, path)[0])[source.rows_taken(records.samples, path) - 1]
        / source.rows_per_sample
        for found, path in zip(best, paths, strict=True)
    ]
    regrets = [records(result.loss_sum)[row] - own for row, own in enumerate(sums)]
    entries.append(records.every_path("regret against x°", "appendix C", np.stack(regrets), bound.regret))


def _path(result: Records, source: Source, row: int, count: int) -> PyTree:
    """The path of one seed, as replayed or drawn again."""
    if result.paths is None:
        return source.path_of(source.paths([int(result.seeds[row])], count), 0)
    return jax.tree.map(lambda leaf: leaf[:count], source.path_of(result.paths, row))


def mixing_lag(source: Source, T: int) -> tuple[int, float]:
    """tau_mix(1/T) of a source and d_mix there, or 1/T where that is not known; 1 and 0 for independent draws."""
    found = [_mixing_lag(part, T) for part in source.parts]
    return max(tau for tau, _ in found), max(distance for _, distance in found)


def _mixing_lag(source: Source, T: int) -> tuple[int, float]:
    if not source.starts_stationary:
        raise ValueError("the first sample does not follow the stationary law: the source starts elsewhere")
    tau = source.mixing_time(1 / T)
    if tau is None:
        raise ValueError(f"{type(source).__name__} has no known mixing time")
    distance = source.distance(tau)
    return tau, 1 / T if distance is None else distance
