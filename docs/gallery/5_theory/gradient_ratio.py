"""
Gradient of focal loss relative to cross-entropy
================================================

Above 1 the gradient of focal loss is larger than that of cross-entropy, below 1 it is smaller. Dots mark the threshold.
"""

import torch
from matplotlib import pyplot

from calibrant import theory
from calibrant.reports import plots

p = torch.linspace(0, 1, 400, dtype=torch.float64)
figure, ax = pyplot.subplots(figsize=(5.2, 3.6))
curves = {"_one": (p, torch.ones_like(p))}
curves |= {
    f"gamma {gamma:g}": (p, theory.gradient_ratio(p, gamma))
    for gamma in (1.0, 2.0, 3.0, 5.0)
}
plots.curve_family(
    curves, ax=ax, xlabel="probability of the true class", ylabel="gradient ratio"
)
ax.plot(
    [float(theory.confidence_threshold(gamma)) for gamma in (1.0, 2.0, 3.0, 5.0)],
    [1] * 4,
    "o",
    color="#ff725c",
)
