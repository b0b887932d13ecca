"""
Charging when it is cheap and the street has room
=================================================

Twenty-five households share a transformer, and their cars want 8 kW in the mean. The rule may look at the hour and at
whether its price, which is known a day ahead, is low, usual or high: x is a table, and it decides *after* it has seen.
Overload counts in the mean, and may be 0.6 kW.

Needs ``pip install ergodrift matplotlib pandas`` and ``pip install --no-deps ev2gym``, which has the data.
"""

import matplotlib.pyplot as plt
import numpy as np

import ergodrift as ed
from ergodrift.problems import charging
from ergodrift.problems.electricity import BANDS, charging_columns

# %%
# Eight bands of the day by three levels of the price. Loads go up in the evening, and so do prices: day and night make
# the samples as dependent as can be. The rule is learned from every other week of the year, in twenty passes.
problem, source, reference = charging()
columns, x0 = charging_columns(), np.full((BANDS, 3), 8.0)
learned = np.arange(len(columns["load"])) // 168 % 2 == 0
weeks = ed.SeriesSource({name: column[learned] for name, column in columns.items()}, epochs=20, order="shuffled")
result = ed.run(ed.sdpp(), problem, weeks, x0=x0)
table = result.solution[0]
quality = ed.metrics.evaluate(result, problem, source, reference)
print(f"optimum {reference.value:.1f} euros per MWh x kW, Lagrangian gap {quality.lagrangian_gap[0, -1]:.1f}")

# %%
# The other weeks were not seen. A day is a sample, since hours come in cycles: is the energy charged, up to half a kW,
# and the overload below 1 kW? The means say yes. The certificate knows that a year has one summer, and waits for more.
rest = {name: column[~learned] for name, column in columns.items()}
whole = len(rest["load"]) // 24 * 24
days = ed.SeriesSource({name: column[:whole].reshape(-1, 24, *column.shape[1:]) for name, column in rest.items()})


def limits(xi):
    kw = np.einsum("dhbp,bp->dh", xi["seen"], table)
    return np.stack([7.5 - kw.mean(axis=1), np.maximum(xi["load"] + kw - 75, 0).mean(axis=1) - 1.0], axis=1)


certificate = ed.certify(limits, days)
print(certificate)

# sphinx_gallery_thumbnail_number = 1
hour = np.arange(len(columns["load"])) % 24
charged = (columns["seen"] * table).sum(axis=(1, 2))
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained", width_ratios=[1.1, 1])
shown = left.imshow(table.T, cmap="Greens", vmin=0, vmax=30, aspect="auto", origin="lower")
hours = [f"{3 * b}-{3 * b + 3}" for b in range(BANDS)]
left.set(xticks=range(BANDS), xticklabels=hours, yticks=range(3), yticklabels=["low", "usual", "high"])
left.set(xlabel="hour of the day", ylabel="price", title="the rule: kW to charge")
for b, p in np.ndindex(BANDS, 3):
    left.text(b, p, f"{table[b, p]:.0f}", ha="center", va="center", color="w" if table[b, p] > 18 else "k")
load = np.array([columns["load"][hour == h].mean() for h in range(24)])
extra = np.array([charged[hour == h].mean() for h in range(24)])
high = np.array([np.quantile((columns["load"] + charged)[hour == h], 0.9) for h in range(24)])
right.stackplot(range(24), load, extra, colors=["#bbbbbb", "#009E73"], labels=["households", "cars"], step="mid")
right.step(range(24), high, color="#000000", where="mid", linewidth=1, label="one day in ten has more")
right.axhline(75, color="#D55E00", linestyle="--", label="capacity")
right.set(xlabel="hour", ylabel="mean kW", xlim=(0, 23), ylim=(0, 115))
right.legend(frameon=False, loc="upper left")
plt.show()
