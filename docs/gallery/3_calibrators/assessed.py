"""
Compare calibrators
===================

``calibrant.assess`` fits calibrators on one set, evaluates them on another, and selects by cross-validation on the
first.
"""

import torch
from matplotlib import pyplot

import calibrant
from calibrant import Predictions

g = torch.Generator().manual_seed(0)
truth = 1.5 * torch.randn(4000, 4, generator=g)
labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
p = Predictions(1.8 * truth + torch.tensor([0.6, 0.0, 0.0, -0.6]), labels)
result = calibrant.assess(
    p[:1000], p[1000:], ["Identity", "Temperature", "Vector", "HistogramBinning"]
)

figure, axes = pyplot.subplots(1, 2, figsize=(8, 2.6), sharey=True)
for ax, metric in zip(axes, ("nll", "ece"), strict=True):
    values = {name: row[metric] for name, row in result.values.items()}
    ax.barh(
        list(values),
        list(values.values()),
        color=["#4269d0" if n == result.chosen_name else "#9ca3af" for n in values],
    )
    ax.set_xlabel(metric)
axes[0].invert_yaxis()
axes[0].set_title(f"selected: {result.chosen_name}", fontsize=10)
