"""How the figures of the pages look: colours that colour-blind readers can tell apart, few lines."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

BLUE, SKY, GREEN, ORANGE, RED, GREY = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#8c8c8c"

mpl.use("agg")
mpl.rcParams |= {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "ergodrift",  # the same figure is the same file
}


def save(figure: Figure, name: str) -> None:
    """Beside this script, as SVG."""
    path = Path(__file__).with_name(f"{name}.svg")
    figure.savefig(path, metadata={"Date": None}, facecolor="white")
    print(f"written: {path}")
