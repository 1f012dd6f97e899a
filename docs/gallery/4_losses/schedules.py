"""
Schedules of gamma
==================

The gamma of a schedule over the epochs, and the gamma of FLSD over the probability of the true class, with the curve
that FLSD approximates.
"""

import torch
from matplotlib import pyplot

from calibrant import theory
from calibrant.losses import Scheduled
from calibrant.reports import plots

figure, (left, right) = pyplot.subplots(1, 2, figsize=(8.5, 3.2))
gammas = [Scheduled(epoch, epochs=350).gamma for epoch in range(350)]
plots.curves({"Scheduled": gammas}, ax=left, ylabel="gamma")

p = torch.linspace(0.01, 0.99, 300, dtype=torch.float64)
steps = torch.where(p < 0.2, 5.0, 3.0)
smooth = theory.sample_dependent_gamma(p)
plots.curve_family(
    {"FLSD": (p, steps), "exact curve": (p, smooth)},
    ax=right,
    xlabel="probability of the true class",
    ylabel="",
)
