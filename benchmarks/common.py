"""What the benchmarks share: the paper's problem, turns taken by competitors, the loop in C, the report."""

from __future__ import annotations

import ctypes
import json
import platform
import subprocess
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

import ergodrift as ed
from ergodrift.problems import fairness, synthetic

OUT = Path("bench-results")
P_MOVE, LIMIT, RADIUS = 0.001, 0.5, 5.0
TAU_MIX = 1 / (3 * P_MOVE)


def setting(points=1000):
    """The problem of the paper's section 5: 3 states of 2 x `points` rows, d = 3, two constraints."""
    problem, data, bounds = fairness(*synthetic(points=points), limit=LIMIT, radius=RADIUS)
    chain = ed.MarkovChain(np.full((3, 3), P_MOVE) + (1 - 3 * P_MOVE) * np.eye(3))
    return problem, ed.MarkovSource(chain, data), bounds


def best_of(turns, *jobs, clock=time.perf_counter):
    """The shortest time of each job. They take turns: machines are noisy, ratios measured side by side less so."""
    times = [[] for _ in jobs]
    for _ in range(turns):
        for job, spent in zip(jobs, times, strict=True):
            began = clock()
            jax.block_until_ready(job())
            spent.append(clock() - began)
    return [min(spent) for spent in times]


def columns(data):
    """(states, d, rows) without the rows of zeros that fill ours up; the paper's states have equally many."""
    return data.features.columns[:, :, : int(data.count[0])]


def aligned(array):
    """A copy that begins at a multiple of 64 bytes: where it begins by chance, C may take longer."""
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class CLoop:
    """EDPP-t in C, built for this machine; with `loss`, it also sums the losses."""

    def __init__(self, data, kind, loss):
        source = Path(__file__).parent / "reference" / "edpp.c"
        self.kind = np.dtype(kind)
        real = {"float32": "float", "float64": "double"}[self.kind.name]
        library = Path(tempfile.mkdtemp()) / "edpp.so"
        flags = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC", f"-DREAL={real}", f"-DLOSS={int(loss)}"]
        subprocess.run(["gcc", *flags, str(source), "-o", str(library), "-lm"], check=True)
        self.function = ctypes.CDLL(str(library)).edpp
        self.real = ctypes.c_float if real == "float" else ctypes.c_double
        self.rows = aligned(columns(data).astype(self.kind))
        self.covariance = np.ascontiguousarray(data.normals[:, 0], self.kind)

    def __call__(self, path):
        """(x, queue, mean of x, sum of losses) after the whole path."""
        path = np.ascontiguousarray(path, np.int32)
        x, queue, mean = np.zeros(3, self.kind), np.zeros(2, self.kind), np.zeros(3, self.kind)
        total = np.zeros(1)
        arrays = [array.ctypes.data_as(ctypes.c_void_p) for array in (self.rows, self.covariance, path)]
        numbers = [ctypes.c_long(len(path)), ctypes.c_int(self.rows.shape[2])]
        parameters = [self.real(value) for value in (LIMIT, RADIUS, TAU_MIX)]
        out = [array.ctypes.data_as(ctypes.c_void_p) for array in (x, queue, mean, total)]
        self.function(*arrays, *numbers, *parameters, *out)
        return x, queue, mean, total[0]


def write(name, report):
    """Write bench-results/NAME.json, with the machine it was measured on."""
    OUT.mkdir(parents=True, exist_ok=True)
    machine = {"processor": _processor(), "python": platform.python_version(), "jax": jax.__version__}
    (OUT / f"{name}.json").write_text(json.dumps({"machine": machine, **report}, indent=1) + "\n")
    print(f"written: {OUT / name}.json\n", flush=True)


def _processor():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
