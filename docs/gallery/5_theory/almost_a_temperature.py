"""
The focal map is almost a temperature
=====================================

For two classes, the focal map lies between two temperatures. The exact bounds are much tighter than the published
bound.
"""

import numpy as np
from matplotlib import pyplot

from calibrant import theory
from calibrant.reports import plots

gammas = np.linspace(0.1, 8, 30)
bounds = [theory.temperature_bounds(float(gamma)) for gamma in gammas]
curves = {
    "published": (
        gammas,
        [b.paper * (gamma + 1) for b, gamma in zip(bounds, gammas, strict=True)],
    ),
    "exact, upper": (
        gammas,
        [b.mildest * (gamma + 1) for b, gamma in zip(bounds, gammas, strict=True)],
    ),
    "exact, lower": (
        gammas,
        [b.sharpest * (gamma + 1) for b, gamma in zip(bounds, gammas, strict=True)],
    ),
}
figure, ax = pyplot.subplots(figsize=(5.2, 3.4))
plots.curve_family(
    curves, ax=ax, xlabel="gamma", ylabel="temperature times (gamma + 1)"
)
