"""The slopes study as a picture. Needs matplotlib (the extra `plots`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ergodrift.experiments.theory import Fit, SlopesStudy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#56B4E9", "#D55E00", "#E69F00", "#009E73")  # Okabe and Ito's, as in the other figures
MARKERS = "os^vD"


def draw_slopes(study: SlopesStudy, folder: Path) -> list[Path]:
    """Write slopes.png and slopes.svg: sizes of the means with two standard errors, and the predicted slopes (dashed).

    Hollow marks are negative means, which are below any bound; they have no dashed line.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 11.5), layout="constrained")
    panels = figure.subplots(2, 2)
    samples = np.array(study["samples"], dtype=float)
    for row, quantity in enumerate(("gap", "infeasibility")):
        left, right = panels[row]
        for (name, curve), colour, marker in zip(study["curves"].items(), COLOURS, MARKERS, strict=False):
            entry, taus = curve[quantity], np.array(curve["tau_mix"])
            mean, error = np.array(entry["mean"]), np.array(entry["error"])
            middle = len(taus) // 2
            _line(left, samples, mean[middle], error[middle], entry["in_T"][middle], colour, marker, name)
            _line(right, taus, mean[:, -1], error[:, -1], entry["in_tau"], colour, marker, name)
            left.set_title(f"{quantity} of x̄ in T, at τ_mix = {taus[middle]:.0f}")
        right.set_title(f"{quantity} of x̄ in τ_mix, at T = {samples[-1]:,.0f}")
        left.set_xlabel("samples T")
        right.set_xlabel("mixing time τ_mix")
        for axes in (left, right):
            axes.set(xscale="log", yscale="log", ylabel=f"|mean of the {quantity}| over {study['seeds']} seeds")
            axes.grid(visible=True, which="major", alpha=0.25)
            axes.legend(
                fontsize=7, title="fitted slope ± s.e. (predicted at most)", title_fontsize=7, loc="upper center",
                bbox_to_anchor=(0.5, -0.13),
            )  # fmt: skip
    written = [folder / f"slopes.{suffix}" for suffix in ("png", "svg")]
    for path in written:
        figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)
    return written


def _line(
    axes: Axes, x: np.ndarray, mean: np.ndarray, error: np.ndarray, fit: Fit, colour: str, marker: str,
    name: str,
) -> None:  # fmt: skip
    size, positive = np.abs(mean), mean > 0
    shown = size > 2 * error  # the rest is noise around 0, which a logarithm would spread over the whole panel
    if fit["slope"] is None:
        words = "too few points clear of 0"
    else:
        words = f"{fit['slope']:+.2f} ± {fit['error']:.2f} "
        words += "(negative: below any bound)" if fit["sign"] < 0 else f"({fit['predicted']:+.2f})"
    axes.plot(x[shown], size[shown], color=colour, linewidth=1.0, alpha=0.6)
    for sign, face in [(positive, colour), (~positive, "white")]:
        at = shown & sign
        axes.errorbar(x[at], size[at], yerr=2 * error[at], color=colour, marker=marker, markersize=5, linestyle="none",
                      markerfacecolor=face, elinewidth=0.8)  # fmt: skip
    face = "white" if fit["sign"] < 0 else colour
    axes.plot([], [], color=colour, marker=marker, markersize=5, markerfacecolor=face, label=f"{name}: {words}")
    if fit["slope"] is not None and fit["sign"] > 0:
        used = shown & positive
        middle, height = np.exp(np.log(x[used]).mean()), np.exp(np.log(size[used]).mean())
        axes.plot(x[used], height * (x[used] / middle) ** fit["predicted"], color=colour, linestyle="--", linewidth=0.9)
