"""
A binary risk score from scikit-learn
=====================================

A forest says how probable it is that a tumor is benign. Real data, 569 cases, too few to give any away: everything is
cross-fitted.
"""

from matplotlib import pyplot
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import cross_val_predict, cross_val_score, train_test_split
from sklearn.naive_bayes import GaussianNB

import calibrant
from calibrant import Predictions, metrics, plots
from calibrant.integrations.sklearn import CalibratedClassifier, ReliabilityDisplay, predictions, scorer

x, y = load_breast_cancer(return_X_y=True)
x, unseen, y, truth = train_test_split(x, y, test_size=0.3, random_state=0, stratify=y)

# %%
# Naive Bayes counts the same evidence many times over, and says so:

bayes = GaussianNB().fit(x, y)
ReliabilityDisplay.from_estimator(bayes, unseen, truth)

# %%
# One line repairs any classifier
# -------------------------------
#
# The calibrator is fitted to predictions out of fold, the classifier to everything. What comes out is a classifier of
# scikit-learn: in pipelines, grids, pickles.

repaired = CalibratedClassifier(GaussianNB(), "Auto", cv=5).fit(x, y)
before, after = predictions(bayes, unseen, truth), predictions(repaired, unseen, truth)
print(metrics.compare(before, after, names=["nll", "event_brier", "ece"]))

# %%
# Which model?
# ------------
#
# ``scorer`` makes a scorer of any metric, the greater the better.

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
# A forest gives them, and one mistake then costs infinitely much. They may enter as they are; a calibrator makes them
# what they are worth.

said = cross_val_predict(models["forest"], x, y, cv=5, method="predict_proba")[:, 1]
p = Predictions.from_probs(said, y, class_names=["malignant", "benign"])
found = calibrant.assess(p, calibrators=["Identity", "Platt", "Beta", "VennAbers"])
print(found)

# %%
# Where to act
# ------------

table = metrics.tables.thresholds(p.apply(found.best), at=[0.5, 0.8, 0.9, 0.95, 0.99])
for row in zip(table.threshold, table.share, table.precision, table.recall, strict=True):
    print(
        "call benign from {:.2f} on: {:.0%} of cases, {:.1%} of them benign, {:.0%} of the benign".format(
            *map(float, row)
        )
    )

# %%

figure, axes = pyplot.subplots(1, 2, figsize=(7.6, 3.8))
plots.reliability(p, ax=axes[0], title="forest")
plots.reliability(p.apply(found.best), ax=axes[1], title=f"after {found.chosen_name} (the same data)")
