"""
Risk and coverage
=================

The error rate among the most confident predictions against their fraction. Calibration does not change the order of the
predictions; a better model does.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics
from calibrant.reports import plots

g = torch.Generator().manual_seed(0)
truth = 1.5 * torch.randn(3000, 5, generator=g)
labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
models = {
    "true probabilities": Predictions(truth, labels),
    "noisy probabilities": Predictions(
        truth + torch.randn(3000, 5, generator=g), labels
    ),
}
lines = {
    f"{name}: AURC {float(metrics.aurc(p)):.3f}": metrics.curves.risk_coverage(p)
    for name, p in models.items()
}
figure, ax = pyplot.subplots(figsize=(5, 3.4))
plots.risk_coverage(lines, ax=ax)
