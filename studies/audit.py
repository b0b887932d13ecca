"""Do the intervals of `ed.audit` cover, and are its verdicts right? On records whose truth is known, and on flights.

`python -m studies.audit` prints the tables of howto/audit.md and laboratory/audit.md; --write-docs puts them there. Two
groups with
rates 0.3 and 0.2. What is slow: one level that both groups share (an AR(1) below a threshold), a level of each group,
which group a row belongs to (drawn anew now and then), or the shared level and the group. Beside each interval that of
rows resampled as if they were independent, which is fairlearn's bootstrap: resampling rows draws the four numbers of
(group, outcome) from their multinomial law, so they are drawn from that law here, and `--only check` runs fairlearn
itself.
"""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.signal
import scipy.stats

import ergodrift as ed
from ergodrift._core.markdown import table
from ergodrift.trust.audits.families import Family, Groups
from ergodrift.trust.audits.inputs import Cells, Rows
from ergodrift.trust.audits.linear import contrasts
from ergodrift.trust.audits.measures import of_ratio
from ergodrift.trust.audits.metrics import RATIOS

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {"flights": DOCS / "howto" / "audit.md", "coverage": DOCS / "laboratory" / "audit.md"}
MARKS = "<!-- {}: begin -->", "<!-- {}: end -->"
KINDS = ["shared level", "level of each group", "group", "shared level and group"]
RATES = 0.3, 0.2
GAP, RATIO = RATES[0] - RATES[1], RATES[1] / RATES[0]
RESAMPLES = 200
CHUNK = 2_000_000  # rows drawn at once


class Cell(NamedTuple):
    """One kind of record."""

    slow: str  # one of KINDS
    tau: int
    share: float
    times: int  # rows over tau

    @property
    def rows(self) -> int:
        return self.times * self.tau


def autoregression(rng: np.random.Generator, count: int, n: int, tau: float) -> np.ndarray:
    """Stationary AR(1) series of variance 1, (count, n)."""
    phi = np.exp(-1 / tau)
    drawn = rng.standard_normal((count, n))
    drawn[:, 1:] *= np.sqrt(1 - phi**2)
    return np.asarray(scipy.signal.lfilter([1.0], [1.0, -phi], drawn, axis=1))


def renewed(rng: np.random.Generator, count: int, n: int, tau: float, share: float) -> np.ndarray:
    """Whether the smaller group is there, (count, n): drawn anew with probability 1 - exp(-1 / tau), else as before."""
    new = rng.random((count, n)) < 1 - np.exp(-1 / tau)
    new[:, 0] = True
    drawn = rng.random((count, n)) < share
    since = np.maximum.accumulate(np.where(new, np.arange(n), 0), axis=1)
    return np.take_along_axis(drawn, since, axis=1)


