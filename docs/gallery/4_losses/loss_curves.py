"""
Losses as functions of the true class's probability
===================================================

For two classes. Focal loss reduces the weight of predictions that are nearly right; inverse focal loss increases it.
"""

import torch
from matplotlib import pyplot

from calibrant import losses
from calibrant.reports import plots

p = torch.linspace(0.01, 0.99, 200, dtype=torch.float64)
logits, labels = torch.stack([p, 1 - p], 1).log(), torch.zeros(200, dtype=torch.int64)
shown = {
    "inverse focal, gamma 2": losses.inverse_focal(logits, labels, gamma=2.0),
    "cross-entropy": losses.cross_entropy(logits, labels),
    "Brier": losses.brier(logits, labels),
    "focal, gamma 1": losses.focal(logits, labels, gamma=1.0),
    "focal, gamma 3": losses.focal(logits, labels, gamma=3.0),
    "dual focal, gamma 3": losses.dual_focal(logits, labels, gamma=3.0),
}
figure, ax = pyplot.subplots(figsize=(5.2, 3.6))
curves = {name: (p, values) for name, values in shown.items()}
plots.curve_family(
    curves, ax=ax, xlabel="probability of the true class", ylabel="loss, nats"
)
ax.set(xlim=(0, 1), ylim=(0, 4))
