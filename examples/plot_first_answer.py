"""
A first answer
==============

A small town buys power a year ahead: x MW for every hour. It wants to buy little, and may on average be short of
2 MW an hour at most. The hours of one winter night are alike, so 20,000 hours tell less than they seem to.

Needs nothing but ``pip install ergodrift matplotlib``.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import ergodrift as ed

# %%
# The record: demand by the hour, which stays high or low for about four days at a time.
rng = np.random.default_rng(7)
mood = np.zeros(40_000)
for t in range(1, len(mood)):
    mood[t] = 0.99 * mood[t - 1] + rng.normal()
demand = 60 + 2.5 * mood + 10 * np.sin(np.arange(len(mood)) * 2 * np.pi / 24)
first, second = ed.SeriesSource(demand[:20_000]), ed.SeriesSource(demand[20_000:])

# %%
# The problem: two functions of the decision and of one sample, and where the decision may lie. The constraint has to
# hold on average.
problem = ed.Problem(
    loss=lambda x, xi: x[0],
    constraints=lambda x, xi: jnp.maximum(xi - x, 0.0) - 2.0,
    geometry=ed.Box(np.zeros(1), np.full(1, 150.0)),
)

# %%
# The answer. ``auto`` looks at the data and chooses; nothing is to be tuned. An independent solver says what the best
# number for this record would have been.
x0 = np.array([60.0])
algorithm = ed.auto(problem, first, x0)
print(algorithm.reason)
result = ed.run(algorithm, problem, first, x0=x0)
best = ed.solve_reference(problem, first, x0)
bought = result.solution[0]
print(f"bought {bought[0]:.1f} MW, the best in hindsight is {best.x[0]:.1f} MW")

# %%
# Does it hold on hours that the run has not seen? Bars for independent hours are sure of themselves; those that count
# how long hours stay alike are not.
certificate = result.certify(second)
print(certificate)
short = np.maximum(demand[20_000:] - bought, 0.0) - 2.0
naive = short.mean() + 1.96 * short.std() / np.sqrt(len(short)) * np.array([-1, 1])

# sphinx_gallery_thumbnail_number = 1
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", width_ratios=[2, 1])
left.plot(np.arange(2_000) / 24, demand[20_000:22_000], color="#56B4E9", linewidth=0.8, label="demand")
left.axhline(bought[0], color="#D55E00", label=f"bought: {bought[0]:.0f} MW")
left.set(xlabel="days of the second record", ylabel="MW")
left.legend(frameon=False)
ends = [naive, (certificate.lower[0], certificate.upper[0])]
right.vlines([0, 1], *np.transpose(ends), color=["#999999", "#0072B2"], linewidth=8)
right.axhline(0, color="#D55E00", linestyle="--")
right.set(xticks=[0, 1], xticklabels=["as if\nindependent", "ergodrift"], xlim=(-0.6, 1.6))
right.set_ylabel("short beyond 2 MW, 95 % interval")
plt.show()
