"""
Confidence histogram
====================

The histogram shows how many predictions each bar of a reliability diagram represents.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics
from calibrant.reports import plots

g = torch.Generator().manual_seed(0)
truth = 2 * torch.randn(4000, 10, generator=g)
labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
bins = metrics.tables.bins(Predictions(1.5 * truth, labels))

figure, (top, bottom) = pyplot.subplots(2, 1, figsize=(4, 5.6), height_ratios=(3, 1))
plots.reliability(bins, ax=top)
plots.confidence_histogram(bins, ax=bottom)
