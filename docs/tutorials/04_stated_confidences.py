"""
Stated confidences of a language model
======================================

A model answers questions and says how sure it is. Is 90 % right nine times in ten? In every subject? What should be
believed instead? The answers here are simulated; yours come from a file with the columns ``confidence``, ``correct``
and ``group``.
"""

import numpy as np
import polars
from matplotlib import pyplot

import calibrant
from calibrant import Predictions, metrics, plots
from calibrant.calibrators import GroupCalibrated

rng = np.random.default_rng(0)
subject = rng.choice(["history", "medicine", "physics"], 4000, p=[0.5, 0.3, 0.2])
stated = rng.choice([0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0], 4000, p=[0.02, 0.04, 0.06, 0.1, 0.2, 0.3, 0.18, 0.1])
worse = np.select([subject == "medicine", subject == "physics"], [0.15, 0.3], 0.02)
right = rng.random(4000) < np.clip(0.2 + 0.75 * stated - worse, 0, 1)
frame = polars.DataFrame({"confidence": stated, "correct": right.astype(int), "group": subject})
print(frame.head(3))

# %%
# Judged as said
# --------------
#
# A confidence is the probability of being right, and nothing is turned around below a half.

p = Predictions.from_table(frame)
print(calibrant.measure(p))

# %%
# ``inf`` is the price of a single wrong answer that was stated with 100 %.

figure, axes = pyplot.subplots(1, 2, figsize=(7.6, 3.8))
plots.reliability(p, ax=axes[0], title=f"ECE {100 * float(metrics.ece(p)):.1f} %")
plots.reliability_curve(metrics.curves.corp(p), ax=axes[1], title="with the band of chance")

# %%
# Subject by subject
# ------------------
#
# The intervals hold for all subjects together.

table = metrics.tables.groups(p)
for i in table.worst_first:
    print(f"{table.names[i]:9} said {table.said[i]:.3f}, right {table.happened[i]:.3f}, gap {table.gap[i]:+.3f}")

# %%
# What to believe instead
# -----------------------
#
# Half of the answers teach, the other half judges. One map for all leaves each subject's own error; a map for every
# subject, which shares what they have in common, does not.

half = rng.random(4000) < 0.5
val, test = p[half], p[~half]
found = calibrant.assess(val, test, ["Identity", "Platt", "Isotonic", "GroupCalibrated"])
print(found)

# %%

by_subject = GroupCalibrated.fit(val)
after = test.apply(by_subject)
for name in after.group_names:
    print(f"{name:9} gap {float(metrics.signed_gap(after.of_group(name))):+.3f}")
said = Predictions.from_confidence([0.9], [1])  # what 90 % means in each subject
for name in after.group_names:
    print(f"90 % in {name}: {float(by_subject.of_group(name)(said.logits).softmax(1)[0, 1]):.2f}")
