"""The whole experiment, all eight algorithms and 20 seeds from a cold start, against numba on one core.

The numba loop is timed on part of the work and scaled up: its time is proportional to the rounds. It sums the losses,
as regret needs them (its time without them is given too), and does none of the rest: no records, no metrics, no files.

    python benchmarks/experiment.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

import numpy as np
from common import best_of, setting, write
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
    rows = {"ergodrift reproduce, everything": ours}
    path = np.asarray(source.paths(1, PART))[0]
    for name, losses in {"numba, one core": True, "numba, one core, no losses": False}.items():
        loop = optional(numba_loop, source.data, np.float32, losses)
        if loop is not None:
            loop(path[:5])
            rows[name] = best_of(3, lambda loop=loop: loop(path))[0] / PART * config.samples * config.seeds * 8
    for name, seconds in rows.items():
        print(f"{name:35}{seconds:8.1f} s{seconds / ours:8.1f}x")
    write("experiment", {"unit": "seconds", "rows": rows})


if __name__ == "__main__":
    main()
