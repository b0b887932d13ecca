"""How dependent are these data? Mixing time, effective sample size and what stands against believing them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ergodrift._core import check
from ergodrift._core.arrays import as_arrays
from ergodrift._core.extras import absent
from ergodrift.data.series import SeriesSource
from ergodrift.data.source import Source
from ergodrift.data.tables import stacked
from ergodrift.problem import Problem
from ergodrift.problem.point import as_point
from ergodrift.trust.autocorrelation import LEAST, autocovariance, block_length, checked_series, integrated_time
from ergodrift.trust.relaxation import relaxation
from ergodrift.trust.stationarity import detrend
from ergodrift.trust.transitions import ChainEstimate, estimate_chain
from ergodrift.trust.values import path_gradients, path_values
from ergodrift.types import PyTree

SAMPLES = 100_000  # drawn from a source that never ends
WANTED, NEEDED = 100, 20  # mixing times that a series should, and must, hold
FEW = 8  # states or labels that are listed one by one
RARE = 10  # visits below which a state counts as rarely seen
MOST_STATES = 2000


@dataclasses.dataclass(frozen=True)
class Quantity:
    """One series along the path: integrated times by Geyer and Sokal, effective size, relaxation time and its interval,
    block length."""

    name: str
    geyer: float
    sokal: float
    ess: float
    tau: float
    interval: tuple[float, float]
    block: float


@dataclasses.dataclass(frozen=True, eq=False)
class Diagnosis:
    """What a path says about its dependence; prints as a summary and a table.

    Attributes:
        num_samples: n.
        tau_mix: the mixing time that the data behave like. For a path of finitely many states, the exact definition
            (the first t with total variation distance at most 1/4 from every start) applied to the estimated chain. For
            any other series the relaxation time 1 / (1 - |lambda|) of its slowest visible mode, autocorrelation ~
            lambda^k or lambda^k cos(theta k + phi) but for the first lags (`trust.relaxation`): (t_rel - 1) log 2 <=
            tau_mix <= t_rel log(4 / mu_min) for every reversible finite chain, and an AR(1) series that starts 1.7
            standard deviations out is at distance 1/4 after about t_rel. Smoothing a series does not change it.
        tau_mix_interval: for it, at the confidence asked for.
        integrated_time: the largest integrated autocorrelation time of the quantities looked at, 2 t_rel - 1 for one
            mode; noise on top of it makes it shorter, smoothing longer.
        ess: the effective sample size of the worst quantity looked at, num_samples / integrated_time.
        warnings: plain sentences.
        quantities: one row for each series looked at.
        chain: where states are finite: `P`, `stationary`, `states`, `counts`, `relaxation_time`.
        confidence: of the interval.
        names: of the columns of `series`.
        notes: what else is to be known of the record: passes, times.
        series: (n, k) what was looked at.
    """

    num_samples: int
    tau_mix: float
    tau_mix_interval: tuple[float, float]
    ess: float
    warnings: list[str]
    quantities: list[Quantity]
    chain: ChainEstimate | None
    confidence: float
    names: list[str]
    series: np.ndarray
    notes: tuple[str, ...] = ()

    @property
    def integrated_time(self) -> float:
        """1 + 2 sum of autocorrelations, of the quantity where it is largest; 1 at least."""
        return self.num_samples / self.ess

    @property
    def summary(self) -> str:
        """One sentence."""
        low, high = (_short(value) for value in self.tau_mix_interval)
        argument = _short(self.tau_mix).replace(",", "")  # to be pasted into Python
        return (
            f"these data behave like tau_mix ≈ {_short(self.tau_mix)} [{low}, {high}]; {self.num_samples:,} samples "
            f"are worth about {_short(self.ess)}; use ed.edpp(tau_mix={argument})"
        )

    def __str__(self) -> str:
        lines = [self.summary]
        if self.quantities:
            lines += ["", f"{'':24}{'autocorr. time':>15}{'(Sokal)':>10}{'ess':>10}{'relaxation':>12}{'block':>8}"]
            lines += [
                f"{q.name[:24]:24}{q.geyer:15.1f}{q.sokal:10.1f}{_short(q.ess):>10}{_short(q.tau):>12}{q.block:8.0f}"
                for q in self.quantities
            ]
        if self.chain is not None:
            states, law = self.chain.states, self.chain.stationary
            found = (
                f"{len(states)} states seen; relaxation time of the estimated chain {self.chain.relaxation_time:.1f}"
            )
            if len(states) <= FEW:
                found += "; stationary law " + ", ".join(f"{p:.3f}" for p in law)
            lines += ["", found]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)

    __repr__ = __str__

    def plot(self) -> Any:
        """A matplotlib figure: autocorrelations up to 6 mixing times, and the path."""
        try:
            import matplotlib.pyplot as plt
        except ModuleNotFoundError as error:
            raise absent("plot", "plots", error) from error

        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.5), layout="constrained")
        shown = self.series[:, :6]
        gamma = autocovariance(shown, max(int(6 * self.tau_mix_interval[1]), 10) + 1)
        for name, column in zip(self.names, (gamma / gamma[0]).T, strict=False):
            left.plot(column, label=name)
        low, high = self.tau_mix_interval
        left.axvspan(low, high, color="0.85", zorder=0)
        left.axvline(self.tau_mix, color="0.5", zorder=0, label=f"tau_mix ≈ {_short(self.tau_mix)}")
        left.axhline(0, color="0.3", linewidth=0.6)
        left.set(xlabel="lag", ylabel="autocorrelation")
        left.legend(fontsize=8)
        thin = max(len(shown) // 4000, 1)
        for column in shown.T:
            right.plot(np.arange(0, len(shown), thin), column[::thin], linewidth=0.6)
        right.set(xlabel="sample", ylabel="value along the path")
        return figure


def diagnose(
    source_or_series: object,
    problem: Problem | None = None,
    x: PyTree = None,
    *,
    num_samples: int | None = None,
    seed: int = 0,
    confidence: float = 0.95,
) -> Diagnosis:
    """How dependent data are: mixing time with an interval, effective sample size, warnings.

    Args:
        source_or_series: a source; a path of integer states (n,); a series of floats (n,) or (n, k), a dict or a table
            of them; or an iterator of samples, of which `num_samples` are read.
        problem: with `x`, the loss, the constraints and the gradient of the loss along the path are looked at too.
        x: the point to evaluate at.
        num_samples: how many to draw or read: all of a series, 100,000 of a source that never ends, the first 100,000
            of a stream, which are still there for a run. A series is looked at as it was recorded, once and row by row,
            whatever its passes, order and batches.
        seed: of the path, where one is drawn.
        confidence: of the interval.

    Raises:
        ValueError: too short to say anything (with the length needed), constant, or not finite.

    >>> import ergodrift as ed
    >>> chain = ed.MarkovChain([[0.98, 0.02], [0.02, 0.98]])
    >>> path = np.asarray(chain.sample_path(jax.random.key(0), 20_000))
    >>> found = ed.diagnose(path)
    >>> found.tau_mix_interval[0] <= chain.mixing_time() <= found.tau_mix_interval[1]
    True
    """
    confidence = check.number("confidence", confidence, above=0.5, below=1)
    if (problem is None) != (x is None):
        raise ValueError("problem and x go together: pass both, or neither")
    check.untraced("diagnose", source_or_series, x)
    x = None if x is None else as_point("x", x)
    if num_samples is not None:
        check.integer("num_samples", num_samples, at_least=LEAST)
    known: int | None = None
    states: np.ndarray | None = None
    read = source_or_series
    if isinstance(read, Iterator):
        read = stacked(read, num_samples or SAMPLES)
    given = read.beginning(num_samples or SAMPLES) if isinstance(read, Source) else _as_series(read)
    if not isinstance(given, Source) and problem is not None:
        given = SeriesSource(given)
    names: list[str] = []
    columns: list[np.ndarray] = []
    if isinstance(given, Source):
        source = given.in_order
        count = min(num_samples or source.length or SAMPLES, source.length or 2**31 - 1)
        path = source.path_of(source.paths([seed], count), 0)
        if source.stationary is not None and not source.independent:
            states, known = np.asarray(path), len(source.stationary)
        if problem is not None:
            names, columns = _functions(problem, source, x, path)
        elif states is None:
            if source.paired:
                raise ValueError("a Zip is diagnosed through its functions: pass problem and x, or diagnose its parts")
            names, columns = _leaves(*source.visits(path)[0])
    else:
        values = given[:num_samples]
        if values.ndim == 1 and values.dtype.kind in "iub":
            states = values
        else:
            names, columns = _leaves(values, np.arange(len(values)))
    found = _diagnose(states, known, names, columns, confidence)
    return found if not isinstance(given, Source) else _with_record(found, given)


def _with_record(found: Diagnosis, source: Source) -> Diagnosis:
    """A diagnosis with what is to be said of a record beside its dependence: how it is read, and its times."""
    notes, warnings = list(found.notes), list(found.warnings)
    for part in dict.fromkeys(source.parts):
        if not isinstance(part, SeriesSource):
            continue
        if part.epochs > 1:
            notes.append(
                f"the record is read {part.epochs} times, which makes it no longer: its {len(part.weights):,} rows are "
                f"worth what they are worth once"
            )
        if part.order == "shuffled":
            notes.append(
                "a run gets the rows in random order, nearly independent: dependence was measured in the recorded "
                "order, and it is what certificates and the error of the record as a whole go by"
            )
        longest = max((quantity.block for quantity in found.quantities), default=0.0)
        if part.order == "blocks" and part.block < longest:
            warnings.append(
                f"blocks of {part.block} rows are shorter than these data want, about {longest:.0f}: what depends over "
                f"longer stretches is torn apart; pass SeriesSource(..., order='blocks', block={int(np.ceil(longest))})"
            )
        if part.timing is not None:
            notes += part.timing.notes()
            warnings += part.timing.warnings()
    return dataclasses.replace(found, notes=tuple(notes), warnings=warnings)


def _diagnose(
    states: np.ndarray | None, known: int | None, names: list[str], columns: list[np.ndarray], confidence: float
) -> Diagnosis:
    warnings: list[str] = []
    chain, n = None, len(states) if states is not None else len(columns[0])
    if states is not None:
        checked_series("the path of states", states)
        seen = len(np.unique(states))
        if seen > min(MOST_STATES, n / 5):
            raise ValueError(
                f"{seen} states in {n} samples are too many to estimate a chain from: pass the series as floats, lump "
                f"states together, or record at least {5 * seen} samples"
            )
        chain = estimate_chain(states, confidence)
        _refuse_short(n, chain.tau_mix)
        warnings += _state_warnings(states, known)
    series = np.column_stack(columns) if columns else np.zeros((n, 0))
    if columns:
        # Functions that do not move along the path (the gradient of a linear constraint, say) are left out.
        moving = np.ptp(series, axis=0) > 0
        if moving.any() or chain is None:
            moving = moving if moving.any() else np.ones_like(moving)
            series, names = series[:, moving], [name for name, kept in zip(names, moving, strict=True) if kept]
            series = checked_series("series", series)
    if chain is not None and not series.shape[1]:
        series, names = _state_series(chain, states)
    series, unsteady = detrend(names, series)
    warnings += unsteady
    fits = [relaxation(column, confidence) for column in series.T]
    geyer, sokal = integrated_time(series, "geyer"), integrated_time(series, "sokal")
    blocks = block_length(series)
    quantities = [
        Quantity(name, g, s, n / max(g, 1e-9), fit.tau, (fit.lower, fit.upper), block)
        for name, g, s, fit, block in zip(names, geyer, sokal, fits, blocks, strict=True)
    ]
    for name in [name for name, fit in zip(names, fits, strict=True) if not fit.fits]:
        warnings.append(
            f"no sum of a few decaying modes looks like {name}, on any band of frequencies: its relaxation time and "
            "interval are not to be trusted"
        )
    if chain is None:
        worst = max(fits, key=lambda fit: fit.tau)
        tau, interval = worst.tau, (worst.lower, worst.upper)
        _refuse_short(n, tau)
    else:
        tau, interval = chain.tau_mix, chain.tau_mix_interval
    if n < WANTED * tau:
        warnings.append(
            f"only {n / tau:.0f} mixing times were recorded: the interval is rough; {int(WANTED * tau):,} samples or "
            "more make it dependable" + ("; with a level that changes too, it may never settle" if unsteady else "")
        )
    ess = float(n / max(geyer.max(), 1.0))
    return Diagnosis(n, float(tau), interval, ess, warnings, quantities, chain, confidence, names, series)


def _refuse_short(n: int, tau: float) -> None:
    if n < NEEDED * tau:
        raise ValueError(
            f"series too short to say anything: {n} samples that stay correlated for about {tau:.0f}; "
            f"record at least {int(WANTED * tau):,}, or look for a trend"
        )


def _state_warnings(states: np.ndarray, known: int | None) -> list[str]:
    labels, visits = np.unique(states, return_counts=True)
    found = []
    if known is not None and len(labels) < known:
        never = np.setdiff1d(np.arange(known), labels)
        found.append(f"{len(never)} of {known} states never seen: {_some(never)}; what is said is about the others")
    if (rare := labels[visits < RARE]).size:
        count = "1 state was" if len(rare) == 1 else f"{len(rare)} states were"
        found.append(f"{count} seen fewer than {RARE} times: {_some(rare)}; what follows it is a guess")
    return found


def _some(labels: np.ndarray) -> str:
    return ", ".join(str(label) for label in labels[:FEW]) + (", ..." if len(labels) > FEW else "")


def _state_series(chain: ChainEstimate, states: np.ndarray | None) -> tuple[np.ndarray, list[str]]:
    """The slowest function of the states, which has the largest autocorrelation time, and the most common state."""
    index = np.searchsorted(chain.states, np.asarray(states))
    values, vectors = np.linalg.eig(chain.P)
    slow = np.real(vectors[:, np.argsort(-np.abs(values))[1]])
    common = int(np.argmax(chain.stationary))
    columns = [slow[index]] if np.ptp(slow[index]) > 0 else []
    columns.append((index == common).astype(float))
    return np.column_stack(columns), [*["slowest function"][: len(columns) - 1], f"state {chain.states[common]}"]


def _functions(problem: Problem, source: Source, x: PyTree, path: PyTree) -> tuple[list[str], list[np.ndarray]]:
    problem.check(x, source.example)
    losses, constraints = path_values(problem, source, x, path)
    gradients = path_gradients(problem, source, x, path)
    names = ["loss", *(f"constraint {i}" for i in range(constraints.shape[1]))]
    names += [f"loss gradient {i}" for i in range(gradients.shape[1])]
    return names, [losses, *constraints.T, *gradients.T]


def _leaves(data: PyTree, path: np.ndarray) -> tuple[list[str], list[np.ndarray]]:
    """Every number in a sample as a series of its own."""
    names, columns = [], []
    for where, leaf in jax.tree_util.tree_leaves_with_path(data):
        array = np.asarray(leaf)
        check.finite("series", array)
        if array.dtype.kind not in "iufb":
            raise TypeError(f"series must hold numbers, got {array.dtype}")
        flat = array.reshape(len(array), -1)[path]
        name = jax.tree_util.keystr(where, simple=True, separator=".") or "series"
        names += [name] if flat.shape[1] == 1 else [f"{name}[{i}]" for i in range(flat.shape[1])]
        columns += list(flat.T.astype(float))
    if len(path) < LEAST:
        raise ValueError(f"series has {len(path)} samples, too few to say anything; record at least {LEAST}")
    return names, columns


def _as_series(given: object) -> Source | np.ndarray:
    """One array with time along its leading axis; samples of several parts as a source."""
    if isinstance(given, list) and all(isinstance(row, np.ndarray | jax.Array) for row in given):
        given = np.array(given)  # rows of one series
    values = None if isinstance(given, str) else as_arrays("series", given)
    leaves = jax.tree.leaves(values)
    if not leaves or not all(np.ndim(leaf) for leaf in leaves):
        raise TypeError(
            f"source_or_series must be a Source, an array (n,) or (n, k) of numbers, a dict of such arrays, a table or "
            f"an iterator of samples, got {type(given).__name__}; wrap recorded samples in SeriesSource(data)"
        )
    return np.asarray(values) if jax.tree_util.all_leaves([values]) else SeriesSource(values)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}".removesuffix(".0")
