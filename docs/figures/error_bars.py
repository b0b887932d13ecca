"""Why i.i.d. error bars lie: fifty records of one law, and for each of them two intervals at 95 %."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from style import BLUE, GREY, RED, save

import ergodrift as ed

RECORDS, ROWS, TAU = 50, 5_000, 50


def record(seed: int) -> np.ndarray:
    """Autoregressive with relaxation time 50 and mean 0."""
    rng = np.random.default_rng(seed)
    keep = 1 - 1 / TAU
    x = np.empty(ROWS)
    x[0] = rng.normal()
    for t in range(1, ROWS):
        x[t] = keep * x[t - 1] + np.sqrt(1 - keep**2) * rng.normal()
    return x


def main() -> None:
    """Draw it."""
    naive, ours = np.empty((2, RECORDS, 2))
    for seed in range(RECORDS):
        x = record(seed)
        half = 1.96 * x.std(ddof=1) / np.sqrt(ROWS)
        naive[seed] = x.mean() - half, x.mean() + half
        certificate = ed.certify(lambda xi: xi[:, None], ed.SeriesSource(x))
        ours[seed] = certificate.lower[0], certificate.upper[0]
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.6), sharey=True, sharex=True)
    titles = ["as if rows were independent", "ergodrift"]
    for axis, ends, colour, title in zip(axes, (naive, ours), (GREY, BLUE), titles, strict=True):
        misses = (ends[:, 0] > 0) | (ends[:, 1] < 0)
        axis.hlines(np.arange(RECORDS), *ends.T, color=np.where(misses, RED, colour), linewidth=2.5)
        axis.axvline(0, color="black", linewidth=1)
        axis.set_title(f"{title}: {misses.sum()} of {RECORDS} miss the truth")
        axis.set(yticks=[], xlabel="interval for the mean, which is 0")
        print(title, misses.sum())
    axes[0].set_ylabel("fifty records of 5,000 rows")
    save(figure, "error_bars")


if __name__ == "__main__":
    main()
