"""
Clustered examples
==================

Fifty patients with forty images each are not 2,000 independent examples. With clusters, intervals widen accordingly.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics
from calibrant.reports import plots

g = torch.Generator().manual_seed(0)
patient = torch.arange(50).repeat_interleave(40)
share = 0.5 + 0.5 * torch.rand(50, generator=g)  # accuracy for each patient
labels = (torch.rand(2000, generator=g) < share[patient]).long()
logits = torch.tensor([0.0, 1.1]).repeat(2000, 1)  # always predicts class 1 with 75 %

rows = {}
for name, clusters in (("independent rows", None), ("patients as clusters", patient)):
    p = Predictions(logits, labels, clusters=clusters)
    rows[f"accuracy, {name}"] = metrics.accuracy.interval(p)
figure, ax = pyplot.subplots(figsize=(6.5, 1.9))
plots.intervals(
    rows, ax=ax, reference=0.75, xlabel="90 % interval; dashed: true accuracy"
)
