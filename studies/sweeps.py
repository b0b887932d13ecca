"""Do anytime intervals hold at all looks together, do batch intervals hold on rare bursts, are relaxation times found?

`python -m studies.sweeps` measures it on series whose truth is known, writes sweeps.json and sweeps.md,
and with `--write-docs` puts the tables between the marks of docs/laboratory/coverage.md.
"""

from __future__ import annotations

import argparse
import json
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ergodrift._core import markdown
from ergodrift._core.files import write_whole
from ergodrift.trust import intervals
from ergodrift.trust.sequence import LearnedSequence
from studies import sweep_diagnose
from studies.series import HIDDEN, SKEWED, WATCHED, Series

DELTA = 0.05
AT_ONCE = 4e6  # values held in memory
BEGIN, END = "<!-- sweeps: begin -->", "<!-- sweeps: end -->"
CLEAR = 5  # standard errors of the mean at n that a limit lies off, to see whether it is told from the mean

Row = dict[str, Any]


def paths(kind: Series, n: int, repetitions: int, seed: int) -> Any:
    """Arrays (n, columns) with `repetitions` columns in all; the same ones each time."""
    rng = np.random.default_rng([seed, n, zlib.crc32(kind.name.encode())])
    while repetitions > 0:
        columns = min(repetitions, max(int(AT_ONCE / n), 1))
        yield kind.simulate(rng, n, columns)
        repetitions -= columns


def watched(kind: Series, n: int, tuned_for: int, looks: int, repetitions: int, seed: int = 0) -> Row:
    """One series watched from its first sample on, looked at `looks` times: how often any interval misses."""
    low, high, first, means = [], [], [], []
    below, above, clash = [], [], []
    for values in paths(kind, n, repetitions, seed):
        sequence = LearnedSequence(DELTA, values.shape[1], tuned_for)
        under = np.zeros(values.shape[1], bool)
        over, begun = under.copy(), np.full(values.shape[1], np.inf)
        for part in np.array_split(values, looks):
            sequence.add(part)
            lower, upper = sequence.ends()
            over |= lower > kind.mean
            under |= upper < kind.mean
            begun = np.where(np.isfinite(upper), np.minimum(begun, sequence.count), begun)
        for found, piece in zip((low, high, first, means), (*sequence.ends(), begun, values.mean(axis=0)), strict=True):
            found.append(piece)
        above.append(over)
        below.append(under)
        clash.append(sequence.inconsistent())
    lower, upper, begun, mean = map(np.concatenate, (low, high, first, means))
    too_high, too_low = np.concatenate(above), np.concatenate(below)
    error, given = mean.std(), np.isfinite(upper)
    told = np.mean(
        [(kind.mean + sign * CLEAR * error > upper) | (kind.mean + sign * CLEAR * error < lower) for sign in (1, -1)]
    )
    return {
        "data": kind.name,
        "n": n,
        "tuned_for": tuned_for,
        "looks": looks,
        "repetitions": repetitions,
        "missed": float(np.mean(too_high | too_low)),
        "missed_satisfied": float(np.mean(too_low)),
        "missed_violated": float(np.mean(too_high)),
        "inconsistent": float(np.mean(np.concatenate(clash))),
        "given": float(given.mean()),
        "first": float(np.median(begun)),
        "width": float(np.median((upper - lower)[given]) / (2 * 1.96 * error)) if given.any() else np.inf,
        "told": float(told),
    }


def study_anytime(repetitions: int, seed: int = 0, quick: bool = False) -> list[Row]:
    """Anytime intervals without bounds over all kinds of data."""
    if quick:
        wanted = [kind for kind in WATCHED if kind.name in ("AR(1), 20", "two states 4:1, 10", "rare, 1 %")]
        return [watched(kind, 8192, 4000, 20, repetitions, seed) for kind in wanted]
    rows = []
    for n, tuned_for, looks in [(2_000, 2_000, 20), (50_000, 10_000, 200)]:
        rows += [watched(kind, n, tuned_for, looks, repetitions, seed) for kind in (*WATCHED, *HIDDEN)]
    return rows


def anytime_table(rows: list[Row]) -> str:
    """Markdown."""
    parts = []
    for n, tuned_for, looks in dict.fromkeys((row["n"], row["tuned_for"], row["looks"]) for row in rows):
        lines = [
            [
                row["data"],
                f"{100 * row['missed']:.1f}",
                f"{100 * row['missed_satisfied']:.1f}",
                f"{100 * row['missed_violated']:.1f}",
                f"{100 * row['inconsistent']:.1f}",
                f"{100 * row['given']:.0f}",
                _number(row["first"]),
                _number(row["width"]),
                f"{100 * row['told']:.0f}",
            ]
            for row in rows
            if (row["n"], row["tuned_for"], row["looks"]) == (n, tuned_for, looks)
        ]
        head = ["data", "missed, %", "too low, %", "too high, %", "inconsistent, %", "given, %", "first at", "width"]
        table = markdown.table([*head, "told apart, %"], lines)
        count = rows[0]["repetitions"]
        parts.append(f"n = {n:,}, tuned_for = {tuned_for:,}, {looks} looks, {count:,} repetitions:\n\n{table}")
    return "\n\n".join(parts)


