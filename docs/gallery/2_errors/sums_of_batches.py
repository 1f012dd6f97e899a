"""
Summaries of batches
====================

A summary of a few megabytes accumulates batches. It gives the same numbers as all examples at once.
"""

import torch
from matplotlib import pyplot

from calibrant import metrics
from calibrant.reports import plots

g = torch.Generator().manual_seed(0)
summary, counts, values = metrics.Summary.empty(), [], []
for _ in range(20):
    truth = 1.5 * torch.randn(1000, 10, generator=g)
    summary = summary.add(
        1.3 * truth, torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
    )
    counts.append(len(summary))
    values.append((summary["ece"], summary["noise_floor"]))

figure, ax = pyplot.subplots(figsize=(5, 3.2))
ece, floor = zip(*values, strict=True)
plots.curves(
    {"ECE": ece, "noise floor": floor},
    ax=ax,
    x=counts,
    xlabel="examples",
    ylabel="error",
)
