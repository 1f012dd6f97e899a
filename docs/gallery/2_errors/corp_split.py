"""
A score taken apart
===================

The Brier score of the judged event is miscalibration minus discrimination plus uncertainty, exactly. Sharpening the
logits changes only the first.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics, plots

g = torch.Generator().manual_seed(0)
truth = 1.5 * torch.randn(2000, 5, generator=g)
labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)

factors = [0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0]
made = [Predictions(factor * truth, labels) for factor in factors]
lines = {
    "Brier score": [float(metrics.event_brier(p)) for p in made],
    "miscalibration": [float(metrics.miscalibration(p)) for p in made],
    "discrimination": [float(metrics.discrimination(p)) for p in made],
    "uncertainty": [float(metrics.uncertainty(p)) for p in made],
}
figure, ax = pyplot.subplots(figsize=(5, 3.4))
plots.curves(lines, ax=ax, x=factors, xlabel="logits times", ylabel="")
