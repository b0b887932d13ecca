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
BARE = """
import os, jax
jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)
from ergodrift.experiments.config import Config
from ergodrift.experiments.reproduce import reproduce
reproduce(Config())
"""


def seconds(*arguments):
    """How long a fresh Python process takes, compilation included."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    config = Config()
    with tempfile.TemporaryDirectory() as folder:
        rows = {
            "ergodrift, runs and metrics": seconds("-c", BARE),
            "ergodrift reproduce, figures and page too": seconds("-m", "ergodrift.cli", "reproduce", "--out", folder),
        }
    _, source, _ = setting()
    path = np.asarray(source.paths(1, PART))[0]
    for name, losses in {"numba, one core": True, "numba, one core, no losses": False}.items():
        loop = optional(numba_loop, source.data, np.float32, losses)
        if loop is not None:
            loop(path[:5])
            rows[name] = best_of(3, lambda loop=loop: loop(path))[0] / PART * config.samples * config.seeds * 8
    ours = rows["ergodrift, runs and metrics"]
    for name, spent in rows.items():
        print(f"{name:45}{spent:8.1f} s{spent / ours:8.1f}x")
    write("experiment", {"unit": "seconds", "rows": rows})


if __name__ == "__main__":
    main()
