"""
A flexible curve of a risk
==========================

A restricted cubic spline of the log-odds, with the pointwise band (dark) and the simultaneous band (light) of the curve
itself. This risk is too extreme: low risks are too low, and high risks too high.
"""

import numpy as np
from matplotlib import pyplot

from calibrant import Predictions, metrics
from calibrant.reports import plots

rng = np.random.default_rng(0)
log_odds = rng.normal(-2, 1.2, 3000)
died = (rng.random(3000) < 1 / (1 + np.exp(-log_odds))).astype(int)
p = Predictions.from_binary_logits(1.6 * log_odds + 1.2, died).with_event(1)

plots.flexible_curve(
    metrics.curves.flexible(p), ax=pyplot.figure(figsize=(4, 4)).add_subplot()
)
