"""
Out-of-distribution detection
=============================

How well each score separates test examples from out-of-distribution examples, whose logits are smaller.
"""

import torch
from matplotlib import pyplot

from calibrant import metrics
from calibrant.reports import plots

g = torch.Generator().manual_seed(0)
inside = 3 * torch.randn(1500, 10, generator=g)
outside = 2 * torch.randn(1500, 10, generator=g)

figure, axes = pyplot.subplots(1, 3, figsize=(10, 3.2))
scores = {
    "energy": metrics.ood.energy,
    "max_logit": metrics.ood.max_logit,
    "entropy": metrics.ood.entropy,
}
for ax, (name, score) in zip(axes, scores.items(), strict=True):
    detection = metrics.ood.detection(inside, outside, score=score)
    groups = {"in distribution": score(inside), "out of distribution": score(outside)}
    plots.histograms(
        groups, ax=ax, xlabel=name, title=f"AUROC {100 * detection.auroc:.1f} %"
    )
