"""
Two losses compared
===================

The same network, trained on a hundred digits with cross-entropy and with focal loss.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics
from calibrant.lab import data, networks
from calibrant.nn import Criterion
from calibrant.reports import plots

digits = data.digits(train=100, val=100)
x, y = digits.prepare(digits.train.inputs), digits.train.labels
figure, axes = pyplot.subplots(1, 2, figsize=(7.5, 3.8))
for ax, loss in zip(axes, ("cross_entropy", "focal(gamma=3)"), strict=True):
    torch.manual_seed(0)
    network = networks.mlp(10, hidden=(64,))
    criterion, step = Criterion(loss), torch.optim.Adam(network.parameters(), 0.01)
    for _ in range(40):
        step.zero_grad()
        criterion(network(x), y).backward()
        step.step()
    with torch.no_grad():
        test = Predictions(
            network(digits.prepare(digits.test.inputs)), digits.test.labels
        )
    plots.reliability(
        test, ax=ax, title=f"{loss}: ECE {100 * float(metrics.ece(test)):.1f} %"
    )
