"""Do the intervals cover, are the verdicts right, is the mixing time found? Measured on data whose truth is known.

`python -m studies.coverage` runs the study and writes coverage.json and coverage.md.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy
import scipy.signal

from ergodrift._core import markdown
from ergodrift._core.files import write_whole
from ergodrift.data.chain import MarkovChain
from ergodrift.trust import intervals
from ergodrift.trust.relaxation import relaxation
from ergodrift.trust.transitions import estimate_chain

DELTA = 0.05
KINDS = ("intervals", "mixing")
TAUS = (1, 10, 100, 1000)
LENGTHS = (50, 200, 1000)  # n / tau_mix of the intervals
MIXING_LENGTHS = (100, 300)  # n / tau_mix of the mixing times
CHUNK = 3e7  # samples that a process holds in memory at once
SHIFTS = (-3.0, -2.0, -1.0, 1.0, 2.0, 3.0)  # mean violations, in standard errors, at which verdicts are judged


class Family(NamedTuple):
    """Data with a known mixing time and mean, and values within [0, 1] (an AR(1) series: its distribution function)."""

    name: str
    tau_mix: float
    simulate: Callable[[np.random.Generator, int, int], np.ndarray]  # (rng, n, repetitions) -> states or reals
    value: Callable[[np.ndarray], np.ndarray]
    mean: float
    states: int | None
    gap: float  # 1 - lambda_2


def holding_family(name: str, law: np.ndarray, tau: int) -> Family:
    """Stay with probability theta, else move to a state drawn from the law, with theta such that tau_mix = tau."""
    size = len(law)
    # d(t) = (1 - min law) theta^t; a hair below 1/4, so that rounding does not add one to the mixing time.
    theta = (0.25 / (1 - law.min())) ** (1 / tau) * (1 - 1e-9)
    chain = MarkovChain(theta * np.eye(size) + (1 - theta) * law)
    cumulative = np.cumsum(law)[:-1].astype(np.float32)

    def simulate(rng: np.random.Generator, n: int, count: int) -> np.ndarray:
        drawn = np.searchsorted(cumulative, rng.random((count, n), dtype=np.float32)).astype(np.uint8)
        renewed = rng.random((count, n), dtype=np.float32) >= theta
        renewed[:, 0] = True
        since = np.maximum.accumulate(np.where(renewed, np.arange(n, dtype=np.int32), 0), axis=1)
        return np.take_along_axis(drawn, since, axis=1).T

    return _chain_family(name, chain, np.linspace(0, 1, size), simulate)


def ring_family(name: str, size: int, tau: int) -> Family:
    """A walk on a ring that stays more often, or jumps anywhere more often, so that its mixing time is tau."""
    step = (np.roll(np.eye(size), 1, axis=1) + np.roll(np.eye(size), -1, axis=1) + np.eye(size)) / 3

    def chain(mix: float) -> MarkovChain:
        jump, stay = max(mix, 0.0), max(-mix, 0.0)
        return MarkovChain((1 - stay) * ((1 - jump) * step + jump / size) + stay * np.eye(size))

    low, high = -0.999, 1.0  # the mixing time falls as this rises
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if chain(middle).mixing_time() > tau else (low, middle)
    walk = chain(high)
    cumulative = np.cumsum(walk.P[0])[:-1].astype(np.float32)

    def simulate(rng: np.random.Generator, n: int, count: int) -> np.ndarray:
        # The law of a move is the same from every state: a path is a sum of independent moves around the ring.
        moves = np.searchsorted(cumulative, rng.random((count, n), dtype=np.float32)).astype(np.int32)
        moves[:, 0] = rng.integers(size, size=count)
        return (np.cumsum(moves, axis=1, dtype=np.int64) % size).astype(np.uint8).T

    return _chain_family(name, walk, (1 + np.cos(2 * np.pi * np.arange(size) / size)) / 2, simulate)


def _chain_family(name: str, chain: MarkovChain, values: np.ndarray, simulate: Any) -> Family:
    second = np.sort(np.abs(np.linalg.eigvals(np.asarray(chain.P))))[-2]
    mean = float(chain.stationary @ values)
    return Family(name, chain.mixing_time(), simulate, lambda s: values[s], mean, len(values), 1 - second)


def ar_family(tau: int) -> Family:
    """AR(1) with relaxation time tau; the value whose mean is sought is Phi(x), uniform on [0, 1]."""
    lam = 1 - 1 / tau

    def simulate(rng: np.random.Generator, n: int, count: int) -> np.ndarray:
        noise = rng.standard_normal((count, n), dtype=np.float32) * np.float32(np.sqrt(1 - lam**2))
        noise[:, 0] = rng.standard_normal(count)
        return np.asarray(scipy.signal.lfilter(np.ones(1, np.float32), np.array([1, -lam], np.float32), noise)).T

    return Family("AR(1)", float(tau), simulate, scipy.special.ndtr, 0.5, None, 1 - lam)


def families(tau: int) -> list[Family]:
    """The five kinds of data at one mixing time."""
    return [
        holding_family("two states", np.array([0.5, 0.5]), tau),
        holding_family("two states, 4:1", np.array([0.8, 0.2]), tau),
        holding_family("three states", np.full(3, 1 / 3), tau),
        ring_family("50 states, ring", 50, tau),
        ar_family(tau),
    ]


def bounded(family: Family, method: str) -> Callable[[np.ndarray, float], Any]:
    """A finite-sample interval for values in [0, 1].

    AR(1) has no finite mixing time, since its starts are not bounded; it is reversible with a spectral gap, which is
    what the Bernstein form needs: 1 / (2 gap) stands for tau_mix there, and Hoeffding's form does not apply.
    """
    tau = family.tau_mix if family.states else 1 / (2 * family.gap)
    ends = np.zeros(1), np.ones(1)
    return lambda values, delta: getattr(intervals, method)(values, delta, max(tau, 0.5), *ends)


def interval_methods(family: Family) -> dict[str, Callable[[np.ndarray, float], Any]]:
    """All intervals that apply to these data, by name."""
    found: dict[str, Any] = {
        "batch": intervals.batch,
        "overlapping": intervals.overlapping,
        "bootstrap": intervals.bootstrap,
    }
    if family.states:
        found["hoeffding"] = bounded(family, "hoeffding")
    found["bernstein"] = bounded(family, "bernstein")
    if family.states:
        found["anytime"] = bounded(family, "anytime")
    found["anytime, no bounds"] = intervals.anytime_asymptotic
    found["i.i.d. normal"] = intervals.iid_normal
    found["i.i.d. bootstrap"] = intervals.iid_bootstrap
    return found


def study_intervals(family: Family, n: int, repetitions: int, seed: int) -> list[dict[str, Any]]:
    """Coverage, width and wrong verdicts of every method on the same data."""
    rng = np.random.default_rng(seed)
    methods = interval_methods(family)
    ends: dict[str, list[np.ndarray]] = {name: [] for name in methods}
    means = []
    done = 0
    while done < repetitions:
        count = int(min(repetitions - done, max(CHUNK / n, 1)))
        values = family.value(family.simulate(rng, n, count)).astype(np.float64)
        means.append(values.mean(axis=0))
        for name, method in methods.items():
            ends[name].append(np.stack(method(values, DELTA)))
        done += count
    error = np.concatenate(means).std()
    rows = []
    for name, parts in ends.items():
        low, high = np.concatenate(parts, axis=1)
        wrong = []
        for shift in SHIFTS:  # as if the limit lay so many standard errors off the truth
            limit = family.mean - shift * error
            wrong.append(float(np.mean(high <= limit) if shift > 0 else np.mean(low > limit)))
        given = np.isfinite(high - low)
        covered = (low <= family.mean) & (family.mean <= high)
        rows.append(
            {
                "data": family.name,
                "tau_mix": family.tau_mix,
                "n": n,
                "method": name,
                "repetitions": len(given),
                "refused": float(1 - given.mean()),
                "coverage": float(covered.mean()),
                "width": float(np.mean((high - low)[given]) / (2 * 1.96 * error)) if given.any() else np.inf,
                "wrong": max(wrong),
            }
        )
    return rows


def study_mixing(family: Family, n: int, repetitions: int, seed: int) -> dict[str, Any]:
    """Coverage of the mixing time's interval, and where the estimate lies."""
    rng = np.random.default_rng(seed)
    found = []
    while len(found) < repetitions:
        count = int(min(repetitions - len(found), max(CHUNK / n, 1)))
        for column in family.simulate(rng, n, count).T:
            if family.states:
                if np.ptp(column) == 0:
                    continue
                estimate = estimate_chain(column)
                found.append((estimate.tau_mix, *estimate.tau_mix_interval))
            else:
                found.append(relaxation(column.astype(np.float64))[:3])
    tau, low, high = np.array(found).T
    ratio = tau / family.tau_mix
    return {
        "data": family.name,
        "tau_mix": family.tau_mix,
        "n": n,
        "repetitions": len(found),
        "coverage": float(np.mean((low <= family.tau_mix * (1 + 1e-9)) & (family.tau_mix <= high * (1 + 1e-9)))),
        "median_ratio": float(np.median(ratio)),
        "q10_ratio": float(np.quantile(ratio, 0.1)),
        "q90_ratio": float(np.quantile(ratio, 0.9)),
        "width": float(np.median(high / low)),
    }


