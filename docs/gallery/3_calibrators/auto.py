"""
Weights of Auto
===============

The weight of each family in the stack, based on its out-of-fold likelihood.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions
from calibrant.calibrators import Auto

g = torch.Generator().manual_seed(0)
truth = 1.5 * torch.randn(800, 4, generator=g)
labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
auto = Auto.fit(
    Predictions(1.8 * truth + torch.tensor([0.8, 0.0, 0.0, -0.8]), labels), folds=3
)

figure, ax = pyplot.subplots(figsize=(7, 3.4))
names = [
    f"{member.name}\nheld-out NLL {member.held_out:.4f}" for member in auto.candidates
]
ax.barh(names, [member.weight for member in auto.candidates])
ax.invert_yaxis()
ax.tick_params(axis="y", labelsize=7)
ax.set(xlabel="weight in the stack", xlim=(0, 1))
