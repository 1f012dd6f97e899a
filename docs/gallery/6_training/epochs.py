"""
Select an epoch
===============

A small network overfits: its NLL rises because it becomes overconfident. The NLL after temperature scaling does not
rise (Berta et al. 2025).
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics
from calibrant.lab import data, networks
from calibrant.nn import Criterion
from calibrant.nn.selection import refinement_nll
from calibrant.reports import plots

digits = data.digits(train=100, val=400)
x, y = digits.prepare(digits.train.inputs), digits.train.labels
torch.manual_seed(0)
network = networks.mlp(10, hidden=(128, 128))
criterion, step = (
    Criterion("cross_entropy"),
    torch.optim.Adam(network.parameters(), 0.003),
)
nll, refined = [], []
for _ in range(12):
    for _ in range(8):
        step.zero_grad()
        criterion(network(x), y).backward()
        step.step()
    with torch.no_grad():
        val = Predictions(network(digits.prepare(digits.val.inputs)), digits.val.labels)
    nll.append(float(metrics.nll(val)))
    refined.append(float(refinement_nll(val, folds=1)))
figure, ax = pyplot.subplots(figsize=(5.2, 3.4))
plots.curves(
    {"NLL": nll, "NLL after temperature scaling": refined},
    ax=ax,
    x=range(8, 97, 8),
    ylabel="validation",
)