class Cell(NamedTuple):
    """One cell of a table: a kind of data at one mixing time, and the length of its series."""

    kind: str  # "intervals" or "mixing"
    tau: int
    number: int  # of the family
    ratio: int  # n / tau_mix
    repetitions: int

    def study(self) -> list[dict[str, Any]]:
        """The rows of this cell. Its seed is its own: who computes it, and when, changes nothing."""
        family, seed = families(self.tau)[self.number], 1000 * self.number + self.ratio
        n = max(int(self.ratio * family.tau_mix), 50)
        if self.kind == "mixing":
            return [study_mixing(family, n, self.repetitions, seed + 500)]
        return study_intervals(family, n, self.repetitions, seed)


def cells(
    taus: Sequence[int] = TAUS,
    repetitions: int = 2000,
    lengths: Sequence[int] = LENGTHS,
    mixing_lengths: Sequence[int] = MIXING_LENGTHS,
    mixing_repetitions: int = 500,
) -> list[Cell]:
    """All cells, in the order of the tables."""
    found = []
    for tau in taus:
        for number in range(len(families(1))):
            found += [Cell("intervals", tau, number, ratio, repetitions) for ratio in lengths]
            found += [Cell("mixing", tau, number, ratio, mixing_repetitions) for ratio in mixing_lengths]
    return found


