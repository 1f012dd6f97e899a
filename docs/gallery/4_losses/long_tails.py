"""
Losses for long tails
=====================

The loss of each class at equal logits, with 10 to 5,000 training examples per class.
"""

import torch
from matplotlib import pyplot

from calibrant import losses
from calibrant.reports import plots

counts = (5000, 1500, 450, 130, 40, 10)
labels = torch.arange(6)
logits = torch.zeros(6, 6, dtype=torch.float64)
shown = {
    "cross-entropy": losses.cross_entropy(logits, labels),
    "class-balanced": losses.class_balanced(logits, labels, counts=counts),
    "logit-adjusted": losses.logit_adjusted(logits, labels, counts=counts),
}
figure, ax = pyplot.subplots(figsize=(5.2, 3.4))
lines = {name: values.tolist() for name, values in shown.items()}
plots.curves(
    lines,
    ax=ax,
    x=[str(n) for n in counts],
    xlabel="training examples of the class",
    ylabel="loss at equal logits",
)
