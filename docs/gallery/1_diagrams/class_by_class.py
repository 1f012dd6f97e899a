"""
One diagram per class
=====================

The top label may be calibrated while single classes are not. Here, one class is predicted too often and another too
rarely.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics
from calibrant.reports import plots

g = torch.Generator().manual_seed(0)
truth = 1.5 * torch.randn(6000, 3, generator=g)
labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
p = Predictions(
    truth + torch.tensor([0.9, 0.0, -0.9]), labels, class_names=["cat", "dog", "fox"]
)

figure, axes = pyplot.subplots(1, 3, figsize=(9, 3.4))
for ax, name in zip(axes, p.class_names, strict=True):
    q = p.with_event(name)
    plots.reliability(
        q, ax=ax, title=f"{name}: ECE {100 * float(metrics.ece(q)):.1f} %"
    )
