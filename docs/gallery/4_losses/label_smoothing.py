"""
Label smoothing
===============

Cross-entropy decreases without bound in the probability of the true class. With label smoothing it has a minimum below
1. Poly-1 only changes the slope.
"""

import torch
from matplotlib import pyplot

from calibrant import losses
from calibrant.reports import plots

s = torch.linspace(-2, 9, 300, dtype=torch.float64)
logits = torch.stack(
    [s, *[torch.zeros_like(s)] * 9], 1
)  # ten classes, margin s of the true class
labels = torch.zeros(300, dtype=torch.int64)
curves = {
    "cross-entropy": (s, losses.cross_entropy(logits, labels)),
    "smoothing 0.05": (s, losses.cross_entropy(logits, labels, smoothing=0.05)),
    "smoothing 0.1": (s, losses.cross_entropy(logits, labels, smoothing=0.1)),
    "poly-1": (s, losses.poly1(logits, labels)),
}
figure, ax = pyplot.subplots(figsize=(5.2, 3.4))
plots.curve_family(
    curves, ax=ax, xlabel="margin of the true class's logit", ylabel="loss, nats"
)
