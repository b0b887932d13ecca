"""Tokens walk over agents in processes of their own, one of which is killed on the way: the network, and the gap.

Twelve agents at random places keep rows of their own; those near each other are neighbours. EDPP and RDPP walk over the
same agents, on the same paths. In the middle of the second walk an agent's process is killed with SIGKILL: Ray
restarts it, it is asked again, and the walk ends where it would have ended.

    python examples/walk.py [--out FOLDER] [--samples N] [--tokens K]

Needs Ray: pip install 'ergodrift[ray]'.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

import matplotlib
import numpy as np

import ergodrift as ed
from ergodrift.distributed import Network, Walk, walk
from ergodrift.experiments.network import Demo, DemoConfig

BLUE, ORANGE = "#0072B2", "#D55E00"  # of Okabe and Ito, which colour-blind readers can tell apart


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("walk-out"))
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=8)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    config = DemoConfig(graph="geometric", agents=12, samples=options.samples, tokens=options.tokens)
    curves: dict[str, tuple[np.ndarray, ed.metrics.Summary]] = {}
    with Network(Demo.prepare(config).agents()) as network:
        for algorithm in ("edpp", "rdpp"):
            demo = Demo.prepare(dataclasses.replace(config, algorithm=algorithm))
            if algorithm == "rdpp":
                victim = network.processes()[3]
                threading.Timer(1.0, os.kill, (victim, signal.SIGKILL)).start()
            found = walk(*(demo.algorithm(), demo.problem, demo.chain, network), tokens=config.seeds, **demo.options())
            print(found)
            difference = np.abs(np.asarray(found.result.x) - np.asarray(demo.run().x)).max()
            print(f"restarts: {found.restarts.sum()}; largest difference from ed.run: {difference:.1e}\n")
            quality = ed.metrics.evaluate(found.result, demo.problem, demo.source, demo.reference)
            curves[found.result.name] = (np.asarray(found.result.samples), ed.metrics.summarise(quality.lagrangian_gap))
    plot(demo, found, curves, options.out / "walk.png")


def plot(demo: Demo, found: Walk, curves: Mapping[str, tuple[np.ndarray, ed.metrics.Summary]], path: Path) -> None:
    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib.patheffects import withStroke

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
    places, joined = demo.places, np.argwhere(np.triu(demo.chain.P, 1) > 0)
    left.plot(*places[joined].transpose(2, 1, 0), color="#999999", linewidth=1, zorder=1)
    colours = [ORANGE if restarts else BLUE for restarts in found.restarts]
    left.scatter(*places.T, s=250 * found.visits / found.visits.max(), color=colours, edgecolor="white", zorder=2)
    for visits, restarts, place in zip(found.visits, found.restarts, places, strict=True):
        label = left.annotate(
            f"{visits:,}" + ", killed" * bool(restarts),
            place,
            (0, -18),
            textcoords="offset points",
            ha="center",
            size=8,
        )
        label.set_path_effects([withStroke(linewidth=3, foreground="white")])
    left.set(title="Visits of the agents", xticks=[], yticks=[], aspect="equal")
    left.margins(0.15)
    left.spines[:].set_visible(False)
    for (name, (samples, gap)), colour in zip(curves.items(), (BLUE, ORANGE), strict=True):
        right.loglog(samples, gap.mean, color=colour, label=name)
        right.fill_between(samples, gap.low, gap.high, color=colour, alpha=0.12, linewidth=0)
    right.set(xlabel="samples of each token", ylabel="Lagrangian gap of the mean point")
    right.set_title("Mean and 10-90 % of tokens")
    right.grid(visible=True, which="major", alpha=0.3)
    right.legend(frameon=False)
    figure.savefig(path, dpi=160)
    print(f"figure: {path}")


if __name__ == "__main__":
    main()
