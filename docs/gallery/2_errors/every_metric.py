"""
Fourteen metrics, one error
===========================

The logits of the same predictions are multiplied by a factor; at 1 they are calibrated. Calibration errors and proper
scores are minimal there. Ranking metrics hardly change.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics

g = torch.Generator().manual_seed(0)
truth = 1.5 * torch.randn(800, 4, generator=g)
labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
factors = (0.4, 0.6, 0.8, 1.0, 1.3, 1.7, 2.2)
scaled = [Predictions(factor * truth, labels) for factor in factors]

shown = (
    metrics.brier,
    metrics.mce,
    metrics.classwise_ece,
    metrics.sweep_ece,
    metrics.adaptive_noise_floor,
)
shown += (metrics.ks, metrics.mmce, metrics.skce, metrics.signed_gap, metrics.entropy)
shown += (
    metrics.confident_share,
    metrics.confident_accuracy,
    metrics.error,
    metrics.auroc,
)
figure, axes = pyplot.subplots(3, 5, figsize=(12, 6), sharex=True)
for ax, metric in zip(axes.flat, shown, strict=False):
    ax.plot(factors, [float(metric(p)) for p in scaled], ".-")
    ax.axvline(1, color="gray", linewidth=0.8)
    ax.set_title(metrics.metric_info(metric.__name__).title, fontsize=8)
    ax.tick_params(labelsize=7)
axes.flat[-1].axis("off")
figure.supxlabel("factor on the logits", fontsize=9)
