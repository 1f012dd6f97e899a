"""
Equal-width and equal-mass bins
===============================

For a confident network, most equal-width bins are nearly empty. Equal-mass bins hold the same number of examples.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics
from calibrant.reports import plots

g = torch.Generator().manual_seed(0)
truth = 3 * torch.randn(3000, 10, generator=g)
labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
p = Predictions(1.6 * truth, labels)

figure, axes = pyplot.subplots(1, 2, figsize=(7.5, 3.8))
plots.reliability(
    metrics.tables.bins(p),
    ax=axes[0],
    title=f"equal width: ECE {100 * float(metrics.ece(p)):.2f} %",
)
mass = metrics.tables.bins(p, edges="equal_mass")
plots.reliability(
    mass,
    ax=axes[1],
    title=f"equal mass: adaptive ECE {100 * float(metrics.adaptive_ece(p)):.2f} %",
)
