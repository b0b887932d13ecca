"""What a round of what `auto` recommends costs beside one of EDPP-t: the paper's problem, and Adult in batches.

A run of what `auto` recommends ends with a look at x0, which costs the same however many rounds there were: its time is
shown as well.

All run in turns in one process and the best of several turns counts, in seconds of processor time, so that a busy
machine does not matter; ratios are what to look at.

    python benchmarks/scalefree_cost.py [--turns K]
"""

from __future__ import annotations

import argparse
import dataclasses
import time

import jax
import numpy as np
from common import TAU_MIX, best_of, setting, write

import ergodrift as ed
from ergodrift.peers.tasks import TASKS


def cases(kind):
    """Name, problem, source, x0 and samples."""
    problem, source, _ = setting()
    yield "paper", problem, source, np.zeros(3, kind), 50_000
    task = TASKS["adult"]()
    yield "Adult", task.problem, task.source, np.asarray(task.x0, kind), task.num_samples


def others(problem, source, x0, samples):
    """What is compared with EDPP-t, by name. Without a reason there is no look at x0."""
    chosen = ed.auto(problem, source, x0, samples)
    return {"auto": dataclasses.replace(chosen, reason=""), "SDPP": ed.sdpp(), "auto and the look": chosen}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=15)
    options, rows = parser.parse_args(), []
    print(f"{'':12}{'precision':>10}{'EDPP-t, us':>12}   (others: times EDPP-t)")
    for kind in (np.float32, np.float64):
        for name, problem, source, x0, samples in cases(kind):
            beside = others(problem, source, x0, samples)

            def job(algorithm, problem=problem, source=source, x0=x0, samples=samples):
                return lambda: ed.run(algorithm, problem, source, x0=x0, num_samples=samples, record=1).x

            jobs = [job(algorithm) for algorithm in (ed.edpp(TAU_MIX), *beside.values())]
            best_of(1, *jobs)  # compile
            times = best_of(options.turns, *jobs, clock=time.process_time)
            ratios = {label: spent / times[0] for label, spent in zip(beside, times[1:], strict=True)}
            shown = "".join(f"{label} {ratio:.2f}   " for label, ratio in ratios.items())
            precision = np.dtype(kind).name
            print(f"{name:12}{precision:>10}{times[0] / samples * 1e6:12.3f}   {shown}", flush=True)
            rows.append({"problem": name, "precision": precision, "seconds": times, "ratios": ratios})
    write("scalefree_cost", {"unit": "seconds", "rows": rows})


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
