"""
More data than memory
=====================

A summary of a few megabytes takes in batch after batch; its numbers are those of all examples at once.
"""

import torch
from matplotlib import pyplot

from calibrant import metrics, plots

g = torch.Generator().manual_seed(0)
summary, seen, found = metrics.Summary.empty(), [], []
for _ in range(20):
    truth = 1.5 * torch.randn(1000, 10, generator=g)
    summary = summary.add(1.3 * truth, torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1))
    seen.append(len(summary))
    found.append((summary["ece"], summary["noise_floor"]))

figure, ax = pyplot.subplots(figsize=(5, 3.2))
ece, floor = zip(*found, strict=True)
plots.curves({"ECE": ece, "noise floor": floor}, ax=ax, x=seen, xlabel="examples seen", ylabel="error")
