"""
Rows that depend on each other
==============================

Fifty patients with forty images each are not 2,000 independent examples. Told of the clusters, intervals grow as they
must.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics, plots

g = torch.Generator().manual_seed(0)
patient = torch.arange(50).repeat_interleave(40)
truth = torch.randn(2000, 2, generator=g) + 1.2 * torch.randn(50, 2, generator=g)[patient]
luck = torch.rand(50, generator=g)[patient] * 0.7 + 0.3 * torch.rand(2000, generator=g)  # shared within a patient
labels = (luck < truth.softmax(1)[:, 1]).long()

rows = {}
for name, clusters in (("rows taken as independent", None), ("patients as clusters", patient)):
    p = Predictions(truth, labels, clusters=clusters)
    rows[f"accuracy, {name}"] = metrics.accuracy.interval(p)
figure, ax = pyplot.subplots(figsize=(6.5, 1.9))
plots.intervals(rows, ax=ax, reference=float(metrics.accuracy(truth, labels)), xlabel="90 % interval")
