"""
Several labels per example
==========================

Each label is a separate event. Pooled over labels, overconfidence and underconfidence can cancel.
"""

import numpy as np
from matplotlib import pyplot

from calibrant import Predictions, metrics
from calibrant.reports import plots

rng = np.random.default_rng(0)
truth = 1.2 * rng.standard_normal((2000, 3)) - np.array([0.0, 0.5, 1.0])
targets = (rng.random(truth.shape) < 1 / (1 + np.exp(-truth))).astype(int)
scores = truth * np.array([1.0, 2.5, 1.0]) + np.array([0.0, 0.0, 1.0])
p = Predictions.multilabel(scores, targets, names=["fever", "cough", "rash"])

figure, axes = pyplot.subplots(1, 4, figsize=(12, 3.3))
plots.reliability(
    p, ax=axes[0], title=f"pooled: ECE {100 * float(metrics.ece(p)):.1f} %"
)
for ax, name in zip(axes[1:], p.group_names, strict=True):
    q = p.select_group(name)
    plots.reliability(
        q, ax=ax, title=f"{name}: ECE {100 * float(metrics.ece(q)):.1f} %"
    )
