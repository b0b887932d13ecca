"""What mixing does to you: three records with the same law and as many rows, which know very different amounts."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from style import BLUE, GREY, RED, save

ROWS = 5_000


def record(tau: float, seed: int) -> np.ndarray:
    """Autoregressive, standard normal at every time, correlated for about tau rows."""
    rng = np.random.default_rng(seed)
    keep = 1 - 1 / tau
    x = np.empty(ROWS)
    x[0] = rng.normal()
    for t in range(1, ROWS):
        x[t] = keep * x[t - 1] + np.sqrt(1 - keep**2) * rng.normal()
    return x


def main() -> None:
    """Draw it."""
    figure, rows = plt.subplots(3, 2, figsize=(9.5, 5.4), width_ratios=[3.2, 1], sharex="col")
    for (left, right), tau in zip(rows, (1, 30, 300), strict=True):
        x = record(tau, seed=3)
        worth = ROWS / max(2 * tau - 1, 1)
        left.plot(x, ".", color=GREY, markersize=1.2)
        left.plot(np.cumsum(x) / np.arange(1, ROWS + 1), color=BLUE, linewidth=2, label="average so far")
        left.axhline(0, color=RED, linestyle="--", linewidth=1.2, label="truth")
        left.set_title(f"relaxation time {tau}: {ROWS:,} rows are worth {worth:,.0f}")
        left.set(ylim=(-3.5, 3.5), xlim=(0, ROWS))
        means = np.array([record(tau, seed).mean() for seed in range(40)])
        right.plot(np.random.default_rng(0).uniform(-1, 1, 40), means, "o", color=BLUE, markersize=3)
        right.axhline(0, color=RED, linestyle="--", linewidth=1.2)
        right.set(xlim=(-2, 2), xticks=[], ylim=(-1.4, 1.4))
        if tau == 1:
            left.legend(loc="upper right", ncols=2, fontsize=8)
            right.set_title("averages of 40 records")
    rows[-1, 0].set_xlabel("rows")
    save(figure, "mixing")


if __name__ == "__main__":
    main()
