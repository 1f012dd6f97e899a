"""
The focal map for three classes
===============================

Confidence after the focal map minus confidence after the nearest temperature.
"""

import itertools

import torch
from matplotlib import pyplot

from calibrant import theory
from calibrant.reports import plots

steps = [
    (a, b, 80 - a - b)
    for a, b in itertools.product(range(1, 79), repeat=2)
    if a + b < 80
]
points = torch.tensor(steps).double() / 80
t = theory.nearest_temperature(2.0, 3).temperature
top = points.argmax(1, keepdim=True)
gap = (
    (theory.focal_map(points.log(), gamma=2.0).exp() - (points.log() / t).softmax(1))
    .gather(1, top)
    .squeeze(1)
)

figure, ax = pyplot.subplots(figsize=(5, 3.8))
shades = plots.simplex_heat(
    points, gap.numpy(), ax=ax, limit=0.05, title=f"gamma 2 and T = {t:.3f}"
)
figure.colorbar(shades, ax=ax, shrink=0.8, label="difference of confidence")
