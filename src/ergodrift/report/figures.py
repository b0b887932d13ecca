"""The paper's figures, with bands over seeds, as PNG and SVG. Needs matplotlib (the extra `plots`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ergodrift.experiments.results import Results
from ergodrift.problems import SyntheticData
from ergodrift.report.overlay import overlay

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# One colour and one dash pattern per algorithm, the same as on the page. The colours are Okabe and Ito's, which
# colour-blind readers can tell apart.
STYLES: dict[str, tuple[str, Any]] = {
    "PD": ("#E69F00", (0, (7, 3))),
    "PD2": ("#999999", (0, (2, 3))),
    "DPP-T": ("#56B4E9", (0, (11, 4))),
    "DPP-t": ("#0072B2", (0, (4, 2))),
    "EDPP-T": ("#CC79A7", (0, (9, 3, 2, 3))),
    "EDPP-t": ("#D55E00", "-"),
    "MDPP": ("#009E73", (0, (12, 3, 2, 3, 2, 3))),
    "ADPP": ("#000000", (0, (1, 2))),
}
# The paper's colours of (state, label).
POINT_COLOURS = {
    (0, 1): "purple", (0, -1): "gold", (1, 1): "blue", (1, -1): "orange", (2, 1): "green", (2, -1): "red",
}  # fmt: skip


def draw(results: Results, rows: SyntheticData, folder: Path) -> list[Path]:
    """Write all figures into a folder; returns their paths.

    Args:
        results: the content of `results.json`.
        rows: the data, with X, y and state.
        folder: where to write; it must exist.
    """
    from matplotlib.figure import Figure

    written: list[Path] = []

    def save(figure: Figure, name: str) -> None:
        # In an SVG the resolution is that of the 6,000 data points, which are kept as a picture to stay small.
        figure.savefig(folder / f"{name}.png", dpi=200)
        figure.savefig(folder / f"{name}.svg", dpi=110, metadata={"Date": None})
        written.extend(folder / f"{name}.{suffix}" for suffix in ("png", "svg"))

    def panels(count: int) -> tuple[Figure, Any]:
        figure = Figure(figsize=(5.2 * count, 3.9), layout="constrained")
        return figure, figure.subplots(1, count, squeeze=False)[0]

    figure, (axes,) = panels(1)
    _points(axes, rows)
    save(figure, "data")

    figure, (left, right) = panels(2)
    _curves(left, results, "gap", "optimality gap of x̄")
    _curves(right, results, "gap", "enlarged", zoom=(5_000, 30_000))
    save(figure, "gap")

    figure, (axes,) = panels(1)
    _curves(axes, results, "lagrangian_gap", "Lagrangian gap of x̄", log=True)
    save(figure, "lagrangian_gap")

    for name, label in [("infeasibility", "infeasibility of x̄"), ("violation", "cumulative violation")]:
        figure, both = panels(2)
        for number, axes in enumerate(both):
            _curves(axes, results, f"{name}_{number}", f"constraint {number} {label}")
        save(figure, name)

    figure, (axes,) = panels(1)
    _curves(axes, results, "regret", "regret", leave_out=("PD2", "MDPP"))
    save(figure, "regret")
    return written


def _points(axes: Axes, rows: SyntheticData) -> None:
    for (state, label), colour in POINT_COLOURS.items():
        chosen = (rows.state == state) & (rows.y == label)
        marker = "o" if label > 0 else "x"
        axes.scatter(*rows.X[chosen].T, s=7, marker=marker, linewidths=0.6, alpha=0.5, color=colour, rasterized=True)
        axes.scatter([], [], marker=marker, color=colour, label=f"state {state + 1}, label {label:+d}")
    axes.set_title("data points by (state, label)")
    axes.set_aspect("equal", "datalim")
    axes.legend(fontsize=7, framealpha=0.9)


def _curves(
    axes: Axes, results: Results, metric: str, title: str, *, log: bool = False,
    zoom: tuple[int, int] | None = None,    leave_out: tuple[str, ...] = (),
) -> None:  # fmt: skip
    """Mean and 10-90 % band of every algorithm, with a line at zero where values have signs."""
    samples = np.array(results["samples"])
    window = (samples >= zoom[0]) & (samples <= zoom[1]) if zoom else samples > 0
    for name, found in results["algorithms"].items():
        if name in leave_out:
            continue
        colour, dashes = STYLES[name]
        summary = {kind: np.array(values)[window] for kind, values in found["summary"][metric].items()}
        axes.plot(samples[window], summary["mean"], color=colour, linestyle=dashes, linewidth=1.3, label=name)
        axes.fill_between(samples[window], summary["low"], summary["high"], color=colour, alpha=0.13, linewidth=0)
    if found := overlay(results, metric):
        rate, values = found
        axes.plot(samples[window], values[window], color="0.7", linestyle="--", linewidth=2.4, zorder=0,
                  label=f"{rate.theorem}: rate only")  # fmt: skip
    if log:
        axes.set(xscale="log", yscale="log")
    else:
        axes.axhline(0, color="0.4", linewidth=0.8)
        axes.set_ylim(*_limits(results, metric, window & (samples >= samples[-1] / 100), leave_out))
    axes.set_title(title)
    axes.set_xlabel("samples")
    axes.grid(visible=True, alpha=0.25)
    axes.legend(fontsize=7, ncols=2, framealpha=0.85, handlelength=3.4)


def _limits(results: Results, metric: str, window: np.ndarray, leave_out: tuple[str, ...]) -> tuple[float, float]:
    """Vertical limits that hold all bands but those of the first hundredth, which would dwarf the rest."""
    shown = [found["summary"][metric] for name, found in results["algorithms"].items() if name not in leave_out]
    low = min(0.0, *(np.array(summary["low"])[window].min(initial=0.0) for summary in shown))
    high = max(0.0, *(np.array(summary["high"])[window].max(initial=0.0) for summary in shown))
    margin = 0.06 * (high - low) or 1.0
    return low - margin, high + margin
