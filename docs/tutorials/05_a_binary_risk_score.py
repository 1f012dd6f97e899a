"""
A binary risk score from scikit-learn
=====================================

A random forest predicts the probability that a tumor is benign. The data set is real and has only 569 cases, so
everything is cross-fitted.
"""

from matplotlib import pyplot
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import cross_val_predict, cross_val_score, train_test_split
from sklearn.naive_bayes import GaussianNB

import calibrant
from calibrant import Predictions, metrics
from calibrant.integrations.sklearn import (
    CalibratedClassifier,
    ReliabilityDisplay,
    predictions,
    scorer,
)
from calibrant.reports import plots

x, y = load_breast_cancer(return_X_y=True)
x, unseen, y, truth = train_test_split(x, y, test_size=0.3, random_state=0, stratify=y)

# %%
# Naive Bayes counts correlated evidence several times and becomes overconfident:

bayes = GaussianNB().fit(x, y)
ReliabilityDisplay.from_estimator(bayes, unseen, truth)

# %%
# Calibrate any classifier in one line
# ------------------------------------
#
# The calibrator is fitted on out-of-fold predictions, the classifier on all data. The result is a scikit-learn
# classifier. It works in pipelines, grid searches and pickles.

calibrated = CalibratedClassifier(GaussianNB(), "Auto", cv=5).fit(x, y)
before, after = (
    predictions(bayes, unseen, truth),
    predictions(calibrated, unseen, truth),
)
print(metrics.compare(before, after, names=["nll", "event_brier", "ece"]))

# %%
# Compare models
# --------------
#
# ``scorer`` turns any metric into a scikit-learn scorer, where greater is better.

models = {
    "naive Bayes": GaussianNB(),
    "calibrated naive Bayes": CalibratedClassifier(GaussianNB(), "Beta"),
    "forest": RandomForestClassifier(100, random_state=0),
}
for name, model in models.items():
    scores = cross_val_score(model, x, y, scoring=scorer("nll"), cv=3)
    print(f"{name:24} NLL {-scores.mean():.3f}")

# %%
# Probabilities of exactly 0 or 1
# -------------------------------
#
# A forest predicts them, and a single error then costs an infinite log loss. You do not need to clip them. A calibrator
# maps them to correct probabilities.

probs = cross_val_predict(models["forest"], x, y, cv=5, method="predict_proba")[:, 1]
p = Predictions.from_probs(probs, y, class_names=["malignant", "benign"])
result = calibrant.assess(p, calibrators=["Identity", "Platt", "Beta", "VennAbers"])
print(result)

# %%
# Choose a threshold
# ------------------

table = metrics.tables.thresholds(p.apply(result.best), at=[0.5, 0.8, 0.9, 0.95, 0.99])
line = "threshold {:.2f}: {:.0%} called benign, precision {:.1%}, recall {:.0%}"
columns = table.threshold, table.share, table.precision, table.recall
for row in zip(*columns, strict=True):
    print(line.format(*map(float, row)))

# %%

figure, axes = pyplot.subplots(1, 2, figsize=(7.6, 3.8))
plots.reliability(p, ax=axes[0], title="forest")
plots.reliability(
    p.apply(result.best),
    ax=axes[1],
    title=f"after {result.chosen_name} (the same data)",
)
