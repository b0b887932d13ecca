"""How time and memory grow with samples, dimension, constraints, states and seeds: fitted exponents.

Each size runs in a process of its own, so that its peak memory can be read. Times are those of a second run, compiled
before; the exponent is the slope of log time against log size over all sizes, and beside it that of the last two, where
fixed costs have faded.

    python benchmarks/growth.py
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np
from common import write

BASE = {"samples": 100_000, "dim": 3, "constraints": 2, "states": 3, "seeds": 1}
SIZES = {
    "samples": [10_000, 100_000, 1_000_000, 10_000_000],
    "dim": [3, 100, 1_000, 10_000, 100_000],
    "constraints": [1, 10, 100],
    "states": [3, 100, 1_000, 10_000],
    "seeds": [1, 8, 64],
}
CHANGES = {"dim": {"samples": 1_000}, "constraints": {"dim": 200, "samples": 20_000}, "seeds": {"samples": 50_000}}


def one(size):
    """Seconds and peak bytes of one run of this size."""
    import ergodrift as ed

    states, dim, count = size["states"], size["dim"], size["constraints"]
    rng = np.random.default_rng(0)
    ring = np.arange(states)
    if states == 3:
        chain = ed.MarkovChain(np.full((3, 3), 0.1) + 0.7 * np.eye(3))
    else:
        import scipy.sparse as sp

        ones = np.ones(states)
        edges = sp.csr_array((ones, (ring, (ring + 1) % states)), shape=(states, states))
        chain = ed.MarkovChain.from_graph(edges + edges.T)
    data = {
        "c": rng.normal(size=(states, dim)).astype(np.float32) / dim**0.5,
        "G": rng.normal(size=(states, count, dim)).astype(np.float32) / dim**0.5,
    }
    problem = ed.Problem(lambda x, xi: ((x - xi["c"]) ** 2).sum() / 2, lambda x, xi: xi["G"] @ x - 0.5, ed.Ball(1.0))
    source = ed.MarkovSource(chain, data)

    def run(samples):
        began = time.perf_counter()
        x0 = np.zeros(dim, np.float32)
        result = ed.run(ed.edpp(5.0), problem, source, x0=x0, num_samples=samples, seeds=size["seeds"], record=10)
        np.asarray(result.solution)
        return time.perf_counter() - began

    run(min(size["samples"], 2_000))
    spent = min(run(size["samples"]) for _ in range(1 if size["samples"] > 10**6 else 3))
    return spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measured(size):
    command = [sys.executable, __file__, "--one", json.dumps(size)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one)))
        return
    report = {}
    for name, sizes in SIZES.items():
        rows = [measured({**BASE, **CHANGES.get(name, {}), name: size}) for size in sizes]
        seconds = np.array([row[0] for row in rows])
        whole, last = (float(np.polyfit(np.log(sizes[-k:]), np.log(seconds[-k:]), 1)[0]) for k in (len(sizes), 2))
        memory = [row[1] for row in rows]
        fits = {"exponent": whole, "last_two": last}
        report[name] = {"sizes": sizes, "seconds": seconds.tolist(), "peak_bytes": memory, **fits}
        print(
            f"{name:12} {sizes}: seconds {[f'{s:.3g}' for s in seconds]}, exponent {whole:.2f} (last two {last:.2f}), "
            f"peak MB {[round(m / 1e6) for m in memory]}",
            flush=True,
        )
    spent, peak = measured({**BASE, "samples": 10**8})
    report["long"] = {"samples": 10**8, "seconds": spent, "peak_bytes": peak}
    print(f"10^8 samples: {spent:.1f} s, {peak / 1e6:.0f} MB")
    write("growth", {"rows": report})


if __name__ == "__main__":
    main()
