"""Tightening: move what is optimised until what was asked for is certified on rows that were held out.

A rate of decisions has no slope; a sigmoid in the place of the decision has one. Each turn takes the true values at the
present point, the slopes of the smooth ones, and solves the convex problem with these tangents in the place of the
constraints. Limits stand off from those asked for by what a certificate on the held-out rows will want.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.optimize
import scipy.stats

from ergodrift.engine.result import Result
from ergodrift.sklearn.cells import Asked, Part
from ergodrift.sklearn.certificate import TableCertificate, certified, ends, pairs
from ergodrift.sklearn.solver import Solver

TURNS = 8  # that a tightening may take
LOOKS = (0.5, 0.25, 0.25)  # at the held-out rows: their shares of 1 - confidence, so that all hold together
SURE = 0.4  # standard errors by which the held-out rows may differ from those of the fit
SETTLED = 2e-3  # of the loss: a turn that changes it by less is the last
NEAR = 0.05  # of the room that is kept: how exactly it is to be kept
AMPLE = 1.05  # times what is missing: the held-out rows need not follow those of the fit exactly
FEWEST = 100  # rows from which errors are told
NEARER, FARTHER = (0.25, 0.12, 0.06, 0.03), (-0.01, -0.02, -0.05, -0.1)  # of the way to the optimum without constraints


@dataclasses.dataclass
class Model:
    """A point and what it does on the rows of the fit.

    Attributes:
        x: coefficients, in the units of the design.
        values: (m,) A q, the true values.
        loss: the mean loss.
        multipliers: (m,) of the limits.
        result: of the run that ended there.
    """

    x: np.ndarray
    values: np.ndarray
    loss: float
    multipliers: np.ndarray
    result: Result


@dataclasses.dataclass
class Outcome:
    """What came of it.

    Attributes:
        model: the one to keep.
        certificate: on the held-out rows; None where there are none.
        notes: plain sentences.
        turns: runs that it took.
    """

    model: Model
    certificate: TableCertificate | None
    notes: list[str]
    turns: int


class Tightening:
    """The state of a fit.

    Args:
        solver: runs.
        asked: constraints.
        part: rows of the fit, in the order of time.
        design: (n, d) the same for the solver.
        held: held-out rows, later than all of these, with their design; None where there are none.
        unit, centre: scores are unit x design @ x + centre.
        confidence: of the certificate.
    """

    def __init__(
        self, solver: Solver, asked: Asked, part: Part, design: np.ndarray, held: tuple[Part, np.ndarray] | None,
        unit: float, centre: float, confidence: float,
    ) -> None:  # fmt: skip
        self.solver, self.asked, self.part, self.design, self.held = solver, asked, part, design, held
        self.unit, self.centre, self.confidence = unit, centre, confidence
        self.members = asked.members(part)
        self.bounds = asked.bounds
        self.turns = 0
        self.free = self._free()

    def scores(self, x: np.ndarray, design: np.ndarray) -> np.ndarray:
        return self.unit * np.asarray(design @ x.astype(design.dtype), dtype=float) + self.centre

    def model(self, x: np.ndarray, multipliers: np.ndarray, result: Result) -> Model:
        scores = self.scores(x, self.design)
        q = self.asked.means(scores, self.part, self.members)
        chosen = self.asked.matrix
        missing = (abs(chosen) @ np.isnan(q).astype(float)) > 0
        values = np.where(missing, np.nan, chosen @ np.nan_to_num(q))
        losses = self.asked.loss.value(np, scores, self.asked.target(self.part.y), self.asked.setting)
        return Model(x, values, float(np.average(losses, weights=self.part.weights)), multipliers, result)

    def _free(self) -> Model:
        """The optimum without constraints."""
        x, result = self.solver.solve(self.solver.start, None, None, self._distance(self.solver.start))
        self.turns += 1
        return self.model(x, np.zeros(len(self.bounds)), result)

    def _distance(self, x: np.ndarray) -> float:
        return max(0.02 * float(np.linalg.norm(x)), 0.002 * float(np.asarray(self.solver.geometry.radius)))

    def step(self, now: Model, limits: np.ndarray, share: float) -> Model:
        """Solve with the tangents at the present point, and go a share of the way."""
        known = np.isfinite(now.values)
        above = np.where(known, (now.values - limits) / self._scale(), -np.inf)
        rows = np.sort(np.argsort(-above, kind="stable")[: self.solver.num_tangents])
        rows = rows[known[rows]]
        scores = self.scores(now.x, self.design)
        normals = self.unit * self.asked.tangents(scores, self.part, self.design, rows, self.members)
        flat = normals.reshape(len(rows), -1)
        at = limits[rows] - now.values[rows] + flat @ now.x.ravel()
        x, result = self.solver.solve(now.x, normals, at, self._distance(now.x))
        self.turns += 1
        multipliers = np.zeros(len(limits))
        multipliers[rows] = np.asarray(result.queue[0, -1], dtype=float)[: len(rows)]
        return self.model(now.x + share * (x - now.x), multipliers, result)

    def _scale(self) -> np.ndarray:
        return np.maximum(np.abs(self.bounds), 1e-12)

    def room(self, now: Model) -> np.ndarray:
        """(m,) how far below its limit each value should be, so that a certificate on the held-out rows will say
        "satisfied" in most cases: the half-width of its interval, and what two samples differ by."""
        first, second = pairs(self.asked)
        found = np.zeros(len(self.bounds))
        if self.held is None or min(len(self.held[0]), len(self.part)) < FEWEST:
            return found
        count = len(self.held[0])
        recent = slice(-min(4 * count, len(self.part)), None)
        linear = self.asked.linearised(self.scores(now.x, self.design[recent]), self.part.cut(recent))
        found_ends = ends(linear, self.asked.contrasts(first), self._delta(0))
        shrunk = np.sqrt(linear.rows / count)
        half = shrunk * (found_ends.upper - found_ends.lower) / 2
        errors = half / scipy.stats.t.isf(self._delta(0) / 2, 30)
        limit, two = self.bounds[first], second >= 0
        wanted = half + SURE * np.sqrt(1 + count / len(self.part)) * errors
        # A difference of either sign is within its limits by the limit at most. Where the interval alone is wider, no
        # tightening will have it certified on so few rows, and none is paid for.
        wanted = np.where(two, np.where(half < limit, np.minimum(wanted, 0.9 * limit), 0.25 * limit), wanted)
        wanted = np.where(np.isfinite(wanted), wanted, 0.0)  # nothing is known of it
        found[first] = wanted
        found[second[two]] = wanted[two]
        return found

    def _apart(self, limits: np.ndarray) -> np.ndarray:
        """Limits from above and from below that leave a tenth of the limit between them."""
        first, second = pairs(self.asked)
        above, below = first[second >= 0], second[second >= 0]
        lacking = np.maximum(0.1 * self.bounds[above] - limits[above] - limits[below], 0) / 2
        limits = limits.copy()
        limits[above] += lacking
        limits[below] += lacking
        return limits

    def _delta(self, look: int) -> float:
        """Of one interval in a look."""
        return (1 - self.confidence) * LOOKS[look] / max(len(pairs(self.asked)[0]), 1)

    def settle(self, now: Model, turns: int = TURNS, least: np.ndarray | None = None) -> Model:
        """Turns until the values keep their limits with room, and the loss has settled; `least` are tighter limits."""
        if not np.isfinite(now.values).any():
            return now  # the rows of the fit show none of the groups that are compared
        room, limits = self.room(now), self.bounds
        for turn in range(turns):
            if turn == 1:  # and from then on it hardly changes with the point
                room = self.room(now)
            wanted = self.bounds - room
            limits = self._apart(wanted if least is None else np.minimum(wanted, least))
            near = NEAR * np.maximum(room, 0.02 * self._scale())
            after = self._cautious(now, self.step(now, limits, 1.0 if turn < 2 else 0.6), limits)
            kept = np.nanmax(after.values - limits - near, initial=-1) <= 0
            still = abs(after.loss - now.loss) <= SETTLED * abs(after.loss)
            now = after
            if kept and still and turn >= 2:
                break
        return self.scaled(self._nearest(now, limits))

    def _nearest(self, now: Model, limits: np.ndarray) -> Model:
        """The point nearest to the optimum without constraints, on the line through it, that keeps the limits: the loss
        is convex, so nothing on the way there has a larger one. A point that breaks limits goes the other way."""
        kept = (now.values <= limits) | np.isnan(now.values)
        for share in NEARER if kept.all() else FARTHER:
            other = self.model(now.x + share * (self.free.x - now.x), now.multipliers, now.result)
            if ((other.values <= limits) | np.isnan(other.values)).all():
                return other
        return now

    def scaled(self, now: Model) -> Model:
        """The same decisions at a smaller loss: c x for c > 0 decides as x does, so c is free to choose."""
        size = float(np.linalg.norm(now.x))
        if not self.asked.num_classes or size == 0:
            return now
        scores, target, weights = self.scores(now.x, self.design), self.asked.target(self.part.y), self.part.weights

        def loss(power: float) -> float:
            values = self.asked.loss.value(np, np.exp(power) * scores, target, self.asked.setting)
            return float(np.average(values, weights=weights))

        most = min(np.log(float(np.asarray(self.solver.geometry.radius)) / size), 2.0)
        found = scipy.optimize.minimize_scalar(loss, bounds=(-6.0, most), method="bounded", options={"xatol": 0.01})
        other = self.model(np.exp(found.x) * now.x, now.multipliers, now.result)
        worse = np.nanmax((other.values - np.maximum(now.values, self.bounds)) / self._scale(), initial=0.0)
        return other if other.loss < now.loss and worse <= 1e-9 else now

    def _cautious(self, now: Model, after: Model, limits: np.ndarray) -> Model:
        """The next model, or one nearer to the present where both its loss and its violation are worse: tangents hold
        nearby alone, and limits that cannot be kept together drive the point away."""

        def over(model: Model) -> float:
            return float(np.nanmax((model.values - limits) / self._scale(), initial=0.0))

        for _ in range(4):
            if after.loss <= now.loss or over(after) <= over(now) + 1e-3:
                break
            after = self.model(now.x + 0.3 * (after.x - now.x), after.multipliers, after.result)
        return after

    def outcome(self) -> Outcome:
        """Fit, tighten, certify."""
        free = self.free
        if not len(self.bounds):
            return Outcome(free, self._look(free, 0), [], self.turns)
        if (
            np.isnan(free.values).all()
            or (np.nan_to_num(free.values, nan=-np.inf) <= self.bounds - self.room(free)).all()
        ):
            first = free  # what is asked for costs nothing
        else:
            first = self.settle(free)
        tried: list[tuple[Model, TableCertificate | None]] = [(first, self._look(first, 0))]
        for look in range(1, len(LOOKS)):
            model, found = tried[-1]
            if found is None or found.satisfied or (missing := self._missing(found, look)) is None:
                break
            tighter = np.where(missing > 0, model.values - missing, np.inf)
            model = self.settle(model, 5, tighter)
            tried.append((model, self._look(model, look)))
        best = min(range(len(tried)), key=lambda k: _badness(tried[k][1]))
        model, found = tried[best]
        return Outcome(model, found, self._notes(free, model, found, len(tried)), self.turns)

    def _missing(self, found: TableCertificate, look: int) -> np.ndarray | None:
        """By how much to tighten for the next look, whose intervals are wider; None where that will not help."""
        first, second = pairs(self.asked)
        wider = scipy.stats.t.isf(self._delta(look) / 2, 20) / scipy.stats.t.isf(self._delta(look - 1) / 2, 20)
        # And a little more, since tightening some of them moves the others.
        wider *= 1.15
        up, down, two = wider * (found.upper - found.estimate), wider * (found.estimate - found.lower), second >= 0
        if not np.isfinite(up + down).all() or (two & (up + down > 2.2 * found.limit)).any():
            return None  # too few rows for such limits
        out = np.zeros(len(self.bounds))
        # A loss, or a rate, has an interval that shrinks with it.
        falls = ~two & (found.estimate > 0) & (found.limit > 0)
        level = np.where(falls, found.limit / (1 + up / np.where(falls, found.estimate, 1)), found.limit - up)
        out[first] = np.maximum(found.estimate - level, 0)
        out[second[two]] = np.maximum(down - found.estimate - found.limit, 0)[two]
        out = np.where(out > 0, AMPLE * out + 0.1 * np.max(up + down, initial=0) / 2, 0)
        return out if out.any() else None

    def _look(self, model: Model, look: int) -> TableCertificate | None:
        if self.held is None:
            return None
        part, design = self.held
        level = 1 - (1 - self.confidence) * LOOKS[look] if len(self.bounds) else self.confidence
        return certified(self.asked, self.scores(model.x, design), part, self.confidence, level)

    def _notes(self, free: Model, model: Model, found: TableCertificate | None, looks: int) -> list[str]:
        notes = [
            f"loss {model.loss:.5g} on the {len(self.part):,} rows of the fit, {model.loss - free.loss:.2g} more than "
            f"without constraints"
        ]
        if found is None:
            notes.append("no rows were held out: what is asked for holds on the rows of the fit at best")
            return notes
        if looks > 1:
            notes.append(f"held-out rows were looked at {looks} times, which the intervals allow for")
        if not found.satisfied:
            open_ = [name for name, by in zip(found.name, found.excess, strict=True) if not np.isfinite(by)]
            worst = int(np.argmax(np.where(np.isfinite(found.excess), found.excess, -np.inf)))
            by = found.excess[worst]
            said = f"{found.name[worst]} may be {by:.3g} above its limit" if by > 0 and np.isfinite(by) else ""
            said += (" and " if said and open_ else "") + (
                f"too few rows say anything about {open_[0]}" if open_ else ""
            )
            notes.append(
                f"could not be certified: {said}; hold out more rows (validation_fraction), or ask for a larger limit"
            )
        return notes


def _badness(found: TableCertificate | None) -> float:
    if found is None or found.satisfied:
        return -1.0
    excess = np.where(np.isfinite(found.excess), found.excess / np.maximum(np.abs(found.limit), 1e-12), 1e6)
    return float(np.max(excess, initial=0.0))
