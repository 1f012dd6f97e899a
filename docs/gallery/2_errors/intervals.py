"""
Numbers with their intervals
============================

A score without an interval is half a result: 300 examples leave this much open.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics, plots

g = torch.Generator().manual_seed(0)
truth = 1.5 * torch.randn(300, 5, generator=g)
labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
p = Predictions(1.6 * truth, labels)

names = ("accuracy", "brier", "signed_gap", "debiased_l2")
rows = {getattr(metrics, name).about.title: getattr(metrics, name).interval(p) for name in names}
figure, ax = pyplot.subplots(figsize=(6, 2.6))
plots.intervals(rows, ax=ax, xlabel="value, with the 90 % interval")
