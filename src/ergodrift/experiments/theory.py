"""The theory measured: bounds on random problems, and slopes in T and tau_mix against the predicted exponents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias, TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift import metrics, theory
from ergodrift._core.markdown import table
from ergodrift.data.chain import MarkovChain
from ergodrift.data.expectation import expectations
from ergodrift.data.tables import MarkovSource
from ergodrift.engine.run import run
from ergodrift.geometry import Ball
from ergodrift.methods.algorithms import Algorithm, adpp, dpp, edpp, mdpp
from ergodrift.problem import Problem
from ergodrift.problems import random_problem
from ergodrift.solve.feasibility import feasibility
from ergodrift.solve.reference import solve_reference
from ergodrift.theory import Rate, theorem2, theorem3, theorem5

SCHEMA = "ergodrift theory v1"

# ---- bounds on random problems ----


class BoundRow(TypedDict):
    """A bound of an algorithm: on how many problems it was held against runs, which crossed it, how near they came."""

    algorithm: str
    quantity: str
    statement: str
    kind: str
    problems: int
    crossed: list[int]
    share: float


class BoundsStudy(TypedDict):
    """All bounds, and how often one was left out for which reason."""

    problems: int
    samples: int
    seeds: int
    rows: list[BoundRow]
    left_out: dict[str, int]


def bounds_study(
    problems: int | Sequence[int], num_samples: int = 1000, seeds: int = 8,
    log: Callable[[str], None] = lambda line: None, keep: Callable[[BoundsStudy], None] = lambda study: None,
) -> BoundsStudy:  # fmt: skip
    """Run every algorithm that has a bound on random problems, and count the bounds that are crossed.

    Args:
        problems: how many, or which seeds of `random_problem`.
        num_samples: T of each run.
        seeds: paths per run.
        log: called with a line about progress.
        keep: called with the study so far after every hundred problems.
    """

    def study(done: int) -> BoundsStudy:
        found = list(rows.values())
        return {"problems": done, "samples": num_samples, "seeds": seeds, "rows": found, "left_out": left_out}

    numbers = range(problems) if isinstance(problems, int) else problems
    rows: dict[tuple[str, ...], BoundRow] = {}
    left_out: dict[str, int] = {}
    for done, number in enumerate(numbers, 1):
        case = random_problem(number)
        reference = solve_reference(case.problem, case.source, case.x0)
        found = feasibility(case.problem, case.source, case.x0)
        margin = found.margin if found.verdict == "slater" else 0.0
        tau = float(case.source.chain.mixing_time())
        beta = _beta(number)
        algorithms = [
            edpp(tau, beta), edpp(tau, beta, horizon=num_samples), dpp(), dpp(horizon=num_samples), adpp(beta),
            mdpp(1.0, cap=16),
        ]  # fmt: skip
        for algorithm in algorithms:
            setting = (algorithm, case.problem, case.source)
            result = run(*setting, x0=case.x0, num_samples=num_samples, seeds=seeds, record=10)
            check = theory.within_theory(
                result, *setting, case.x0, bounds=case.bounds, reference=reference, margin=margin
            )
            for entry in check.entries:
                new: BoundRow = {
                    "algorithm": algorithm.name, "quantity": entry.quantity, "statement": entry.statement,
                    "kind": entry.kind, "problems": 0, "crossed": [], "share": -np.inf,
                }  # fmt: skip
                row = rows.setdefault((algorithm.name, entry.quantity, entry.statement, entry.kind), new)
                row["problems"] += 1
                row["share"] = max(row["share"], entry.share)
                if not entry.holds:
                    row["crossed"].append(number)
            for what, why in check.left_out:
                reason = f"{algorithm.name}: {what}: {why.split(':')[0]}"
                left_out[reason] = left_out.get(reason, 0) + 1
        if done % 100 == 0:
            log(f"{done} problems, {sum(len(row['crossed']) for row in rows.values())} bounds crossed")
            keep(study(done))
    return study(len(numbers))


def informative(problems: int | Sequence[int], num_samples: int) -> dict[str, float]:
    """The part of random problems on which EDPP-t's bounds after T rounds are below the trivial ones."""
    numbers = range(problems) if isinstance(problems, int) else problems
    below: dict[str, list[bool]] = {}
    for number in numbers:
        case = random_problem(number)
        size = theory.constants(case.problem, case.source, case.x0, case.bounds)
        plan = theory.ergodic(float(case.source.chain.mixing_time()), _beta(number))
        bound = theory.expected(size, plan, num_samples, *theory.mixing_lag(case.source, num_samples))
        T, H, most = num_samples, size.constraints, size.loss_grad * size.diameter
        trivial = theory.Expected(T * np.linalg.norm(H), T * most, T * H, most, H)  # pyright: ignore[reportArgumentType]
        for quantity in bound._fields:
            cut = getattr(bound, quantity)[-1] < 0.999 * getattr(trivial, quantity)
            below.setdefault(quantity, []).append(bool(np.any(cut)))
    return {quantity: float(np.mean(found)) for quantity, found in below.items()}


