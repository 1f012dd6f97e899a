"""
The focal map for two classes
=============================

The focal map turns the minimizer of focal loss into the true probability (Komisarenko & Kull 2024).
"""

import torch
from matplotlib import pyplot

from calibrant import theory
from calibrant.reports import plots

q = torch.linspace(0.005, 0.995, 300, dtype=torch.float64)
z = torch.stack([q, 1 - q], 1).log()
curves = {"_identity": (q, q)}
for gamma in (-0.5, 1.0, 3.0, 5.0):
    curves[f"gamma {gamma:g}"] = (q, theory.focal_map(z, gamma=gamma).exp()[:, 0])
figure, ax = pyplot.subplots(figsize=(4.4, 4.2))
plots.curve_family(
    curves, ax=ax, xlabel="predicted probability", ylabel="mapped probability"
)
ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
