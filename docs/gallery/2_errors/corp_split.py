"""
Score decomposition
===================

The Brier score of the event equals miscalibration minus discrimination plus uncertainty. Scaling the logits changes
only the miscalibration.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics
from calibrant.reports import plots

g = torch.Generator().manual_seed(0)
truth = 1.5 * torch.randn(2000, 5, generator=g)
labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)

factors = [0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0]
scaled = [Predictions(factor * truth, labels) for factor in factors]
lines = {
    "Brier score": [float(metrics.event_brier(p)) for p in scaled],
    "miscalibration": [float(metrics.miscalibration(p)) for p in scaled],
    "discrimination": [float(metrics.discrimination(p)) for p in scaled],
    "uncertainty": [float(metrics.uncertainty(p)) for p in scaled],
}
figure, ax = pyplot.subplots(figsize=(5, 3.4))
plots.curves(lines, ax=ax, x=factors, xlabel="factor on the logits", ylabel="")
