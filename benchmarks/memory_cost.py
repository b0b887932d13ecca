"""What a round of RDPP and WDPP costs beside one of EDPP-t: the paper's problem, a tiny one, and many states.

All run in turns in one process and the best of several turns counts, in seconds of processor time, so that a busy
machine does not matter; ratios are what to look at.

    python benchmarks/memory_cost.py [--rounds N]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from common import best_of, write
from step_overhead import CONSTRAINTS, DIM, STATES, constraints, loss

import ergodrift as ed
from ergodrift.problems import fairness, synthetic

ALGORITHMS = [ed.edpp(33.0), ed.rdpp(), ed.wdpp()]
MANY = (1000, 100_000)


def cases(rounds):
    """Name, problem, source, seeds and rounds: 2,000 rows per state, three numbers per state, and many such states."""
    chain = ed.MarkovChain(np.full((STATES, STATES), 0.01) + 0.97 * np.eye(STATES))
    paper, data, _ = fairness(*synthetic(0))
    rng = np.random.default_rng(0)

    def numbers(states):
        return {
            "A": rng.normal(size=(states, DIM, DIM)),
            "b": rng.normal(size=(states, DIM)),
            "G": rng.normal(size=(states, CONSTRAINTS, DIM)),
        }

    tiny, own = ed.Problem(loss, constraints, ed.Ball(1.0)), ed.MarkovSource(chain, numbers(STATES))
    for seeds in (1, 20):
        yield "paper", paper, ed.MarkovSource(chain, data), seeds, rounds
    for seeds in (1, 20):
        yield "tiny", tiny, own, seeds, 10 * rounds
    for states in MANY:
        yield f"tiny, {states:,} states", tiny, ed.IIDSource(numbers(states)), 1, 10 * rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50_000)
    options, rows = parser.parse_args(), []
    print(f"{'':24}{'seeds':>6}{'EDPP-t, us':>12}{'RDPP':>8}{'WDPP':>8}   (times EDPP-t, float32)")
    for name, problem, source, seeds, rounds in cases(options.rounds):

        def job(algorithm, problem=problem, source=source, seeds=seeds, count=rounds // seeds):
            x0 = np.zeros(3, np.float32)
            return lambda: ed.run(algorithm, problem, source, x0=x0, num_samples=count, seeds=seeds, record=1).x

        jobs = [job(algorithm) for algorithm in ALGORITHMS]
        best_of(1, *jobs)  # compile
        times = best_of(15, *jobs, clock=time.process_time)
        ratios = [spent / times[0] for spent in times[1:]]
        print(f"{name:24}{seeds:6}{times[0] / rounds * 1e6:12.3f}{ratios[0]:8.2f}{ratios[1]:8.2f}", flush=True)
        rows.append({"problem": name, "seeds": seeds, "seconds": times, "rounds": rounds})
    write("memory_cost", {"unit": "seconds", "rows": rows})


if __name__ == "__main__":
    main()
