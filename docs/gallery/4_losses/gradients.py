"""
Gradients of losses
===================

The magnitude of the gradient with respect to the logit of the true class, for two classes, by automatic
differentiation.
"""

import torch
from matplotlib import pyplot

from calibrant import losses
from calibrant.reports import plots

p = torch.linspace(0.005, 0.995, 200, dtype=torch.float64)
labels = torch.zeros(200, dtype=torch.int64)
curves = {}
for name, loss in {
    "cross-entropy": losses.cross_entropy,
    "Brier": losses.brier,
    "focal, gamma 1": lambda z, y: losses.focal(z, y, gamma=1.0),
    "focal, gamma 3": lambda z, y: losses.focal(z, y, gamma=3.0),
    "FLSD": losses.flsd,
}.items():
    logits = torch.stack([p, 1 - p], 1).log().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(logits, labels).sum(), logits)
    curves[name] = (p, -gradient[:, 0])
figure, ax = pyplot.subplots(figsize=(5.2, 3.6))
plots.curve_family(
    curves, ax=ax, xlabel="probability of the true class", ylabel="negative gradient"
)
ax.set(xlim=(0, 1), ylim=(0, None))
