"""Cold start: import time against JAX's own, time to a first result, and what the compilation cache saves.

python benchmarks/cold_start.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

from common import write

FIRST = """
import numpy as np, ergodrift as ed
source = ed.IIDSource(np.ones((4, 2), np.float32))
problem = ed.Problem(lambda x, xi: ((x - xi) ** 2).sum(), lambda x, xi: x - 0.5, ed.Ball(2.0))
print(ed.run(ed.edpp(4), problem, source, x0=np.zeros(2, np.float32), num_samples=1000).solution)
"""


def seconds(code, environment=None, turns=5):
    """The shortest of several fresh processes."""
    best = float("inf")
    for _ in range(turns):
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
        )
        best = min(best, time.perf_counter() - began)
    return best


def main() -> None:
    rows = {"import jax": seconds("import jax"), "import ergodrift": seconds("import ergodrift; ergodrift.run")}
    rows["first result of a small run"] = seconds(FIRST)
    with tempfile.TemporaryDirectory() as folder:
        cache = {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        seconds(FIRST, cache, turns=1)
        rows["the same, compiled before"] = seconds(FIRST, cache)
    print("seconds of a fresh process")
    for name, value in rows.items():
        print(f"  {name:32}{value:8.2f}")
    ratio = rows["import ergodrift"] / rows["import jax"]
    print(f"  import ergodrift / import jax   {ratio:8.2f}x")
    write("cold_start", {"unit": "seconds", "rows": rows, "import_ratio": ratio})


if __name__ == "__main__":
    main()
