"""
Where to act
============

What becomes of patients above a threshold: how many, how many of them ill, how many of the ill.
"""

import numpy as np
from matplotlib import pyplot

from calibrant import Predictions, metrics, plots

rng = np.random.default_rng(0)
risk = rng.beta(1.5, 4, 4000)
p = Predictions.from_probs(risk, (rng.random(4000) < risk).astype(int))

at = np.linspace(0.02, 0.8, 40)
found = metrics.tables.thresholds(p, at=at.tolist())
lines = {
    "acted on": found.share.numpy(),
    "of them, positive": found.precision.numpy(),
    "of the positive, found": found.recall.numpy(),
}
figure, ax = pyplot.subplots(figsize=(5, 3.4))
plots.curves(lines, ax=ax, x=at.tolist(), xlabel="threshold", ylabel="share")
