"""
Stated confidences of a language model
======================================

Stated confidences are a few round numbers, mostly high. They are evaluated without flipping: a confidence of 30 % is
calibrated if 30 % of these answers are right.
"""

import numpy as np
from matplotlib import pyplot

from calibrant import Predictions, metrics
from calibrant.reports import plots

rng = np.random.default_rng(0)
stated = rng.choice(
    [0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0], 3000, p=[0.03, 0.05, 0.12, 0.2, 0.3, 0.2, 0.1]
)
right = (rng.random(3000) < 0.25 + 0.6 * stated).astype(int)
p = Predictions.from_confidence(stated, right)

figure, axes = pyplot.subplots(1, 2, figsize=(7.5, 3.8))
plots.reliability(p, ax=axes[0], title=f"ECE {100 * float(metrics.ece(p)):.1f} %")
plots.reliability_curve(metrics.curves.corp(p), ax=axes[1], title="without bins")
