"""
A budget for the worst days
===========================

Twenty shares of the S&P 500. Two wishes, as much return as can be or as little variance, and the same two limits: the
mean loss of the worst twentieth of days (CVaR) stays below 1.6 per cent, and no more than half of the money is moved
from equal weights.

Needs ``pip install ergodrift matplotlib pandas`` and ``pip install --no-deps skfolio``, which has the prices.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.dates import YearLocator

import ergodrift as ed
from ergodrift import datasets
from ergodrift.problems import portfolio
from ergodrift.problems.portfolio import daily_returns

# %%
# CVaR has the value at risk v as a variable of its own (Rockafellar and Uryasev 2000), so that a budget for it is an
# expectation: x = (w, v), with the weights on the simplex. One day a sample, eight years that end with 2019.
cvar, x0 = 1.6, {"w": np.full(20, 1 / 20), "v": np.ones(1)}
found = {wish: portfolio(wish, cvar=cvar, turnover=1.0) for wish in ("return", "variance")}


def learned(problem, source, reference):
    """From the record, twenty times over and shuffled."""
    days = ed.SeriesSource(source.loss_law.points, epochs=20, order="shuffled")
    result = ed.run(ed.sdpp(), problem, days, x0=x0)
    quality = ed.metrics.evaluate(result, problem, source, reference)
    print(f"optimum {reference.value:8.4f}, Lagrangian gap {quality.lagrangian_gap[0, -1]:.4f}")
    return {name: leaf[0] for name, leaf in result.solution.items()}


points = {wish: learned(*application) for wish, application in found.items()}
chosen = {"equal weights": x0["w"], **{wish: point["w"] for wish, point in points.items()}}
optima = {wish: application.reference.x["w"] for wish, application in found.items()}

# %%
# 2020 to 2022 were another world. Is the budget kept there? In three years there are too few of the worst days to say,
# and the certificate does not pretend otherwise.
data = datasets.sp500()
returns, days = 100 * daily_returns(data), data["date"][1:]
later = days >= np.datetime64("2020-01-01")
certificate = ed.certify(found["variance"].problem, points["variance"], ed.SeriesSource(returns[later]))
print(certificate)

# sphinx_gallery_thumbnail_number = 1
colours = {"equal weights": "#999999", "return": "#D55E00", "variance": "#0072B2"}
figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4), layout="constrained", width_ratios=[1, 1.25])
past = returns[~later][-2000:]


def plane(w):
    """CVaR of the worst twentieth of days, and mean return, in per cent a day."""
    day = np.sort(past @ w)
    return -day[: len(day) // 20].mean(), day.mean()


left.plot(*zip(*(plane(w) for w in np.eye(20)), strict=True), ".", color="#bbbbbb", label="single shares")
for name, w in chosen.items():
    left.plot(*plane(w), "o", color=colours[name], markersize=9, label=name)
for name, w in optima.items():
    left.plot(*plane(w), "*", color="#000000", markersize=8, label="optima" if name == "return" else None)
left.axvline(cvar, color="#999999", linestyle="--", linewidth=1)
left.set(xlabel="mean loss of the worst 5 % of days, %", ylabel="mean return of a day, %", title="2012 to 2019")
left.set(xlim=(1.3, 3.3), ylim=(0, 0.12))
left.legend(frameon=False, fontsize=8)
for name, w in chosen.items():
    right.semilogy(days[later], np.cumprod(1 + returns[later] @ w / 100), color=colours[name], label=name)
right.set(title="afterwards, unseen", ylabel="value of 1")
right.xaxis.set_major_locator(YearLocator())
right.set_yticks([0.8, 1, 1.5, 2], ["0.8", "1", "1.5", "2"])
right.minorticks_off()
right.legend(frameon=False)
plt.show()
