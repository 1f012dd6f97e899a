"""
Is the second model better?
===========================

Paired differences on the same examples. The difficulty of an example cancels out.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics
from calibrant.metrics import Interval
from calibrant.reports import plots

g = torch.Generator().manual_seed(0)
truth = 1.5 * torch.randn(2000, 5, generator=g)
labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
first = Predictions(1.6 * truth + 0.3 * torch.randn(2000, 5, generator=g), labels)
second = Predictions(1.2 * truth + 0.3 * torch.randn(2000, 5, generator=g), labels)

comparison = metrics.compare(
    first, second, names=["accuracy", "nll", "brier", "ece", "smooth_ece"]
)
rows = {
    f"{row.name}, p = {row.p_value:.2g}": Interval(row.difference, row.low, row.high)
    for row in comparison
}
figure, ax = pyplot.subplots(figsize=(6, 2.8))
plots.intervals(rows, ax=ax, xlabel="second minus first, 90 % interval")
