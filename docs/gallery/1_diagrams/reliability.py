"""
A reliability diagram
=====================

Bars are how often predictions of that confidence were right; red is what is missing, or too much. Faint bars hold few
examples.
"""

import torch

from calibrant import Predictions, metrics, plots

g = torch.Generator().manual_seed(0)
truth = 1.5 * torch.randn(4000, 5, generator=g)
labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
p = Predictions(2 * truth, labels)  # twice too sure

plots.reliability(p, title=f"ECE {100 * float(metrics.ece(p)):.1f} %")
