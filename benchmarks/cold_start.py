"""Cold start: import time against JAX's own, time to a first result by algorithm, and what the compilation cache saves.

python benchmarks/cold_start.py

Times are those of the processor, so that others on the machine do not count: a fresh process on an idle core waits for
nothing else.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile

from common import write

FIRST = """
import json, sys, time
import jax, numpy as np, ergodrift as ed
from ergodrift import run
algorithm = eval(sys.argv[1])
programs = 0
def listen(event, seconds, **told):
    global programs
    if event.endswith("backend_compile_duration"):
        programs += 1
jax.monitoring.register_event_duration_secs_listener(listen)
source = ed.IIDSource(np.ones((4, 2), np.float32))
problem = ed.Problem(lambda x, xi: ((x - xi) ** 2).sum(), lambda x, xi: x - 0.5, ed.Ball(2.0))
began = time.process_time()
result = ed.run(algorithm, problem, source, x0=np.zeros(2, np.float32), num_samples=1000)
jax.block_until_ready(result.solution)
print(json.dumps([time.process_time() - began, programs]))
"""
ALGORITHMS = {
    "EDPP-t": "ed.edpp(4)",
    "EDPP-auto": "ed.edpp('auto')",
    "DPP-t": "ed.dpp()",
    "MDPP": "ed.mdpp()",
    "ADPP": "ed.adpp()",
    "PD": "ed.pd(1000, gradient_bound=5, constraint_bound=3)",
    "PD2": "ed.pd2(5)",
    "RDPP": "ed.rdpp()",
    "WDPP": "ed.wdpp()",
    "SDPP": "ed.sdpp()",
    "SRDPP": "ed.srdpp()",
    "Sinha and Vaze": "ed.sinha_vaze(1000, gradient_bound=5)",
    "Yu, Lee and Lee": "ed.yu_lee_lee(5, 3, gamma_scale=20, regularizer_scale=0.1)",
    "switching": "ed.switching(0.25, tolerance=25.0, batch=1, horizon=1000)",
    "augmented Lagrangian": "ed.augmented_lagrangian(1000, step=0.25)",
}
TURNS = 2


def importing(code):
    """Processor seconds of a fresh process; the best of several."""
    best = float("inf")
    for _ in range(TURNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best


def first(algorithm, turns=TURNS, environment=None):
    """(processor seconds after the import, programs compiled) up to the first result."""
    command = [sys.executable, "-c", FIRST, algorithm]
    full = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")} | (environment or {})
    done = [subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=full) for _ in range(turns)]
    return min(json.loads(one.stdout) for one in done)


def main() -> None:
    rows = {"import jax": importing("import jax"), "import ergodrift": importing("import ergodrift; ergodrift.run")}
    table = {}
    print("processor seconds up to the first result, after the import; programs; with the cache")
    for name, algorithm in ALGORITHMS.items():
        seconds, programs = first(algorithm)
        with tempfile.TemporaryDirectory() as folder:
            cache = {
                "JAX_COMPILATION_CACHE_DIR": folder,
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            }
            first(algorithm, 1, cache)
            again, _ = first(algorithm, environment=cache)
        table[name] = {"cold": seconds, "programs": programs, "cached": again}
        print(f"  {name:24}{seconds:8.2f}{programs:6}{again:8.2f}", flush=True)
    for name, value in rows.items():
        print(f"  {name:24}{value:8.2f}")
    write("cold_start", {"unit": "processor seconds", "rows": rows, "algorithms": table})


if __name__ == "__main__":
    main()
