"""Seeds on a GPU: seed-rounds per second of EDPP-t on the paper's problem, with and without the kernel; correctness.

The floor: a round looks at 2,000 rows, each of which needs an exponential and a reciprocal from the special-function
units (16 per clock and multiprocessor). Prints a table and writes bench-results/gpu.json.

    python benchmarks/gpu.py [--seeds 1 256 4096 32768] [--clock 1.98e9]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import ergodrift as ed
from ergodrift.engine import kernel, loop
from ergodrift.experiments.config import configure
from ergodrift.experiments.reproduce import Experiment, grid
from ergodrift.problems import fairness, synthetic


def setting():
    problem, data, _ = fairness(*synthetic())
    return problem, ed.MarkovSource(ed.MarkovChain(np.full((3, 3), 0.001) + 0.997 * np.eye(3)), data)


def plain(on):
    """Switch the kernel off (or on again)."""
    kernel.suits = (lambda setup, x: False) if on else SUITS
    loop.advance_on.cache_clear()


SUITS = kernel.suits


def rate(seeds, rounds):
    """Seed-rounds per second, compilation apart."""
    problem, source = setting()

    def go():
        result = ed.run(
            ed.edpp(333.3), problem, source, x0=jnp.zeros(3, jnp.float32), num_samples=rounds, seeds=seeds, record=1
        )
        return jax.block_until_ready(result.x)

    go()
    spent = []
    for _ in range(3):
        began = time.perf_counter()
        go()
        spent.append(time.perf_counter() - began)
    return seeds * rounds / min(spent)


def difference():
    """The largest difference between CPU and GPU over 1,000 rounds in float64, all algorithms."""
    worst = {}
    with jax.enable_x64(True):
        problem, source = setting()
        paths = np.asarray(source.paths(4, 1000))
        bounds = fairness(*synthetic())[2]
        for algorithm in [
            ed.edpp(333.3), ed.edpp(333.3, horizon=1000), ed.dpp(), ed.mdpp(), ed.adpp(),
            ed.pd(1000, bounds.loss_grad, bounds.constraints), ed.pd2(bounds.loss_grad), ed.rdpp(), ed.wdpp(),
            ed.edpp("auto"),
        ]:  # fmt: skip
            results = []
            for platform in ("cpu", "gpu"):
                with jax.default_device(jax.devices(platform)[0]):
                    results.append(one_run(algorithm, problem, source, paths))
            pairs = zip(*(jax.tree.leaves((r.x, r.x_mean, r.queue, r.loss_sum)) for r in results), strict=True)
            worst[algorithm.name] = max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)
    return worst


def experiment(seeds):
    """Seconds for the paper's experiment: all algorithms and all metrics, in arrays; no files, no figures."""
    began = time.perf_counter()
    config = configure(seeds=seeds)
    whole = Experiment.prepare(config)
    for algorithm, _ in whole.algorithms().values():
        options = {"num_samples": config.samples, "seeds": whole.path_seeds(), "record": grid(config)}
        x0 = np.zeros(3, np.float32)
        result = ed.run(algorithm, whole.problem, whole.source, x0=x0, paths=whole.paths, **options)
        whole.curves(result)
    return time.perf_counter() - began


def one_run(algorithm, problem, source, paths):
    return ed.run(algorithm, problem, source, x0=np.zeros(3), num_samples=1000, seeds=4, record=100, paths=paths)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 256, 4096, 32768])
    parser.add_argument("--clock", type=float, default=1.98e9, help="of a multiprocessor, Hz")
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    options = parser.parse_args()
    device = jax.devices()[0]
    if device.platform != "gpu":
        raise SystemExit(f"no GPU here, only {device.device_kind}")
    options.out.mkdir(parents=True, exist_ok=True)
    floor = device.core_count * 16 * options.clock / (2 * 2000)
    report = {"device": device.device_kind, "jax": jax.__version__, "roofline": floor, "rows": []}
    print(f"{device.device_kind}: at most {floor / 1e6:.0f} million seed-rounds per second")
    for seeds in options.seeds:
        plain(False)
        fused = rate(seeds, 50_000)
        plain(True)
        bare = rate(seeds, 2_000 if seeds <= 4096 else 10_000)  # a second or so each
        report["rows"].append({"seeds": seeds, "kernel": fused, "plain": bare, "of_roofline": fused / floor})
        line = f"kernel {fused / 1e6:9.2f} M/s ({fused / floor:.0%} of the roofline), plain {bare / 1e6:9.2f} M/s"
        print(f"{seeds:6} seeds: {line}", flush=True)
    plain(False)
    report["difference_to_cpu"] = difference()
    print("float64, 1,000 rounds, largest difference to the CPU:", report["difference_to_cpu"])
    report["experiment"] = {"seeds": 4096, "seconds": experiment(4096)}
    print(f"the paper's experiment with 4,096 seeds: {report['experiment']['seconds']:.1f} s")
    (options.out / "gpu.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
