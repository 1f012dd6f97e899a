"""
Which classes are worst
=======================

The calibration error of every class's probability, worst first, beside what is said and what happens.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics

g = torch.Generator().manual_seed(0)
truth = 1.5 * torch.randn(8000, 8, generator=g)
labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
p = Predictions(truth + torch.linspace(-0.8, 0.8, 8)[torch.randperm(8, generator=g)], labels)

found = metrics.tables.classes(p)
order = found.worst_first
figure, ax = pyplot.subplots(figsize=(5.5, 3.4))
ax.bar(range(8), (100 * found.forecast[order]).tolist(), width=-0.4, align="edge", label="said")
ax.bar(range(8), (100 * found.frequency[order]).tolist(), width=0.4, align="edge", label="happened")
ax.set_xticks(range(8), [f"class {int(i)}\n{100 * float(found.ece[i]):.1f}" for i in order], fontsize=8)
ax.set(title="share of each class, its calibration error below (%)", ylabel="share (%)")
ax.legend(frameon=False)
