"""What a round of RDPP and WDPP costs beside one of EDPP-t, on the paper's problem and on a tiny one.

All run in turns in one process and the best of several turns counts; ratios are what to look at.

    python benchmarks/memory_cost.py [--rounds N]
"""

from __future__ import annotations

import argparse

import numpy as np
from common import best_of, write
from step_overhead import CONSTRAINTS, DIM, STATES, constraints, loss

import ergodrift as ed
from ergodrift.problems import fairness, synthetic


def cases():
    """Name, problem and data: the paper's, with 2,000 rows a state, and three numbers a state."""
    problem, data, _ = fairness(*synthetic(0))
    yield "paper", problem, data
    rng = np.random.default_rng(0)
    tiny = {
        "A": rng.normal(size=(STATES, DIM, DIM)),
        "b": rng.normal(size=(STATES, DIM)),
        "G": rng.normal(size=(STATES, CONSTRAINTS, DIM)),
    }
    yield "tiny", ed.Problem(loss, constraints, ed.Ball(1.0)), tiny


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100_000)
    options = parser.parse_args()
    chain, rows = ed.MarkovChain(np.full((STATES, STATES), 0.01) + 0.97 * np.eye(STATES)), []
    algorithms = [ed.edpp(33.0), ed.rdpp(), ed.wdpp()]
    print(f"{'':8}{'seeds':>6}{'EDPP-t, us':>12}{'RDPP':>8}{'WDPP':>8}   (times EDPP-t, float32)")
    for name, problem, data in cases():
        source = ed.MarkovSource(chain, data)
        for seeds in (1, 20):

            def job(algorithm, problem=problem, source=source, seeds=seeds):
                count = options.rounds // seeds
                return lambda: (
                    ed.run(
                        algorithm, problem, source, x0=np.zeros(3, np.float32), num_samples=count, seeds=seeds, record=1
                    ).x
                )

            jobs = [job(algorithm) for algorithm in algorithms]
            best_of(1, *jobs)  # compile
            times = best_of(25, *jobs)
            ratios = [spent / times[0] for spent in times[1:]]
            print(
                f"{name:8}{seeds:6}{times[0] / options.rounds * 1e6:12.3f}{ratios[0]:8.2f}{ratios[1]:8.2f}", flush=True
            )
            rows.append({"problem": name, "seeds": seeds, "seconds": times, "rounds": options.rounds})
    write("memory_cost", {"unit": "seconds", "rows": rows})


if __name__ == "__main__":
    main()
