"""
As good as can be where it is worst
===================================

A forecast of tomorrow's price of electricity that is best on average is poor every Monday, whose yesterday was a
Sunday. Ask for the smallest *largest* error over Mondays, other working days, Saturdays and Sundays instead: the errors
of the four regimes become constraints.

Needs ``pip install ergodrift matplotlib pandas`` and ``pip install --no-deps ev2gym``, which has the prices.
"""

import matplotlib.pyplot as plt
import numpy as np

import ergodrift as ed
from ergodrift.problems import worst_regime
from ergodrift.problems.regimes import EUROS, REGIMES, price_columns

# %%
# x = (w, t): w weighs the time of day and the prices of one day, two days and a week before; t bounds the mean squared
# error of every regime and is minimised. Hours from 2015 to 2018, in their order.
problem, source, reference = worst_regime()
x0 = {"w": np.zeros(6), "t": np.full(1, 25.0)}
result = ed.run(ed.auto(problem, source, x0), problem, source, x0=x0)
quality = ed.metrics.evaluate(result, problem, source, reference)
print(
    f"largest error at the optimum {reference.value:.3f}, Lagrangian gap of the run {quality.lagrangian_gap[0, -1]:.3f}"
)

train, later = price_columns()
average = np.linalg.lstsq(train["a"], train["y"], rcond=None)[0]
robust = result.solution["w"][0]

# %%
# 2019 was not seen. Certificates of the four mean squared errors, a day at a time, since hours come in cycles of 24:
# is each below the 100 that Mondays had?
limit, shares = 1.0, later["regime"].mean(axis=0)
days = ed.SeriesSource({name: column.reshape(-1, 24, *column.shape[1:]) for name, column in later.items()})


def errors(w):
    return lambda xi: xi["regime"][:, 0] / shares * ((xi["a"] @ w - xi["y"]) ** 2).mean(axis=1)[:, None] - limit


certificates = {name: ed.certify(errors(w), days) for name, w in [("least squares", average), ("worst regime", robust)]}
print(certificates["worst regime"])

parts = {"2015 to 2018, where they were fitted": train, "2019, with 95 % intervals": later}
bars = [(-0.18, "#999999", "least squares", average), (0.18, "#0072B2", "worst regime", robust)]
figure, panels = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained", sharey=True)
for panel, (title, data) in zip(panels, parts.items(), strict=True):
    for shift, colour, name, w in bars:
        square = data["regime"] * ((data["a"] @ w - data["y"]) ** 2)[:, None]
        means = EUROS * np.sqrt(square.sum(axis=0) / data["regime"].sum(axis=0))
        panel.bar(np.arange(4) + shift, means, width=0.34, color=colour, label=name)
        if data is later:
            ends = np.stack([certificates[name].lower, certificates[name].upper]) + limit
            known = np.where(np.isfinite(ends), np.maximum(ends, 0), np.nan)  # no interval: too few rare, large errors
            away = np.abs(EUROS * np.sqrt(known) - means)
            panel.errorbar(np.arange(4) + shift, means, away, fmt="none", ecolor="k", capsize=3)
    panel.set(xticks=range(4), xticklabels=[name.replace(" to ", " to\n") for name in REGIMES], title=title)
panels[0].set_ylabel("root mean squared error, euros per MWh")
panels[0].legend(frameon=False)
plt.show()
