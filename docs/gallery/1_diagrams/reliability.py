"""
A reliability diagram
=====================

Bars show the accuracy of predictions with a given confidence. Red marks the gap to perfect calibration. Faint bars
contain few examples.
"""

import torch

from calibrant import Predictions, metrics
from calibrant.reports import plots

g = torch.Generator().manual_seed(0)
truth = 1.5 * torch.randn(4000, 5, generator=g)
labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
p = Predictions(2 * truth, labels)  # overconfident by a factor of two

plots.reliability(p, title=f"ECE {100 * float(metrics.ece(p)):.1f} %")
