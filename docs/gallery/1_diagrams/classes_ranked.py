"""
Classes ranked by calibration error
===================================

The calibration error of each class, worst first, beside its mean probability and its frequency.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics

g = torch.Generator().manual_seed(0)
truth = 1.5 * torch.randn(8000, 8, generator=g)
labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
p = Predictions(
    truth + torch.linspace(-0.8, 0.8, 8)[torch.randperm(8, generator=g)], labels
)

table = metrics.tables.classes(p)
order = table.worst_first
figure, ax = pyplot.subplots(figsize=(5.5, 3.4))
ax.bar(
    range(8),
    (100 * table.forecast[order]).tolist(),
    width=-0.4,
    align="edge",
    label="mean probability",
)
ax.bar(
    range(8),
    (100 * table.frequency[order]).tolist(),
    width=0.4,
    align="edge",
    label="frequency",
)
ax.set_xticks(
    range(8),
    [f"class {int(i)}\n{100 * float(table.ece[i]):.1f}" for i in order],
    fontsize=8,
)
ax.set(title="classes, with their calibration error (%)", ylabel="share (%)")
ax.legend(frameon=False)
