"""
Minimizers of expected losses
=============================

The expected loss under the true distribution (0.55, 0.3, 0.15), marked by a cross. A proper loss is minimal at the
cross; focal loss is minimal closer to the center.
"""

import itertools

import numpy as np
import torch
from matplotlib import pyplot

from calibrant import losses, theory
from calibrant.reports import plots

steps = [
    (a, b, 60 - a - b)
    for a, b in itertools.product(range(1, 59), repeat=2)
    if a + b < 60
]
points = torch.tensor(steps).double() / 60
truth = torch.tensor([[0.55, 0.30, 0.15]], dtype=torch.float64)

figure, axes = pyplot.subplots(1, 3, figsize=(10, 3.3))
shown = {
    "cross-entropy": losses.cross_entropy,
    "Brier": losses.brier,
    "focal, gamma 3": lambda z, y: losses.focal(z, y, gamma=3.0),
}
for ax, (name, loss) in zip(axes, shown.items(), strict=True):
    risk = theory.conditional_risk(
        points.log(), truth.log().expand_as(points), loss=loss
    ).numpy()
    levels = np.quantile(risk, (0.03, 0.12, 0.25)).tolist()
    plots.simplex_contours(
        points, risk, ax=ax, levels=levels, mark=(0.55, 0.30, 0.15), title=name
    )
