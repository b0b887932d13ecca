"""
A portfolio that learns each day once
=====================================

skfolio re-solves a portfolio on every window of a walk forward. ``OnlineConstrainedPortfolio`` is an optimiser by its
rules that goes on from where the days before have led: ``partial_fit``, at a cost that does not grow. Both want the
least variance with a mean loss of at most 2 per cent on the worst twentieth of days.

Needs ``pip install 'ergodrift[skfolio]' matplotlib``.
"""

import itertools
import time
import warnings
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from skfolio.model_selection import WalkForward, cross_val_predict, online_predict
from skfolio.optimization import EqualWeighted, MeanRisk

import ergodrift as ed
from ergodrift import datasets
from ergodrift.problems.portfolio import daily_returns
from ergodrift.skfolio import OnlineConstrainedPortfolio

# %%
# Twenty shares of the S&P 500, twelve years of days. The first two years are for warming up; then weights are kept for
# a quarter of a year at a time.
data = datasets.sp500()
names = [name for name in data if name != "date"]
returns: Any = pd.DataFrame(daily_returns(data), index=pd.DatetimeIndex(data["date"][1:]), columns=names).loc["2011":]
quarter, years = 63, 2 * 252
walk = WalkForward(test_size=quarter, train_size=years)

# %%
# One is updated, the other re-solved on a rolling window of two years; where the window has no portfolio that keeps the
# budget, it takes the least variance.
ours = OnlineConstrainedPortfolio(max_cvar=0.02)
rival = MeanRisk(max_cvar=0.02, min_weights=0, fallback=MeanRisk(min_weights=0))
began = time.monotonic()
online = online_predict(ours, returns, warmup_size=years, test_size=quarter)
between = time.monotonic()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of CVXPY, about its own future
    rolling = cross_val_predict(rival, returns, cv=walk)
ended = time.monotonic()
equal = cross_val_predict(EqualWeighted(), returns, cv=walk)
print(f"online {between - began:.1f} s, compilation included; re-solved {ended - between:.1f} s")

paths: dict[str, Any] = {"learned online": online, "re-solved every quarter": rolling, "equal weights": equal}
for name, path in paths.items():
    steps = [np.abs(b.weights - a.weights).sum() for a, b in itertools.pairwise(path)]
    print(f"{name:24} volatility {100 * path.standard_deviation:.2f} % a day, CVaR {100 * path.cvar:.2f} %, "
          f"turnover {np.mean(steps):.2f} a quarter")  # fmt: skip

# %%
# Is the budget kept by the weights of the end of 2019 in the years after? The certificate is about days that nobody
# has learned from.
last = OnlineConstrainedPortfolio(max_cvar=0.02).fit(returns.loc[:"2019"])
point = {"w": last.weights_, "v": np.asarray(last.learner_.solution["v"])}
later = ed.SeriesSource(returns.loc["2020":].to_numpy())
print(ed.certify(last.learner_.problem, point, later))

# sphinx_gallery_thumbnail_number = 1
colours = ["#0072B2", "#D55E00", "#999999"]
figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.8), layout="constrained", width_ratios=[1.3, 1])
for (name, path), colour in zip(paths.items(), colours, strict=True):
    days = returns.index[years : years + len(path.returns)]
    left.semilogy(days, np.cumprod(1 + path.returns), color=colour, label=name)
left.set(ylabel="value of 1", title="a walk forward through ten years")
left.set_yticks([1, 2, 3, 4, 5], ["1", "2", "3", "4", "5"])
left.minorticks_off()
left.legend(frameon=False)
largest = np.argsort(-np.mean([p.weights for p in online], axis=0))[:3]
for rank, i in enumerate(largest):
    for path, colour in [(online, "#0072B2"), (rolling, "#D55E00")]:
        style = ["-", "--", ":"][rank]
        right.plot(
            [p.weights[i] for p in path], color=colour, linestyle=style, label=f"{names[i]}" if path is online else None
        )
right.set(xlabel="quarter", ylabel="weight", title="the three largest weights")
right.legend(frameon=False)
plt.show()