def records(cell: Cell, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(group, outcome) of so many records; those of a cell are always the same."""
    rng = np.random.default_rng([cell.tau, round(1000 * cell.share), cell.times, KINDS.index(cell.slow)])
    n, done = cell.rows, 0
    while done < count:
        now = min(count - done, max(CHUNK // n, 1))
        slow_group = cell.slow in ("group", "shared level and group")
        group = renewed(rng, now, n, cell.tau, cell.share) if slow_group else rng.random((now, n)) < cell.share
        level = rng.standard_normal((now, n)) if cell.slow == "group" else autoregression(rng, now, n, cell.tau)
        if cell.slow == "level of each group":
            level = np.where(group, autoregression(rng, now, n, cell.tau), level)
        limit = np.where(group, scipy.stats.norm.isf(RATES[0]), scipy.stats.norm.isf(RATES[1]))
        yield from zip(group, level > limit, strict=True)
        done += now


def resampled(group: np.ndarray, outcome: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Percentile ends of difference and ratio by resampling rows, (2, 2)."""
    counts = np.bincount(2 * group.astype(int) + outcome, minlength=4)
    drawn = rng.multinomial(len(group), counts / len(group), size=RESAMPLES).reshape(-1, 2, 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = drawn[:, :, 1] / drawn.sum(axis=2)
        both = np.stack([np.abs(rates[:, 1] - rates[:, 0]), rates.min(axis=1) / rates.max(axis=1)])
    return (
        np.nanquantile(both, [0.025, 0.975], axis=1).T
        if np.isfinite(both).any(axis=1).all()
        else np.full((2, 2), np.nan)
    )


def study(task: tuple[Cell, int]) -> dict[str, np.ndarray]:
    """Ends of difference and ratio, (repetitions, 2, 2): those of `ed.audit`, and those of resampled rows."""
    cell, repetitions = task
    rng, ours, theirs = np.random.default_rng(1), [], []
    for group, outcome in records(cell, repetitions):
        ours.append(audited(group, outcome))
        theirs.append(resampled(group, outcome, rng))
    return {"audit": np.array(ours), "rows": np.array(theirs)}


def audited(group: np.ndarray, outcome: np.ndarray) -> np.ndarray:
    """Ends of difference and ratio as `ed.audit` has them, (2, 2), in one go and without what else it looks for."""
    cells = Cells(group.astype(int), [(False,), (True,)], ["group"], 0)
    rows = Rows(outcome, outcome, cells, np.arange(len(group)), [], False)
    linear = of_ratio("rate", RATIOS["selection_rate"](), rows, None).linear
    groups = Groups(cells)
    pair = [
        groups.ends(linear, Family("pairs", log), lambda part, by: contrasts(part, by, 0.05)) for log in (False, True)
    ]
    found = []
    for each in pair:  # of a record without one of the groups nothing is known
        low, high = np.nan_to_num(each.lower[0], nan=-np.inf), np.nan_to_num(each.upper[0], nan=np.inf)
        found.append((max(0.0, low, -high), max(high, -low)))
    return np.array([[found[0][0], min(found[0][1], 1.0)], [np.exp(-found[1][1]), np.exp(-found[1][0])]])


def row_of(cell: Cell, found: dict[str, np.ndarray]) -> list[str]:
    """A line of the table. Verdicts are wrong most often where the limit is the truth: an end is on its wrong side."""
    ours, theirs = found["audit"], found["rows"]
    covered, wrong, rows = [], [], []
    for number, truth in enumerate((GAP, RATIO)):
        low, high = ours[:, number].T
        covered.append(f"{100 * np.mean((low <= truth) & (truth <= high)):.1f}")
        wrong += [np.mean(low > truth), np.mean(high < truth)]
        low, high = theirs[:, number].T
        rows.append(f"{100 * np.mean((low <= truth) & (truth <= high)):.1f}")
    given = np.mean(np.ptp(ours[:, 0], axis=1) < 1)
    about = [cell.slow, f"{cell.tau}", f"{cell.share:.0%}", f"{cell.rows:,}", f"{100 * given:.0f}"]
    return [*about, *covered, f"{100 * max(wrong):.1f}", *rows]


HEAD = ["what is slow", "tau", "smaller group", "rows", "given", "difference", "ratio", "wrong verdicts"]
HEAD += ["difference, rows resampled", "ratio, rows resampled"]


def flights() -> str:
    """The late rate of the flights from New York in 2013: its standard error, and that of resampled rows."""
    from ergodrift import datasets

    data = datasets.flights()
    data = data.rows(~np.isnan(data["arr_delay"]))
    late = (data["arr_delay"] > 15).astype(int)
    minutes = data["date"].astype("datetime64[m]") + data["minutes"].astype("timedelta64[m]")
    began = time.monotonic()
    found = ed.audit("selection_rate", late, late, sensitive_features=data["carrier"], time=minutes)
    overall, seconds = found.overall, time.monotonic() - began
    # What fairlearn's bootstrap does to one rate over all rows: a binomial number of late ones.
    drawn = np.random.default_rng(0).binomial(len(late), late.mean(), size=10_000) / len(late)
    low, high = (float(end) for end in np.quantile(drawn, [0.025, 0.975]))
    rows = (high - low) / (2 * 1.96)
    lines = [["rows resampled, as fairlearn does", f"{rows:.5f}", "1", f"{low:.3f} to {high:.3f}"]]
    hours = np.unique(minutes.astype("datetime64[h]"), return_inverse=True)[1]
    by_hour = np.bincount(hours, weights=late - late.mean())
    for days in (1, 3, 7, 14):
        error = np.sqrt(long_run(by_hour, 24 * days)) / len(late)
        lines.append([f"hours, correlated for {days} days", f"{error:.5f}", f"{error / rows:.0f}", ""])
    error = (overall.upper - overall.lower) / (2 * 1.96)
    lines.append(["`ed.audit`", f"{error:.5f}", f"{error / rows:.0f}", f"{overall.lower:.3f} to {overall.upper:.3f}"])
    said = (
        f"{late.mean():.1%} of {len(late):,} flights were more than 15 minutes late. Standard errors of that rate, of "
        f"intervals their width / 3.92 (`python -m studies.audit --only flights --write-docs`; the audit took "
        f"{seconds:.1f} s). The rows are worth {overall.effective_rows:,.0f} independent ones:"
    )
    return f"{textwrap.fill(said, 100)}\n\n{table(['how', 'standard error', 'ratio', '95 % interval'], lines)}"


def long_run(series: np.ndarray, lags: int) -> float:
    """n x the long-run variance, by autocovariances up to so many lags (Newey and West 1987)."""
    weights = 1 - np.arange(1, lags + 1) / (lags + 1)
    return float(series @ series + 2 * sum(w * (series[k:] @ series[:-k]) for k, w in enumerate(weights, start=1)))


def check(repetitions: int = 4) -> str:
    """Ends of fairlearn's own bootstrap beside those of the multinomial law, on the same records."""
    from fairlearn.metrics import MetricFrame, selection_rate

    cell, rng, apart = Cell("outcome", 10, 0.1, 200), np.random.default_rng(1), []
    for seed, (group, outcome) in enumerate(records(cell, repetitions)):
        frame: Any = MetricFrame(
            metrics=selection_rate, y_true=outcome, y_pred=outcome, sensitive_features=group, n_boot=RESAMPLES,
            ci_quantiles=[0.025, 0.975], random_state=seed,
        )  # fmt: skip
        ours = resampled(group, outcome, rng)[0]
        apart.append((np.array(frame.difference_ci()) - ours) / np.ptp(ours))
    mean, error = np.mean(apart, axis=0), np.std(apart, axis=0) / np.sqrt(repetitions)
    return (
        "fairlearn's ends of the difference minus ours, in widths of the interval: "
        f"{mean[0]:+.3f} +- {error[0]:.3f} and {mean[1]:+.3f} +- {error[1]:.3f}, mean of {repetitions} records"
    )


def cells(taus: list[int], shares: list[float], times: list[int], most: int) -> list[Cell]:
    """All of at most so many rows, in the order of the table."""
    every = [Cell(slow, tau, share, of) for slow in KINDS for tau in taus for share in shares for of in times]
    return [cell for cell in every if cell.rows <= most]


def written(page: str, mark: str, text: str) -> str:
    """The page with `text` between its marks."""
    begin, end = (each.format(mark) for each in MARKS)
    before, rest = page.split(begin)
    return f"{before}{begin}\n{text}\n\n{end}{rest.split(end)[1]}"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument("--taus", type=int, nargs="+", default=[1, 10, 100, 300])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.02, 0.1, 0.5])
    parser.add_argument("--times", type=int, nargs="+", default=[200, 1000], help="rows over tau")
    parser.add_argument("--most-rows", type=int, default=60_000, help="of a record")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", choices=["coverage", "flights", "check"], help="one part (default: the first two)")
    parser.add_argument("--write-docs", action="store_true", help="put the tables into the pages")
    options = parser.parse_args()
    parts: dict[str, str] = {}
    if options.only in (None, "coverage"):
        lines, wanted = [], cells(options.taus, options.shares, options.times, options.most_rows)
        with ProcessPoolExecutor(options.processes) as pool:
            for cell, found in zip(
                wanted, pool.map(study, [(cell, options.repetitions) for cell in wanted]), strict=True
            ):
                lines.append(row_of(cell, found))
                print(lines[-1], flush=True)
        note = (
            f"`python -m studies.audit --repetitions {options.repetitions} --write-docs`: so many records of each "
            "kind, all numbers but the first three columns in %."
        )
        parts["coverage"] = f"{textwrap.fill(note, 100)}\n\n{table(HEAD, lines)}"
    if options.only in (None, "flights"):
        parts["flights"] = flights()
    if options.only == "check":
        parts["check"] = textwrap.fill(check(), 100)
    for mark, text in parts.items():
        print(text)
        if options.write_docs and mark != "check":
            PAGES[mark].write_text(written(PAGES[mark].read_text(), mark, text))


if __name__ == "__main__":
    main()
