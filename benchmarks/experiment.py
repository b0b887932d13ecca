"""The whole experiment, all eight algorithms and 20 seeds from a cold start, against numba on one core.

The numba loop is timed on part of the work and scaled up: its time is proportional to the rounds. It does less: EDPP-t
only, no records, no losses, no metrics.

    python benchmarks/experiment.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

import numpy as np
from common import setting, write
from one_seed import numba_loop, optional

from ergodrift.experiments.config import Config

PART = 4_000


def main() -> None:
    config = Config()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "ergodrift.cli", "reproduce", "--out", f"{folder}/out"]
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ours = time.perf_counter() - began
    _, source, _ = setting()
    loop = optional(numba_loop, source.data, np.float32)
    rows = {"ergodrift": ours}
    print(f"ergodrift reproduce, everything: {ours:.1f} s")
    if loop is not None:
        path = np.asarray(source.paths(1, PART))[0]
        loop(path[:5])
        began = time.perf_counter()
        loop(path)
        rows["numba, one core"] = (time.perf_counter() - began) / PART * config.samples * config.seeds * 8
        numba = rows["numba, one core"]
        print(f"numba on one core, loops alone, scaled up: {numba:.0f} s, {numba / ours:.1f} times as long")
    write("experiment", {"unit": "seconds", "rows": rows})


if __name__ == "__main__":
    main()
