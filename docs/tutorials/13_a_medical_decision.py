"""
A medical decision
==================

A surgical biopsy is certain, but it hurts and costs. Of 1,000 women with a lump whose cells were drawn through a fine
needle, whom should a clinic send to one, if a classifier states from these cells the probability that the lump is
malignant? This tutorial counts in the units of the clinic: biopsies, missed tumors, and what one is worth in terms of
the other. The data are real: 569 needle aspirates, of which 212 are malignant. All numbers hold for a clinic in which
37 % of the lumps are, too.
"""

import numpy as np
from matplotlib import pyplot
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import cross_val_predict
from sklearn.naive_bayes import GaussianNB

from calibrant import Predictions, calibrators, decisions
from calibrant.reports import plots

x, benign = load_breast_cancer(return_X_y=True)
malignant = 1 - benign
probs = cross_val_predict(GaussianNB(), x, malignant, cv=10, method="predict_proba")
raw = Predictions.from_probs(probs, malignant, class_names=("benign", "malignant"))
p = calibrators.cross_fit("Beta", raw)  # each case by a fit to the others

# %%
# What is a biopsy worth?
# -----------------------
#
# The clinic decides that a missed malignant tumor is as bad as 19 needless biopsies. Costs are stated for each class
# (benign, malignant) and action (wait, biopsy). The action of least expected cost is then a biopsy from a probability
# of 1 in 20 on.

costs = [[0, 1], [19, 1]]
table = decisions.expected_costs(p, costs)


def per_thousand(interval):
    value, low, high = (1000 * x for x in (interval.value, interval.low, interval.high))
    return f"{value:.0f} ({low:.0f} to {high:.0f})"


print("cost per 1,000 women, in biopsies, with a 90 % interval")
print("  by the calibrated probabilities:", per_thousand(table.model))
print("  a biopsy for all:", per_thousand(table.fixed[1]))
print("  saved beside the better fixed policy:", per_thousand(table.saving))
print(f"  promised by the probabilities: {1000 * table.stated:.0f}")

actions = decisions.choose_actions(p, costs)
missed = int(((actions == 0) & (p.labels == 1)).sum())
print(
    f"biopsies: {int(actions.sum())} of {len(p)}; "
    f"missed tumors: {missed} of {int(p.labels.sum())}"
)
assert table.saving.low > 0
assert table.model.low < table.stated < table.model.high  # the promise is kept

# %%
# Before calibration the same rule costs more, because the stated probabilities are too extreme. They promise much less
# than it really costs, so that they mislead the decision:

raw_table = decisions.expected_costs(raw, costs)
print("by the raw probabilities:", per_thousand(raw_table.model))
print(f"promised by them: {1000 * raw_table.stated:.0f}")
assert raw_table.stated < raw_table.model.low

# %%
# Is it better than treating all, or none?
# ----------------------------------------
#
# Clinics differ in what a missed tumor is worth. The net benefit shows all exchange rates at once: at a threshold of
# 5 % one true positive is worth 19 false positives, at 50 % one. A model is useful where its line lies above the
# other two.

curves = {
    name: decisions.net_benefit(q) for name, q in (("raw", raw), ("calibrated", p))
}
plots.net_benefit(curves, ax=pyplot.figure(figsize=(5, 3.2)).add_subplot())

# %%
# Whether two lines differ by more than chance cannot be read from their bands. The last column has the difference of
# calibrated and raw probabilities in the same patients, in true positives per patient:

comparison = decisions.net_benefit(p, raw, thresholds=[0.02, 0.05, 0.1, 0.2])
print(comparison)
assert comparison.over_second.low[1] > 0  # at the threshold of the clinic

# %%
# Whom may one send home?
# -----------------------
#
# The clinic sends a woman home without a biopsy only if at most 5 in 100 such women have a malignant tumor. The event
# is "benign". Fit the threshold to one half of the cases, and look at the other half:

half = np.random.default_rng(0).permutation(len(p))
first, second = p[half[:300]], p[half[300:]]
certified = decisions.certify_threshold(first, risk=0.05, delta=0.1, of="benign")
print(certified)
home = certified.acts_on(second.with_event("benign"))
print(
    f"sent home: {int(home.sum())} of {len(second)}, "
    f"of whom malignant: {int(second.labels[home].sum())}"
)

# %%
# A risk of 5 in 1,000 cannot be promised from 300 cases, and the answer says why:

print(decisions.certify_threshold(first, risk=0.005, of="benign"))
