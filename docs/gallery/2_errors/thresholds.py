"""
Decision thresholds
===================

For each threshold: the fraction of patients above it, the precision and the recall.
"""

import numpy as np
from matplotlib import pyplot

from calibrant import Predictions, metrics
from calibrant.reports import plots

rng = np.random.default_rng(0)
risk = rng.beta(1.5, 4, 4000)
p = Predictions.from_probs(risk, (rng.random(4000) < risk).astype(int))

at = np.linspace(0.02, 0.8, 40)
table = metrics.tables.thresholds(p, at=at.tolist())
lines = {
    "fraction above": table.share,
    "precision": table.precision,
    "recall": table.recall,
}
figure, ax = pyplot.subplots(figsize=(5, 3.4))
plots.curves(lines, ax=ax, x=at.tolist(), xlabel="threshold", ylabel="share")
