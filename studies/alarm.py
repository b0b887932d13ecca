"""The drift alarm on laws that stay and on laws that change: false alarms, and samples until one that is true.

`python -m studies.alarm` prints the tables of docs/laboratory/coverage.md; with --write-docs they go there.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeAlias

import numpy as np
import scipy.signal

from ergodrift._core.markdown import table
from ergodrift.trust.alarm import DriftAlarm

PAGE = Path(__file__).parents[1] / "docs" / "laboratory" / "coverage.md"
BEGIN, END = "<!-- alarm: begin -->", "<!-- alarm: end -->"
CHANGE, SHIFTED = 200_000, 400_000  # samples before a change, and after it
Law: TypeAlias = Callable[[np.random.Generator, int], np.ndarray]


def autoregression(rng: np.random.Generator, n: int, time: float, degrees: float | None = None) -> np.ndarray:
    """A stationary AR(1) with this relaxation time and variance 1; innovations normal, or Student's."""
    phi = np.exp(-1 / time)
    drawn = rng.normal(size=n) if degrees is None else rng.standard_t(degrees, size=n) * np.sqrt(1 - 2 / degrees)
    drawn[1:] *= np.sqrt(1 - phi**2)
    return np.asarray(scipy.signal.lfilter([1.0], [1.0, -phi], drawn))


def regimes(rng: np.random.Generator, n: int, time: float) -> np.ndarray:
    """Two regimes of this relaxation time: mean 0 and deviation 1, mean 2 and deviation 2."""
    stays = rng.geometric(1 / (2 * time), size=int(n / time) + 50)
    second = np.repeat(np.arange(len(stays)) % 2 == rng.integers(2), stays)[:n]
    return np.where(second, 2 + 2 * rng.normal(size=n), rng.normal(size=n))


LAWS: dict[str, Law] = {
    "independent": lambda rng, n: rng.normal(size=n),
    "relaxation time 1": lambda rng, n: autoregression(rng, n, 1),
    "relaxation time 10": lambda rng, n: autoregression(rng, n, 10),
    "relaxation time 30": lambda rng, n: autoregression(rng, n, 30),
    "relaxation time 100": lambda rng, n: autoregression(rng, n, 100),
    "relaxation time 300": lambda rng, n: autoregression(rng, n, 300),
    "t, 4 degrees": lambda rng, n: rng.standard_t(4, size=n),
    "t, 4 degrees, 10": lambda rng, n: autoregression(rng, n, 10, 4),
    "squares of a normal, 10": lambda rng, n: autoregression(rng, n, 10) ** 2,
    "one in a thousand": lambda rng, n: (rng.random(n) < 1e-3).astype(float),
    "two regimes, 20": lambda rng, n: regimes(rng, n, 20),
    "two regimes, 100": lambda rng, n: regimes(rng, n, 100),
}


def alarmed(name: str, seed: int, samples: int) -> bool:
    """Whether a law that stays raises the alarm within so many samples."""
    return DriftAlarm().update(LAWS[name](np.random.default_rng([1, seed]), samples)) is not None


def delay(law: Law, seed: int, change: int = CHANGE, after: int = SHIFTED, shift: float = 0.5, ramp: int = 1) -> float:
    """Samples from the beginning of a change of so many standard deviations, complete after `ramp`, to the alarm."""
    values = law(np.random.default_rng([2, seed]), change + after)
    values[change:] += shift * values.std() * np.minimum(np.arange(1, after + 1) / ramp, 1)
    drift = DriftAlarm().update(values)
    return np.inf if drift is None else drift.sample - change


def job(task: tuple[str, int, int, int]) -> tuple[bool, float, float]:
    """One life without a change, and the delays of a jump and of a slow drift."""
    name, seed, samples, changed = task
    if seed >= changed:
        return alarmed(name, seed, samples), np.nan, np.nan
    jump, slow = (delay(LAWS[name], seed, ramp=ramp) for ramp in (1, CHANGE))
    return alarmed(name, seed, samples), jump, slow


def shown(delays: np.ndarray) -> str:
    """Median and 90 % quantile; a change that was not found, or only before it happened, is none."""
    delays = np.sort(np.where(delays > 0, delays, np.inf))
    found = [delays[int(np.ceil(part * len(delays))) - 1] for part in (0.5, 0.9)]
    return ", ".join("later" if np.isinf(each) else f"{each:,.0f}" for each in found)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--law", choices=LAWS, help="this one alone; all unless given")
    parser.add_argument("--lives", type=int, default=200, help="of each law, without a change")
    parser.add_argument("--samples", type=int, default=1_000_000, help="in a life")
    parser.add_argument("--changes", type=int, default=40, help="lives with a change, of each law")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/laboratory/coverage.md")
    options = parser.parse_args()
    if options.law and options.write_docs:
        parser.error("the table of docs/laboratory/coverage.md is of all laws: leave out --law")
    rows = []
    with ProcessPoolExecutor(options.processes) as pool:
        for name in [options.law] if options.law else LAWS:
            tasks = [(name, seed, options.samples, options.changes) for seed in range(options.lives)]
            false, jump, slow = (np.array(each) for each in zip(*pool.map(job, tasks, chunksize=4), strict=True))
            changed = slice(min(options.changes, options.lives))
            rows.append([name, f"{false.sum()} of {len(false)}", shown(jump[changed]), shown(slow[changed])])
            print(rows[-1], flush=True)
    head = ["law", "false alarms", "jump: samples until found, median, 90 %", "slow drift: the same"]
    text = table(head, rows)
    print(text)
    if options.write_docs:
        note = (
            f"`python -m studies.alarm --lives {options.lives} --changes {options.changes} --write-docs`: lives of "
            f"{options.samples:,} samples, at 95 %."
        )
        page = PAGE.read_text()
        before, rest = page.split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{textwrap.fill(note, 100)}\n\n{text}\n\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
