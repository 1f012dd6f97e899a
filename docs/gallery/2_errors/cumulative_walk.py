"""
Kuiper's statistic as a random walk
===================================

Sort by confidence and accumulate confidence minus correctness. For a calibrated model this is a random walk around 0.
Kuiper's statistic is the range of the walk; its p-value comes from Brownian motion.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics

g = torch.Generator().manual_seed(0)
truth = 1.5 * torch.randn(3000, 5, generator=g)
labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)

figure, ax = pyplot.subplots(figsize=(5.5, 3.4))
for factor, name in ((1.0, "calibrated"), (1.4, "overconfident")):
    p = Predictions(factor * truth, labels)
    order = p.events.confidence.argsort()
    walk = (p.events.confidence - p.events.outcome)[order].cumsum(0) / len(p)
    evidence = metrics.kuiper.test(p)
    ax.plot(
        p.events.confidence[order],
        walk,
        label=f"{name}: {evidence.statistic:.3f}, p = {evidence.p_value:.2g}",
    )
ax.set(xlabel="confidence", ylabel="sum of confidence minus correctness")
ax.legend(frameon=False)
