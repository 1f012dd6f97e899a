"""
Calibration maps for two classes
================================

Six calibrators, fitted on the same 500 examples. The dashed line is the true probability.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, calibrators

g = torch.Generator().manual_seed(0)
s = 2 * torch.randn(500, generator=g)
labels = (torch.rand(500, generator=g) < (0.5 * s + 0.5).sigmoid()).long()
p = Predictions.from_binary_logits(s, labels)

line = torch.linspace(-5, 5, 400)
pairs = torch.stack([torch.zeros_like(line), line], 1)
figure, axes = pyplot.subplots(2, 3, figsize=(9, 5.4), sharex=True, sharey=True)
for ax, name in zip(
    axes.flat,
    ("Platt", "Beta", "Quadratic", "Isotonic", "VennAbers", "HistogramBinning"),
    strict=True,
):
    fitted = calibrators.fit(name, p)
    ax.plot(
        line.sigmoid(), (0.5 * line + 0.5).sigmoid(), "--", color="gray", linewidth=1
    )
    ax.plot(line.sigmoid(), fitted(pairs).softmax(1)[:, 1])
    ax.set_title(name, fontsize=10)
figure.supxlabel("predicted probability")
figure.supylabel("calibrated probability")