def _beta(number: int) -> float:
    return 0.5 if number % 3 else 0.25


def bounds_table(study: BoundsStudy) -> str:
    """The bounds study as Markdown."""
    head = ["algorithm", "quantity", "stated in", "holds", "problems", "crossed", "largest share of the bound"]
    lines: list[list[object]] = []
    for row in study["rows"]:
        share = f"{row['share']:.1%}" if row["quantity"].split()[-1] != "lemma" else "attained"
        named = [row["algorithm"], row["quantity"], row["statement"], row["kind"]]
        lines.append([*named, row["problems"], len(row["crossed"]), share])
    return table(head, lines)


# ---- slopes ----

CENTRES = np.array([[2.0, 1.0], [0.0, 3.0], [1.0, -1.0]])  # mean (1, 1)
NOISE = np.array([0.5, -0.25, -0.25])  # mean 0
OPTIMUM = np.array([0.5, 0.5])  # (1, 1) moved onto x + y = 1, for both kinds of constraint

Sample: TypeAlias = Mapping[str, jax.Array]
Limit: TypeAlias = Callable[[np.ndarray, float], np.ndarray]  # of T and tau_mix


def _distance(x: jax.Array, xi: Sample) -> jax.Array:
    return jnp.sum((x - xi["c"]) ** 2) / 2


def _halfspace(x: jax.Array, xi: Sample) -> jax.Array:
    return jnp.stack([x[0] + x[1] - 1 + xi["e"]])


def _line(x: jax.Array, xi: Sample) -> jax.Array:
    """(x + y - 1)^2 <= 0 on average: only a line is feasible, and no point strictly."""
    return jnp.stack([(x[0] + x[1] - 1) ** 2 + xi["e"]])


def _halfspace_limit(T: np.ndarray, tau: float) -> np.ndarray:
    """Q_t tends to lambda* V_t with lambda* = 1/2, and the sum of E g_t(x_t) is E Q_{T+1} but for a constant."""
    return np.sqrt(tau * T) / 2 / T


def _line_limit(beta: float) -> Limit:
    """With u = x + y - 1: -V_t/2 + 2 u Q_t = 0 and dQ/dt = u^2, so Q^3 = 3/16 x the sum of V^2; squared mean of u."""
    power = (beta - 1) / 3

    def limit(T: np.ndarray, tau: float) -> np.ndarray:
        return np.square((16 * (2 * beta + 1) / 3) ** (1 / 3) / 4 * tau ** (beta / 3) * T**power / (1 + power))

    return limit


class Case(NamedTuple):
    """A curve of the study: an algorithm on a problem, with the rates that bound it, and what the infeasibility of x̄
    tends to, where that is known."""

    name: str
    algorithm: Callable[[float], Algorithm]
    constraints: Callable[[jax.Array, Sample], jax.Array]
    rates: dict[str, Rate]
    limit: Limit | None = None


CASES = (
    Case("EDPP-t, beta 1/2, Slater", lambda tau: edpp(tau), _halfspace, theorem3(), _halfspace_limit),
    Case("EDPP-t, beta 1/3, Slater", lambda tau: edpp(tau, beta=1 / 3), _halfspace, theorem2(1 / 3)),
    Case("EDPP-t, beta 1/2, no Slater", lambda tau: edpp(tau), _line, theorem2(1 / 2), _line_limit(1 / 2)),
    Case("EDPP-t, beta 1/3, no Slater", lambda tau: edpp(tau, beta=1 / 3), _line, theorem2(1 / 3), _line_limit(1 / 3)),
    Case("MDPP, beta 1/2, Slater", lambda tau: mdpp(1.0, cap=16), _halfspace, theorem5(1 / 2)),
)
STAYS = (0.0, 0.7, 0.94, 0.985, 0.9962)  # mixing times 1, 3, 16, 65 and 257
QUANTITIES: tuple[Literal["gap", "infeasibility"], ...] = ("gap", "infeasibility")


