"""
Metrics with intervals
======================

With 300 examples, every score is uncertain.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics
from calibrant.reports import plots

g = torch.Generator().manual_seed(0)
truth = 1.5 * torch.randn(300, 5, generator=g)
labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
p = Predictions(1.6 * truth, labels)

names = ("accuracy", "brier", "signed_gap", "debiased_l2")
rows = {
    metrics.metric_info(name).title: getattr(metrics, name).interval(p)
    for name in names
}
figure, ax = pyplot.subplots(figsize=(6, 2.6))
plots.intervals(rows, ax=ax, xlabel="value, with the 90 % interval")
