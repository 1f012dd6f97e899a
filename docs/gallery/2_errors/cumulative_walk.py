"""
Kuiper's error is a walk
========================

Sorted by confidence, confidence minus correctness is added up. A calibrated model wanders about 0; the range of the
walk is Kuiper's error, its p-value that of a random walk.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics

g = torch.Generator().manual_seed(0)
truth = 1.5 * torch.randn(3000, 5, generator=g)
labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)

figure, ax = pyplot.subplots(figsize=(5.5, 3.4))
for factor, name in ((1.0, "calibrated"), (1.4, "too sure")):
    p = Predictions(factor * truth, labels)
    order = p.events.confidence.argsort()
    walk = (p.events.confidence - p.events.outcome)[order].cumsum(0) / len(p)
    found = metrics.kuiper.test(p)
    ax.plot(p.events.confidence[order], walk, label=f"{name}: {found.statistic:.3f}, p = {found.p_value:.2g}")
ax.set(xlabel="confidence", ylabel="sum of confidence minus correctness")
ax.legend(frameon=False)
