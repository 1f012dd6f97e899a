"""
Stated confidences of a language model
======================================

A language model answers questions and states its confidence. Are answers with 90 % confidence right nine times in ten?
Is this true in every subject? Which confidences would be correct? This tutorial simulates the answers. Load yours from
a file with the columns ``confidence``, ``correct`` and ``group``.
"""

import numpy as np
import polars
from matplotlib import pyplot
from scipy.special import softmax

import calibrant
from calibrant import Predictions, metrics
from calibrant.calibrators import GroupCalibrated
from calibrant.reports import plots

rng = np.random.default_rng(0)
subject = rng.choice(["history", "medicine", "physics"], 4000, p=[0.5, 0.3, 0.2])
stated = rng.choice(
    [0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0],
    4000,
    p=[0.02, 0.04, 0.06, 0.1, 0.2, 0.3, 0.18, 0.1],
)
worse = np.select([subject == "medicine", subject == "physics"], [0.15, 0.3], 0.02)
right = rng.random(4000) < np.clip(0.2 + 0.75 * stated - worse, 0, 1)
frame = polars.DataFrame(
    {"confidence": stated, "correct": right.astype(int), "group": subject}
)
print(frame.head(3))

# %%
# Measure
# -------
#
# A confidence is the probability that the answer is right. Confidences below 0.5 are not flipped.

p = Predictions.from_table(frame)
print(calibrant.measure(p))

# %%
# A single wrong answer with 100 % confidence makes the log loss ``inf``.

figure, axes = pyplot.subplots(1, 2, figsize=(7.6, 3.8))
plots.reliability(p, ax=axes[0], title=f"ECE {100 * float(metrics.ece(p)):.1f} %")
plots.reliability_curve(
    metrics.curves.corp(p), ax=axes[1], title="with the band under calibration"
)

# %%
# Measure each subject
# --------------------
#
# The intervals are simultaneous over all subjects.

table = metrics.tables.groups(p)
for i in table.worst_first:
    gap, low, high = (float(column[i]) for column in (table.gap, table.low, table.high))
    print(
        f"{table.names[i]:9} confidence minus accuracy "
        f"{gap:+.3f} [{low:+.3f}, {high:+.3f}]"
    )

# %%
# Calibrate each subject
# ----------------------
#
# Fit on one half of the answers and evaluate on the other half. A single map for all subjects leaves the errors of each
# subject. ``GroupCalibrated`` fits one map per subject and shrinks the maps toward each other.

half = rng.random(4000) < 0.5
val, test = p[half], p[~half]
result = calibrant.assess(
    val, test, ["Identity", "Platt", "Isotonic", "GroupCalibrated"]
)
print(result)

# %%

by_subject = GroupCalibrated.fit(val)
after = test.apply(by_subject)
for name in after.group_names:
    print(f"{name:9} gap {float(metrics.signed_gap(after.select_group(name))):+.3f}")
# The calibrated value of 90 % in each subject
ninety = Predictions.from_confidence([0.9], [1])
for name in after.group_names:
    probs = softmax(by_subject.of_group(name)(ninety.logits), axis=1)
    print(f"90 % in {name}: {float(probs[0, 1]):.2f}")