class Fit(TypedDict):
    """A slope and its standard error, None where too few points are clear of 0; `late` is of the last records alone."""

    predicted: float
    sign: float
    points: int
    slope: float | None
    error: float | None
    late: tuple[float, float] | None
    verdict: str


class Slopes(TypedDict):
    """Means over seeds (tau_mix by T) of one quantity, and its slopes beside the theorem's."""

    theorem: str
    rate: str
    mean: list[list[float]]
    error: list[list[float]]
    in_T: list[Fit]
    in_tau: Fit


class Curve(TypedDict):
    """What was measured of one case."""

    tau_mix: list[float]
    gap: Slopes
    infeasibility: Slopes


class SlopesStudy(TypedDict):
    """All cases by name."""

    samples: list[int]
    seeds: int
    curves: dict[str, Curve]


FIRST = 2000  # samples of the first record; each further one has twice as many
CLEAR = 3.0  # standard errors that a mean must be away from 0 to enter a fit
SETTLED = 300  # mixing times a run must have lasted to enter a fit
LATE = 4  # records at the end of a fit, fitted on their own: whether the slope still changes


def slopes_study(
    num_samples: int = 4_096_000, seeds: int = 64, stays: Sequence[float] = STAYS, cases: Sequence[Case] = CASES,
    log: Callable[[str], None] = lambda line: None,
) -> SlopesStudy:  # fmt: skip
    """Means over seeds of gap and infeasibility of x̄, and the slopes of their sizes in T and in tau_mix.

    The theorems bound signed expectations from above: a negative mean is below any such bound, whatever its slope. Fits
    are on a log-log scale, over records that are clear of 0 and settled; standard errors of slopes come from 400
    resamples of the seeds. Independent draws (tau_mix = 1) are left out of the fits in tau_mix: terms with a factor
    tau - 1 vanish there.
    """
    doublings = max(int(np.log2(num_samples / FIRST)), LATE)
    grid = (num_samples / 2.0 ** np.arange(doublings, -1, -1)).round().astype(int)
    curves: dict[str, Curve] = {}
    for case in cases:
        problem = Problem(_distance, case.constraints, Ball(4.0))
        points = []
        for stay in stays:
            chain = MarkovChain(np.full((3, 3), (1 - stay) / 3) + stay * np.eye(3))
            source, tau = MarkovSource(chain, {"c": CENTRES, "e": NOISE}), chain.mixing_time()
            result = run(
                case.algorithm(float(tau)), problem, source, x0=np.zeros(2), num_samples=num_samples, seeds=seeds,
                record=grid,
            )  # fmt: skip
            best = expectations(problem, source, OPTIMUM)[0]
            losses, over = expectations(problem, source, result.x_mean, axes=2)
            points.append((tau, {"gap": losses - best, "infeasibility": over[..., 0]}))
        curves[case.name] = _slopes(case, points, grid)
        log(f"{case.name}: done")
    return {"samples": grid.tolist(), "seeds": seeds, "curves": curves}


def _slopes(case: Case, points: list[tuple[int, dict[str, np.ndarray]]], grid: np.ndarray) -> Curve:
    taus = np.array([tau for tau, _ in points], dtype=float)
    settled = grid >= SETTLED * taus[:, None]

    def slopes(quantity: Literal["gap", "infeasibility"]) -> Slopes:
        rate, values = case.rates[quantity], np.stack([found[quantity] for _, found in points])
        summary = [metrics.summarise(rows) for rows in values]
        mean, error = (np.stack([getattr(one, name) for one in summary]) for name in ("mean", "standard_error"))
        clear = settled & (np.abs(mean) > CLEAR * error)
        return {
            "theorem": rate.theorem,
            "rate": str(rate),
            "mean": mean.tolist(),
            "error": error.tolist(),
            "in_T": [_fit(grid, values[k], clear[k], rate.leading[1]) for k in range(len(taus))],
            "in_tau": _fit(taus, values[:, :, -1].T, clear[:, -1] & (taus > 1), rate.leading[0]),
        }

    return {"tau_mix": taus.tolist(), "gap": slopes("gap"), "infeasibility": slopes("infeasibility")}


