"""
Train a calibrated network
==========================

Networks trained by cross-entropy until nothing is left to learn are too sure. This page trains the same network by
several losses, watches it, keeps the right epoch, and calibrates what is left.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics, plots
from calibrant.calibrators import Temperature
from calibrant.lab import data, networks
from calibrant.nn import Criterion
from calibrant.selection import refinement_nll

digits = data.digits(train=100, val=600)
x, y = digits.prepare(digits.train.inputs), digits.train.labels


def said(network, split):
    """What a network says of a split."""
    with torch.no_grad():
        return Predictions(network(digits.prepare(split.inputs)), split.labels)


# %%
# A loss is a word
# ----------------
#
# ``Criterion`` carries any loss into a training loop, by its name and settings. It takes what
# ``torch.nn.functional.cross_entropy`` takes, segmentation's shapes, ``weight`` and ``ignore_index`` included.


def trained(loss, epochs=80):
    """Train, and return the network with what it said of the validation set in every epoch."""
    torch.manual_seed(0)
    network = networks.mlp(10)
    criterion, step = Criterion(loss), torch.optim.Adam(network.parameters(), 0.003)
    history = []
    for epoch in range(epochs):
        for rows in torch.randperm(len(y)).split(50):
            step.zero_grad()
            criterion(network(x[rows]), y[rows]).backward()
            step.step()
        history.append(said(network, digits.val))
        criterion.after_epoch(epoch, history[-1])  # losses with a state, such as AdaFocal, learn from it
    return network, history


names = ("cross_entropy", "cross_entropy(smoothing=0.05)", "brier", "focal(gamma=3)", "AdaFocal", "mmce")
found = {name: trained(name) for name in names}

# %%
# Watch
# -----
#
# Validation NLL is least early, and rises again as confidence runs away. With label smoothing the network stays less
# sure than it is right; with focal loss it comes close.

figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.8))
lines = {name: [float(metrics.nll(p)) for p in history] for name, (_, history) in found.items()}
plots.curves(lines, ax=left, ylabel="validation NLL")
lines = {name: [float(metrics.signed_gap(p)) for p in history] for name, (_, history) in found.items()}
plots.curves(lines, ax=right, ylabel="confidence minus accuracy")

# %%
# Judge
# -----
#
# On the test set, before and after a temperature that was fitted to the validation set. After it little is left
# between the losses, as the papers find; and with so few examples most differences are within the noise floor.

for name, (network, history) in found.items():
    test = said(network, digits.test)
    after = test.apply(Temperature.fit(history[-1]))
    errors = [f"{100 * float(metrics.ece(p)):5.1f} %" for p in (test, after)]
    print(f"{name:30} accuracy {100 * float(metrics.accuracy(test)):.1f} %, ECE {errors[0]} -> {errors[1]}")

# %%
# Which epoch?
# ------------
#
# The epoch of least NLL is not the one that knows most: confidence, which a temperature repairs, hides what is learned.
# ``refinement_nll`` is the NLL with that put right (Berta et al. 2025).

history = found["cross_entropy"][1]
by_nll = min(range(len(history)), key=lambda i: float(metrics.nll(history[i])))
refined = [float(refinement_nll(p)) for p in history]
by_refinement = min(range(len(history)), key=refined.__getitem__)
print(f"least NLL in epoch {by_nll + 1}, least after a temperature in epoch {by_refinement + 1}")

# %%
# Inside Lightning or Transformers, ``calibrant.integrations`` has callbacks that log all this by name.
