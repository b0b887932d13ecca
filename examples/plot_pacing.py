"""
Budgets that last the day
=========================

Three advertisers share a place on a page. What a click is worth to them follows the hours, and the day comes once: no
law, nothing to estimate beforehand. What a place costs follows the crowd of other bidders. Each has a budget for the
day.

Needs ``pip install ergodrift matplotlib``.
"""

import matplotlib.pyplot as plt
import numpy as np

import ergodrift as ed
from ergodrift.problems import pacing
from ergodrift.problems.ads import ADVERTISERS, BUDGETS, PRICES

# %%
# Losses are arbitrary, constraints are stochastic: ``source`` is a ``Zip`` of a series and a chain. x is a law over the
# three and nobody. The reference is the best fixed law in hindsight. A margin keeps a little of every budget back.
auctions = 20_000
problem, source, reference = pacing(auctions)
x0 = np.full(4, 0.25)
every = np.arange(1, auctions + 1)
result = ed.run(ed.sdpp(), problem, source, x0=x0, num_samples=auctions, record=every, margin=0.008)
shown = np.concatenate([x0[None], result.x[0, :-1]])[:, :3]  # x_t, chosen before auction t is seen
rows, crowd = (np.asarray(path[0]) for path in source.paths([0], auctions))
values, prices = np.asarray(source.losses.loss_law.points)[rows], PRICES[crowd]

# %%
# Who pays no attention to budgets shows whoever values the place most, until the money has gone.
greedy, left = np.zeros((auctions, 3)), BUDGETS * auctions
for t in range(auctions):
    funded = left >= prices[t]
    if funded.any():
        best = np.argmax(np.where(funded, values[t], -1))
        greedy[t, best] = 1
        left[best] -= prices[t, best]

fixed = np.tile(reference.x[:3], (auctions, 1))
print(f"{'':18}{'worth':>8}   spent of the budgets")
for name, choice in [("paced", shown), ("first come", greedy), ("best fixed law", fixed)]:
    used = (choice * prices).sum(axis=0) / (BUDGETS * auctions)
    print(f"{name:18}{(choice * values).sum():8.0f}   " + "  ".join(f"{u:.0%}" for u in used))

# %%
# Would the mean law keep the budgets for ever? The certificate is about prices alone, on a fresh path of the crowd: it
# asks for no law of the values, and there is none.
law = result.solution[0][:3]
certificate = ed.certify(lambda xi: xi * law - BUDGETS, source.constraints, num_samples=100_000)
print(certificate)

# sphinx_gallery_thumbnail_number = 1
hour = 24 * np.arange(auctions) / auctions
figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained", sharey=True)
for i, (name, panel) in enumerate(zip(ADVERTISERS, axes, strict=True)):
    for choice, colour, label in [(greedy, "#999999", "first come"), (shown, "#0072B2", "paced")]:
        panel.plot(hour, np.cumsum(choice[:, i] * prices[:, i]) / (BUDGETS[i] * auctions), color=colour, label=label)
    worth = values[:, i].reshape(100, -1).mean(axis=1)
    panel.fill_between(hour[:: auctions // 100], 0.35 * worth / values.mean(axis=0).max(), color="#E69F00", alpha=0.3,
                       label="worth of a click")  # fmt: skip
    panel.axhline(1, color="#D55E00", linestyle="--")
    panel.set(title=name, xlabel="hour", xticks=[0, 6, 12, 18, 24])
axes[0].set_ylabel("share of the budget spent")
axes[0].legend(frameon=False, loc="upper left", bbox_to_anchor=(0, 0.95))
plt.show()