def _fit(x: np.ndarray, values: np.ndarray, clear: np.ndarray, predicted: float) -> Fit:
    """The slope of log |mean| on log x over the records (last axis of values) that are clear of 0 and share a sign.

    The last of them has the sign that counts, and those before it belong to the fit until one does not.
    """
    mean = values.mean(axis=0)
    last = int(np.max(np.flatnonzero(clear), initial=-1))
    sign = float(np.sign(mean[last])) if last >= 0 else 0.0
    belongs = clear & (np.sign(mean) == sign)
    first = last
    while first > 0 and belongs[first - 1]:
        first -= 1
    used = slice(first, last + 1)
    points = last + 1 - first if last >= 0 else 0
    found: Fit = {
        "predicted": predicted, "sign": sign, "points": points, "slope": None, "error": None, "late": None,
        "verdict": "too few points clear of 0",
    }  # fmt: skip
    if points < 3:
        return found
    picks = np.random.default_rng(0).integers(len(values), size=(400, len(values)))
    means = np.concatenate([mean[None], values[picks].mean(axis=1)])

    def fit(part: slice) -> tuple[float, float]:
        slopes = _slope(np.log(x[part]), np.log(np.abs(means[:, part])))
        return float(slopes[0]), float(slopes[1:].std(ddof=1))

    slope, error = fit(used)
    verdict = "yes: below 0" if sign < 0 else "yes" if slope - 2 * error <= predicted else "no"
    late = fit(slice(last + 1 - LATE, last + 1)) if points > LATE else None
    return {**found, "slope": slope, "error": error, "late": late, "verdict": verdict}


def _slope(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The least-squares slope of y (last axis) on x."""
    centred = x - x.mean()
    return y @ centred / (centred @ centred)


def slopes_table(study: SlopesStudy) -> str:
    """The slopes study as Markdown."""
    head = ["", "quantity", "stated in", "slope", "sign of the mean", "predicted at most", "fitted ± standard error"]
    lines: list[list[str]] = []
    for name, curve in study["curves"].items():
        for quantity in QUANTITIES:
            entry = curve[quantity]
            rows = [(f"in T, tau_mix {tau:.0f}", fit) for tau, fit in zip(curve["tau_mix"], entry["in_T"], strict=True)]
            for what, fit in [*rows, ("in tau_mix", entry["in_tau"])]:
                fitted, late = (
                    "" if ends is None or ends[0] is None else f"{ends[0]:+.3f} ± {ends[1]:.3f}"
                    for ends in ((fit["slope"], fit["error"]), fit["late"])
                )
                sign = {1.0: "+", -1.0: "-", 0.0: ""}[fit["sign"]]
                predicted = f"{fit['predicted']:+.3f}"
                lines.append([name, quantity, entry["theorem"], what, sign, predicted, fitted, late, fit["verdict"]])
    return table([*head, f"last {LATE} records", "within"], lines)


def limits_table(study: SlopesStudy) -> str:
    """Infeasibility over what it tends to, where that is known, at every third record up to the last, as Markdown."""
    T = np.array(study["samples"], dtype=float)
    shown = np.arange(len(T) - 1, -1, -3)[::-1]
    lines: list[list[str]] = []
    for case in CASES:
        if case.limit is None or case.name not in study["curves"]:
            continue
        curve = study["curves"][case.name]
        found = zip(curve["tau_mix"], curve["infeasibility"]["mean"], curve["infeasibility"]["error"], strict=True)
        for tau, mean, error in found:
            limit = case.limit(T, tau)
            cells = [f"{mean[k] / limit[k]:.2f} ± {error[k] / limit[k]:.2f}" for k in shown]
            lines.append([case.name, f"{tau:.0f}", *cells])
    return table(["", "tau_mix", *(f"T = {T[k]:,.0f}" for k in shown)], lines)