def study(
    wanted: Sequence[Cell],
    jobs: int = 1,
    log: Callable[[str], None] = lambda line: None,
    keep: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:
    """The whole study, on `jobs` processes; `keep` is called with what there is after each cell."""
    done: dict[Cell, list[dict[str, Any]]] = {}

    def found() -> dict[str, Any]:
        rows = {kind: [row for cell in wanted if cell.kind == kind for row in done.get(cell, [])] for kind in KINDS}
        return {"schema": "ergodrift coverage v1", "confidence": 1 - DELTA, **rows}

    began = time.monotonic()
    longest_first = sorted(wanted, key=lambda cell: -cell.tau * cell.ratio)
    with contextlib.closing(_studied(longest_first, jobs)) as studied:  # closed at once, whatever happens here
        for cell, rows in studied:
            done[cell] = rows
            at, data = f"{time.monotonic() - began:5.0f} s, {len(done)}/{len(wanted)}", rows[0]["data"]
            log(f"{at}: {cell.kind}, {data}, tau_mix = {cell.tau}, n = {cell.ratio} tau_mix")
            keep(found())
    return found()


def _studied(wanted: Sequence[Cell], jobs: int) -> Generator[tuple[Cell, list[dict[str, Any]]]]:
    """Each cell with its rows, as they are done."""
    if jobs == 1:
        yield from ((cell, cell.study()) for cell in wanted)
        return
    pool = concurrent.futures.ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"))
    futures = {pool.submit(cell.study): cell for cell in wanted}
    try:
        for future in concurrent.futures.as_completed(futures):
            yield futures[future], future.result()
    finally:
        # After Ctrl-C, cells that have not begun are not begun. (`shutdown` would forget to cancel without a wait.)
        for future in futures:
            future.cancel()
        pool.shutdown(wait=False)


def tables(found: dict[str, Any]) -> str:
    """The study as Markdown."""
    rows, mixing = found["intervals"], found["mixing"]
    ratios = sorted({_ratio(row) for row in rows})
    parts = [f"n = {ratio} tau_mix:\n\n{_coverage([row for row in rows if _ratio(row) == ratio])}" for ratio in ratios]
    if rows:
        parts.append(
            "Wrong verdicts, the worst over all data and over mean violations of -3 to -1 and 1 to 3 standard errors:"
            f"\n\n{_verdicts(rows, ratios)}"
        )
    if mixing:
        parts.append(f"Mixing times:\n\n{_mixing(mixing)}")
    return "\n\n".join(parts) + "\n"


def _ratio(row: dict[str, Any]) -> int:
    return round(row["n"] / row["tau_mix"])


def _coverage(rows: list[dict[str, Any]]) -> str:
    methods = list(dict.fromkeys(row["method"] for row in rows))
    lines = []
    for data, tau in dict.fromkeys((row["data"], row["tau_mix"]) for row in rows):
        cells = {row["method"]: row for row in rows if (row["data"], row["tau_mix"]) == (data, tau)}
        shown = [_shown(cells[m]) if m in cells else "" for m in methods]
        lines.append([data, f"{tau:g}", *shown])
    return markdown.table(["data", "tau_mix", *methods], lines)


def _shown(row: dict[str, Any]) -> str:
    """Coverage, and in brackets width and what was refused in %."""
    if row["refused"] > 0.995:
        return "none"
    refused = f"; {100 * row['refused']:.0f}" if row["refused"] >= 0.005 else ""
    return f"{100 * row['coverage']:.1f} ({row['width']:.2g}{refused})"


def _verdicts(rows: list[dict[str, Any]], ratios: list[int]) -> str:
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        wrong = [[row["wrong"] for row in rows if (row["method"], _ratio(row)) == (method, r)] for r in ratios]
        lines.append([method, *(f"{100 * max(found):.1f} %" if found else "" for found in wrong)])
    return markdown.table(["method", *(f"n = {ratio} tau_mix" for ratio in ratios)], lines)


def _mixing(rows: list[dict[str, Any]]) -> str:
    head = ["data", "tau_mix", "n / tau_mix", "repetitions", "coverage"]
    head += ["median / truth", "10 % to 90 %", "upper / lower"]
    lines = []
    for row in rows:
        numbers = [f"{row['tau_mix']:g}", f"{_ratio(row)}", f"{row['repetitions']}", f"{100 * row['coverage']:.1f}"]
        ratios = [f"{row['median_ratio']:.2f}", f"{row['q10_ratio']:.2f} to {row['q90_ratio']:.2f}"]
        lines.append([row["data"], *numbers, *ratios, f"{row['width']:.1f}"])
    return markdown.table(head, lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m studies.coverage", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tau_mix 1 and 10, 200 repetitions: under a minute")
    parser.add_argument("--repetitions", type=int, metavar="K", help="of each interval (default: 2000)")
    parser.add_argument("--mixing-repetitions", type=int, metavar="K", help="of each mixing time (default: 500)")
    parser.add_argument("--taus", type=int, nargs="+", metavar="TAU", help="mixing times (default: 1 10 100 1000)")
    parser.add_argument("--lengths", type=int, nargs="+", metavar="L", help="n / tau_mix (default: 50 200 1000)")
    parser.add_argument("--only", choices=KINDS, help="one of the two studies (default: both)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--out", type=Path, default=Path("coverage-out"), help="folder (default: %(default)s)")
    options = parser.parse_args(arguments)
    for name in ("repetitions", "mixing_repetitions", "jobs"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    taus = options.taus or ((1, 10) if options.quick else TAUS)
    repetitions = options.repetitions or (200 if options.quick else 2000)
    mixing_repetitions = options.mixing_repetitions or (20 if options.quick else 500)
    options.out.mkdir(parents=True, exist_ok=True)

    def keep(found: dict[str, Any]) -> None:
        for name, content in [("coverage.json", json.dumps(found, indent=1)), ("coverage.md", tables(found))]:
            write_whole(options.out / name, content)

    lengths = () if options.only == "mixing" else options.lengths or LENGTHS
    mixing_lengths = () if options.only == "intervals" else MIXING_LENGTHS
    log = functools.partial(print, flush=True)
    wanted = cells(taus, repetitions, lengths, mixing_lengths, mixing_repetitions)
    print(tables(study(wanted, options.jobs, log=log, keep=keep)))


if __name__ == "__main__":
    main()
