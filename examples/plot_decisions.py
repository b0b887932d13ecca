"""
A policy from one trajectory
============================

A waiting room with three speeds of service. Fast service costs power; at most 1.5 people may wait on average. Nobody
knows the transition probabilities: there is one long trajectory of somebody who chose speeds at random.

Needs ``pip install ergodrift matplotlib``.
"""

import matplotlib.pyplot as plt
import numpy as np

import ergodrift as ed
from ergodrift.problems import occupation
from ergodrift.problems.decisions import average, policy, room

# %%
# A constrained decision process with average costs is a linear program over occupation measures m(s, a), how often one
# is in state s and does a. Its rows are expectations over the transitions. Written for w = m / m_random, they become
# expectations along the trajectory, which is all that is needed here. The reference is the program with the transitions
# known.
limit = 1.5
problem, source, reference = occupation(limit=1.3)  # a little less: a trajectory of finite length leaves doubts
world, x0 = room(), np.ones((6, 3))
algorithm = ed.auto(problem, source, x0, num_samples=60_000)
print(algorithm.reason)
result = ed.run(algorithm, problem, source, x0=x0, num_samples=60_000, record=60)
learned, exact = policy(result.solution[0]), policy(reference.x)
for name, chances in [("random", policy(x0)), ("learned", learned), ("linear program", exact)]:
    print("{:15s} power {:.3f}, waiting {:.3f}".format(name, *average(world, chances)))

# %%
# What the learned policy does in the room is a chain of its own. A certificate from one run of it says whether few
# enough wait.
states = np.arange(6.0)
chain = ed.MarkovChain(np.einsum("sa,sat->st", learned, world.P))
certificate = ed.certify(lambda xi: xi - limit, ed.MarkovSource(chain, states), num_samples=100_000)
print(certificate)

# sphinx_gallery_thumbnail_number = 1
figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained", width_ratios=[1, 1, 1.5])
for panel, (name, chances) in zip(axes[:2], [("learned", learned), ("linear program", exact)], strict=True):
    panel.imshow(chances, cmap="Blues", vmin=0, vmax=1, origin="lower", aspect="auto")
    panel.set(title=name, xticks=range(3), xticklabels=["slow", "middle", "fast"], ylabel="people who wait")
    for s, a in np.ndindex(6, 3):
        panel.text(a, s, f"{chances[s, a]:.2f}", ha="center", va="center", color="w" if chances[s, a] > 0.6 else "k")
way = np.array([average(world, policy(w)) for w in result.x_mean[0]])
axes[2].axhspan(limit, 5, color="#D55E00", alpha=0.12, linewidth=0)
axes[2].plot(*way.T, color="#56B4E9", marker=".", label="on the way")
axes[2].plot(*average(world, policy(x0)), "s", color="#999999", label="at random")
axes[2].plot(*average(world, learned), "o", color="#0072B2", markersize=9, label="learned")
axes[2].plot(*average(world, exact), "*", color="#000000", markersize=13, label="linear program")
axes[2].set(xlabel="mean power", ylabel="mean number that waits", ylim=(0.8, max(2.6, way[:, 1].max() * 1.05)))
axes[2].legend(frameon=False)
plt.show()