def skewed(kind: Series, n: int, repetitions: int, seed: int = 0) -> list[Row]:
    """Batch and overlapping intervals of whole paths: coverage of those given, how many are refused, which way the
    others miss. Paths of one value, or fewer than 15 relaxation times, are refused by `certify` before."""
    ends: dict[str, list[np.ndarray]] = {"batch": [], "overlapping": []}
    for values in paths(kind, n, repetitions, seed):
        fit = np.ptp(values, axis=0) > 0
        fit[fit] = n >= 15 * intervals.decay_time(intervals._cut(values[:, fit]))
        for method, found in ends.items():
            both = np.full((2, values.shape[1]), np.inf) * [[-1], [1]]
            if fit.any():
                both[:, fit] = getattr(intervals, method)(values[:, fit], DELTA)
            found.append(both)
    rows = []
    for method, found in ends.items():
        low, high = np.concatenate(found, axis=1)
        given = np.isfinite(high)
        rows.append(
            {
                "data": kind.name,
                "n": n,
                "method": method,
                "repetitions": repetitions,
                "refused": float(1 - given.mean()),
                "missed": float(np.mean((low > kind.mean) | (high < kind.mean))),
                "missed_satisfied": float(np.mean(high < kind.mean)),
                "coverage": float(np.mean(((low <= kind.mean) & (kind.mean <= high))[given])) if given.any() else 1.0,
            }
        )
    return rows


def study_bursts(repetitions: int, seed: int = 0, quick: bool = False) -> list[Row]:
    """Batch means on rare events, bursts and skewed values."""
    if quick:
        wanted = [kind for kind in SKEWED if kind.name in ("bursts, 2 %, length 20", "rare, 1 %", "AR(1), 20")]
        return [row for kind in wanted for row in skewed(kind, 4000, repetitions, seed)]
    return [row for kind in SKEWED for n in (500, 2_000, 4_000, 20_000) for row in skewed(kind, n, repetitions, seed)]


def bursts_table(rows: list[Row]) -> str:
    """Markdown: missed in % of all paths, of these too low, refused in %."""
    lengths = list(dict.fromkeys(row["n"] for row in rows))
    lines = []
    for data, method in dict.fromkeys((row["data"], row["method"]) for row in rows):
        cells = {row["n"]: row for row in rows if (row["data"], row["method"]) == (data, method)}
        shown = []
        for row in (cells[n] for n in lengths):
            missed, too_low, refused = (100 * row[name] for name in ("missed", "missed_satisfied", "refused"))
            shown.append(f"{missed:.1f} ({too_low:.1f}; {refused:.0f})")
        lines.append([data, method, *shown])
    return markdown.table(["data", "method", *(f"n = {n:,}" for n in lengths)], lines)


class Study(NamedTuple):
    """What is measured, how it is shown, and how often in full and in short."""

    title: str
    measure: Callable[..., list[Row]]
    table: Callable[[list[Row]], str]
    repetitions: int
    few: int


def studies() -> dict[str, Study]:
    """All there are, by name."""
    return {
        "anytime": Study("Anytime intervals without bounds", study_anytime, anytime_table, 1000, 100),
        "bursts": Study("Batch intervals on rare and skewed values", study_bursts, bursts_table, 1000, 100),
        "diagnose": Study("Relaxation times", _relaxation_times, sweep_diagnose.table, 200, 5),
    }


def _relaxation_times(repetitions: int, seed: int = 0, *, quick: bool = False) -> list[Row]:
    return sweep_diagnose.study_diagnose(repetitions, seed, sweep_diagnose.kinds()[:4] if quick else None)


def sweep(
    names: Sequence[str], quick: bool = False, seed: int = 0, log: Callable[[str], None] = print
) -> dict[str, Any]:
    """Rows of each study asked for, and their tables."""
    known, rows = studies(), {}
    for name in names:
        began, study = time.monotonic(), known[name]
        rows[name] = study.measure(study.few if quick else study.repetitions, seed, quick=quick)
        log(f"{name}: {len(rows[name])} rows in {time.monotonic() - began:.0f} s")
    return {"schema": "ergodrift sweeps v1", "confidence": 1 - DELTA, "quick": quick, **rows}


def tables(found: dict[str, Any]) -> str:
    """The tables of all studies in it."""
    known = studies()
    parts = [f"**{known[name].title}.**\n\n{known[name].table(found[name])}" for name in known if name in found]
    return "\n\n".join(parts) + "\n"


def written(text: str, table: str) -> str:
    """A page with the tables between its marks."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"the page must hold the marks {BEGIN} and {END} once each, in this order")
    return text[: text.index(BEGIN) + len(BEGIN)] + "\n\n" + table + "\n" + text[text.index(END) :]


def _number(value: float) -> str:
    if not np.isfinite(value):
        return "never"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m studies.sweeps", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few kinds of data and repetitions: seconds")
    parser.add_argument("--only", nargs="+", choices=list(studies()), help="these studies alone")
    parser.add_argument("--out", type=Path, default=Path("sweeps-out"), help="where to write (sweeps-out)")
    parser.add_argument("--write-docs", action="store_true", help="put the tables into --docs")
    parser.add_argument(
        "--docs", type=Path, default=Path("docs/laboratory/coverage.md"), help="the page (docs/laboratory/coverage.md)"
    )
    options = parser.parse_args(arguments)
    if options.write_docs:
        written(options.docs.read_text(), "")  # before minutes of work: is there a page with marks?
    options.out.mkdir(parents=True, exist_ok=True)
    found = sweep(options.only or list(studies()), options.quick)
    page = tables(found)
    for path, text in [(options.out / "sweeps.json", json.dumps(found, indent=1)), (options.out / "sweeps.md", page)]:
        write_whole(path, text)
    if options.write_docs:
        write_whole(options.docs, written(options.docs.read_text(), page))
    print(page)


if __name__ == "__main__":
    main()
