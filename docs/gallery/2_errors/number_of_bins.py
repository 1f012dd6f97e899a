"""
ECE and the number of bins
==========================

ECE depends on its bins. Smooth ECE has no bins, and the debiased error hardly depends on them.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics
from calibrant.reports import plots

g = torch.Generator().manual_seed(0)
truth = 1.5 * torch.randn(1500, 10, generator=g)
labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
p = Predictions(1.3 * truth, labels)

bins = [2, 5, 10, 15, 20, 30, 50, 75, 100]
lines = {
    "ECE": [float(metrics.ece(p, bins=b)) for b in bins],
    "noise floor of ECE": [float(metrics.noise_floor(p, bins=b)) for b in bins],
    "debiased, norm 2": [float(metrics.debiased_l2(p, bins=b)) for b in bins],
    "smooth ECE": [float(metrics.smooth_ece(p))] * len(bins),
}
figure, ax = pyplot.subplots(figsize=(5, 3.4))
plots.curves(lines, ax=ax, x=bins, xlabel="bins", ylabel="error")
