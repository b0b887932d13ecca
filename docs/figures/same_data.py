"""The figure of the README: thirty records, each answered as if its hours were independent, and by ergodrift.

A town buys x MW for every hour, as little as it can, and may be short of 2 MW on average. It learns x from 20,000 hours
and asks 20,000 later ones whether the limit is kept. Demand is made up, so that the truth is known.
"""

from __future__ import annotations

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm
from style import BLUE, GREY, RED, SKY, save

import ergodrift as ed

RECORDS, HOURS, LIMIT = 30, 20_000, 2.0
KEEP, SPREAD = 0.99, 18.0
CYCLE = 60 + 10 * np.sin(np.arange(24) * 2 * np.pi / 24)


def demand(seed: int) -> np.ndarray:
    """A level that lasts for about four days, on a cycle of 24 hours."""
    noise = np.random.default_rng(seed).normal(size=2 * HOURS)
    level = np.empty(2 * HOURS)
    level[0] = noise[0]
    for t in range(1, len(level)):
        level[t] = KEEP * level[t - 1] + np.sqrt(1 - KEEP**2) * noise[t]
    return SPREAD * level + np.resize(CYCLE, len(level))


def truth(x: float) -> float:
    """E[demand - x]_+, in closed form."""
    z = (x - CYCLE) / SPREAD
    return float(np.mean(SPREAD * (norm.pdf(z) - z * norm.sf(z))))


def main() -> None:
    """Draw it."""
    problem = ed.Problem(
        lambda x, xi: x[0], lambda x, xi: jnp.maximum(xi - x, 0.0) - LIMIT, ed.Box(np.zeros(1), np.full(1, 150.0))
    )
    bought, naive, ours = np.empty(RECORDS), np.empty((RECORDS, 2)), np.empty((RECORDS, 2))
    for k in range(RECORDS):
        seen, later = np.split(demand(k), 2)
        source, x0 = ed.SeriesSource(seen), np.array([60.0])
        result = ed.run(ed.auto(problem, source, x0), problem, source, x0=x0)
        bought[k] = result.solution[0, 0]
        short = np.maximum(later - bought[k], 0.0)
        naive[k] = short.mean() + norm.interval(0.95)[1] * short.std() / np.sqrt(HOURS) * np.array([-1, 1])
        certificate = result.certify(ed.SeriesSource(later))
        ours[k] = LIMIT + np.array([certificate.lower[0], certificate.upper[0]])

    true = np.array([truth(x) for x in bought])
    order = np.argsort(true)
    figure, (left, *right) = plt.subplots(1, 3, figsize=(9.5, 3.9), width_ratios=[1.5, 1, 1])
    left.plot(np.arange(HOURS) / 24, demand(0)[HOURS:], color=SKY, linewidth=0.4)
    left.axhline(bought[0], color=BLUE, linewidth=2)
    left.annotate(f"bought: {bought[0]:.0f} MW", (20, bought[0] + 2), color=BLUE, weight="bold")
    left.set(xlabel="days", ylabel="MW", xlim=(0, 200))
    left.set_title("Demand: four days in a row are alike")
    for axis, ends, name in zip(right, (naive, ours), ("as if independent", "ergodrift"), strict=True):
        sure = (ends[:, 0] > LIMIT) | (ends[:, 1] < LIMIT)
        wrong = sure & ((ends.mean(axis=1) > LIMIT) != (true > LIMIT))
        colours = np.select([wrong, sure], [RED, BLUE], GREY)[order]
        axis.hlines(np.arange(RECORDS), *ends[order].T, color=colours, linewidth=3)
        axis.plot(true[order], np.arange(RECORDS), "|", color="black", markersize=5)
        axis.axvline(LIMIT, color="black", linestyle="--", linewidth=1)
        axis.set(yticks=[], xlim=(0, 5), xlabel="MW short on average, 95 %")
        misses = (ends[:, 0] > true) | (ends[:, 1] < true)
        counts = f"{misses.sum()} of {RECORDS} miss the truth\n{wrong.sum()} are sure and wrong"
        axis.set_title(f"{name}:\n{counts}", loc="left", fontsize="medium")
        print(f"{name}: sure {sure.sum()}, wrong {wrong.sum()}, misses {misses.sum()}")
    save(figure, "same_data")


if __name__ == "__main__":
    main()
