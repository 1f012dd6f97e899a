"""
A reliability curve without bins
================================

CORP (Dimitriadis et al. 2021) estimates the curve by isotonic regression, so there is no number of bins to choose. The
curve of a calibrated model lies within the gray band.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics
from calibrant.reports import plots

g = torch.Generator().manual_seed(0)
truth = 1.5 * torch.randn(2000, 5, generator=g)
labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
p = Predictions(1.5 * truth, labels)

figure, ax = pyplot.subplots(figsize=(4, 4))
plots.reliability_curve(
    metrics.curves.corp(p), ax=ax, title="logits 1.5 times too large"
)
