"""
Calibrators as vector fields
============================

Three classes as a triangle. Temperature scaling moves every prediction toward the center; vector scaling moves it away
from an overpredicted class.
"""

import itertools

import torch
from matplotlib import pyplot

from calibrant import Predictions, calibrators
from calibrant.reports import plots

g = torch.Generator().manual_seed(0)
truth = 1.5 * torch.randn(3000, 3, generator=g)
labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
p = Predictions(2 * truth + torch.tensor([1.5, 0.0, 0.0]), labels)

steps = [
    (a, b, 12 - a - b)
    for a, b in itertools.product(range(1, 11), repeat=2)
    if a + b < 12
]
start = torch.tensor(steps).double() / 12
figure, axes = pyplot.subplots(1, 2, figsize=(8, 3.8))
for ax, name in zip(axes, ("Temperature", "Vector"), strict=True):
    end = calibrators.fit(name, p)(start.log()).softmax(1)
    plots.simplex_arrows(start, end, ax=ax, title=name)
