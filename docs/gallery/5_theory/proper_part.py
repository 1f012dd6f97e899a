"""
The proper part of focal loss
=============================

Focal loss of a prediction q is a proper loss of the mapped prediction. The figure compares that loss with focal loss
and cross-entropy.
"""

import torch
from matplotlib import pyplot

from calibrant import losses, theory
from calibrant.reports import plots

p = torch.linspace(0.01, 0.99, 200, dtype=torch.float64)
z, y = torch.stack([p, 1 - p], 1).log(), torch.zeros(200, dtype=torch.int64)
curves = {
    "cross-entropy": (p, losses.cross_entropy(z, y)),
    "focal, gamma 3": (p, losses.focal(z, y, gamma=3.0)),
    "its proper part": (p, theory.proper_part(z, y, gamma=3.0)),
}
figure, ax = pyplot.subplots(figsize=(5.2, 3.4))
plots.curve_family(
    curves, ax=ax, xlabel="probability of the true class", ylabel="loss, nats"
)
ax.set(xlim=(0, 1), ylim=(0, 4))
