"""
Power against delay
===================

A transmitter serves two queues under a sky that changes. It wants to spend little power and yet send all that arrives:
the problem drift-plus-penalty was invented for (Neely, *Stochastic Network Optimization*, 2010). The queues of the
algorithm are then no bookkeeping device. They are the packets that wait.

Needs ``pip install ergodrift matplotlib``.
"""

import matplotlib.pyplot as plt
import numpy as np

import ergodrift as ed
from ergodrift.problems import scheduling, water_filling
from ergodrift.problems.scheduling import ACTIONS, SKIES, WATTS, arrivals, service

# %%
# x is a random policy: for each of three skies, the probability of each of five actions. Arrivals come in calm times
# of 500 slots and in busy ones of 170. A linear program knows the least power, if one could wait for ever.
problem, source, reference = scheduling()
print(f"least mean power {reference.value:.4f} W")

# %%
# V says how much power counts against waiting: the larger, the less power and the longer the queues. DPP with a
# horizon T has V = sqrt(T), and a new V is a new number, never a new compilation.
slots, x0 = 6_000, {sky: np.full(len(ACTIONS), 1 / len(ACTIONS)) for sky in SKIES}
horizons = [30, 300, 3_000, 30_000]
runs = {
    h: ed.run(ed.dpp(h), problem, source, x0=x0, num_samples=slots, record=np.arange(1, slots + 1)) for h in horizons
}
path = {name: np.asarray(leaf[0]) for name, leaf in source.paths([0], slots).items()}

# %%
# Now the packets themselves: in every slot an action is drawn from the policy of that slot, and so many leave.
rng, sent = np.random.default_rng(1), service()


def waiting(result):
    """Real queues (slots, 2) and the power of each slot."""
    table = np.stack([np.concatenate([x0[sky][None], result.x[sky][0, :-1]]) for sky in SKIES], axis=1)
    sky, queue = path["sky"].argmax(axis=1), np.zeros((slots + 1, 2))
    chances = table[np.arange(slots), sky]
    action = (rng.random(slots)[:, None] > np.cumsum(chances, axis=1)).sum(axis=1).clip(0, len(ACTIONS) - 1)
    for t in range(slots):
        queue[t + 1] = np.maximum(queue[t] - sent[sky[t], action[t]], 0) + path["arrivals"][t]
    return queue[1:], WATTS[action]


real = {h: waiting(result) for h, result in runs.items()}
power = [real[h][1].mean() for h in horizons]
delay = [real[h][0].sum(axis=1).mean() / arrivals().sum() for h in horizons]  # Little's law

# %%
# Is the policy that the longest run recommends stable? A certificate on a fresh path answers for the stationary law.
certificate = runs[30_000].certify(num_samples=200_000)
print(certificate)

# sphinx_gallery_thumbnail_number = 1
figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained", width_ratios=[1.6, 1])
shown, chosen = 3_000, 3_000
left.plot(real[chosen][0].sum(axis=1)[:shown], color="#56B4E9", linewidth=1.2, label="packets that wait")
left.plot(runs[chosen].queue[0].sum(axis=1)[:shown], color="#D55E00", linewidth=1.5, label="virtual queues")
left.set(xlabel="slot", ylabel="both queues together", title=f"V = {np.sqrt(chosen):.0f}")
left.legend(frameon=False)
right.plot(delay, power, color="#0072B2", marker="o")
for h, x, y in zip(horizons, delay, power, strict=True):
    right.annotate(f"V = {np.sqrt(h):.0f}", (x, y), xytext=(6, 5), textcoords="offset points")
right.axhline(reference.value, color="#999999", linestyle="--")
right.text(max(delay), reference.value + 0.01, "least power", ha="right", color="#666666")
right.set(xlabel="mean delay, slots", ylabel="mean power, W", xscale="log", title="Power against delay")
right.set_xticks([50, 100, 200, 400], ["50", "100", "200", "400"])
right.minorticks_off()
right.margins(0.15)
plt.show()

# %%
# **A domain without a bound.** Where each queue has a channel of its own, any power is allowed, and X is not compact.
# The problem has a bound all the same: a policy that is known to be feasible spends P watts, and whoever spends more
# than that somewhere cannot be better. The box up to there leaves nothing out, and the optimum is far inside.
problem, source, reference = water_filling()
bound = problem.geometry.project(np.full((3, 2), 1e9)).max()
print(f"bound {bound:.1f} W, largest power of the optimum {reference.x.max():.2f} W")
print(dict(zip(SKIES, reference.x.round(3).tolist(), strict=True)))
