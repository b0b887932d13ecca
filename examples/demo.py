"""The core on one small problem: every algorithm, many seeds, a known optimum.

Three agents keep their own data; a token walks between them and stays where it is 94 % of the time, so samples are far
from independent. Minimise the mean squared distance to the agents' centres, subject to a linear constraint that holds
on average only. The optimum is known in closed form: the mean of the centres, moved onto the line x + y = 1.

    python examples/demo.py [--out FOLDER] [--samples N] [--seeds K]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import jax.numpy as jnp
import matplotlib
import numpy as np

import ergodrift as ed

CENTRES = np.array([[2.0, 1.0], [0.0, 3.0], [1.0, -1.0]], dtype=np.float32)
NOISE = np.array([0.5, -0.25, -0.25], dtype=np.float32)

# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ["#0072B2", "#56B4E9", "#009E73", "#CC79A7", "#E69F00", "#D55E00", "#999999", "#000000"]


def loss(x, xi):
    return jnp.sum((x - xi["centre"]) ** 2) / 2


def constraints(x, xi):
    return jnp.stack([x[0] + x[1] - 1 + xi["noise"], x[0] - 3])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("reproduce-out"))
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    chain = ed.MarkovChain(np.full((3, 3), 0.02) + 0.94 * np.eye(3))
    source = ed.MarkovSource(chain, {"centre": CENTRES, "noise": NOISE})
    problem = ed.Problem(loss, constraints, ed.Ball(4.0))
    reference = ed.solve_reference(problem, source)
    tau, total = chain.mixing_time(), options.samples
    print(f"mixing time {tau}; optimum {reference.x.round(6)}, KKT residual {reference.kkt_residual:.1e}")

    algorithms = [
        ed.edpp(tau),
        ed.edpp(tau, horizon=total),
        ed.dpp(),
        ed.dpp(horizon=total),
        ed.mdpp(),
        ed.adpp(),
        ed.pd(total, gradient_bound=7.0, constraint_bound=7.0),
        ed.pd2(gradient_bound=7.0),
    ]
    samples = np.unique(np.geomspace(100, total, 60).astype(int))
    curves = {}
    print(f"{options.seeds} seeds, {total:,} samples each; mean (standard error) over seeds of the mean point")
    print(f"{'':8}{'Lagrangian gap':>22}{'constraint':>22}{'seconds':>9}")
    for algorithm in algorithms:
        began = time.monotonic()
        result = ed.run(
            algorithm,
            problem,
            source,
            x0=np.zeros(2, np.float32),
            num_samples=total,
            seeds=options.seeds,
            record=samples,
        )
        quality = ed.metrics.evaluate(result, problem, source, reference)
        gap = ed.metrics.summarise(quality.lagrangian_gap)
        over = ed.metrics.summarise(quality.infeasibility[..., 0])
        curves[algorithm.name] = gap
        columns = [f"{s.mean[-1]:+.2e} ({s.standard_error[-1]:.0e})" for s in (gap, over)]
        print(f"{algorithm.name:8}{columns[0]:>22}{columns[1]:>22}{time.monotonic() - began:9.1f}")
    plot(samples, curves, options.out / "demo.png")


def plot(samples, curves, path: Path) -> None:
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for (name, gap), colour in zip(curves.items(), COLOURS, strict=True):
        axes.loglog(samples, gap.mean, color=colour, label=name)
        axes.fill_between(samples, gap.low, gap.high, color=colour, alpha=0.12, linewidth=0)
    axes.set_xlabel("samples")
    axes.set_ylabel("Lagrangian gap of the mean point")
    axes.set_title("Three agents, a slow walk: mean and 10-90 % of seeds")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(ncols=2, frameon=False)
    figure.savefig(path, dpi=160)
    print(f"figure: {path}")


if __name__ == "__main__":
    main()
