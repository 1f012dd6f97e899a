"""
Train a calibrated network
==========================

Networks that are trained with cross-entropy until they overfit become overconfident. This tutorial trains the same
network with several losses, monitors it, selects an epoch, and calibrates the result.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics
from calibrant.calibrators import Temperature
from calibrant.lab import data, networks
from calibrant.nn import Criterion
from calibrant.nn.selection import refinement_nll
from calibrant.reports import plots

digits = data.digits(train=100, val=600)
x, y = digits.prepare(digits.train.inputs), digits.train.labels


def predict(network, split):
    """Return the predictions of a network on a split."""
    with torch.no_grad():
        return Predictions(network(digits.prepare(split.inputs)), split.labels)


# %%
# Losses by name
# --------------
#
# ``Criterion`` creates any loss from its name and settings. It accepts the same inputs as
# ``torch.nn.functional.cross_entropy``, including segmentation shapes, ``weight`` and ``ignore_index``.


def train(loss, epochs=80):
    """Train a network; return it with its validation predictions of every epoch."""
    torch.manual_seed(0)
    network = networks.mlp(10)
    criterion, step = Criterion(loss), torch.optim.Adam(network.parameters(), 0.003)
    history = []
    for epoch in range(epochs):
        for rows in torch.randperm(len(y)).split(50):
            step.zero_grad()
            criterion(network(x[rows]), y[rows]).backward()
            step.step()
        history.append(predict(network, digits.val))
        criterion.after_epoch(
            epoch, history[-1]
        )  # updates losses with a state, such as AdaFocal
    return network, history


names = (
    "cross_entropy",
    "cross_entropy(smoothing=0.05)",
    "brier",
    "focal(gamma=3)",
    "AdaFocal",
    "mmce",
)
results = {name: train(name) for name in names}

# %%
# Monitor training
# ----------------
#
# The validation NLL reaches its minimum early and rises again as the network becomes overconfident. With label
# smoothing the network stays underconfident; with focal loss it is nearly calibrated.

figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.8))
lines = {
    name: [float(metrics.nll(p)) for p in history]
    for name, (_, history) in results.items()
}
plots.curves(lines, ax=left, ylabel="validation NLL")
lines = {
    name: [float(metrics.signed_gap(p)) for p in history]
    for name, (_, history) in results.items()
}
plots.curves(lines, ax=right, ylabel="confidence minus accuracy")

# %%
# Evaluate
# --------
#
# Compare the test set before and after a temperature that was fitted on the validation set. After temperature scaling,
# the losses differ little, as in the papers. With so few examples, most differences are within the noise floor.

for name, (network, history) in results.items():
    test = predict(network, digits.test)
    after = test.apply(Temperature.fit(history[-1]))
    errors = [f"{100 * float(metrics.ece(p)):5.1f} %" for p in (test, after)]
    print(
        f"{name:30} accuracy {100 * float(metrics.accuracy(test)):.1f} %, "
        f"ECE {errors[0]} -> {errors[1]}"
    )

# %%
# Select an epoch
# ---------------
#
# The epoch with the lowest NLL is not the most informative one: overconfidence, which a temperature can correct, hides
# progress. ``refinement_nll`` is the NLL after cross-fitted temperature scaling (Berta et al. 2025).

history = results["cross_entropy"][1]
by_nll = min(range(len(history)), key=lambda i: float(metrics.nll(history[i])))
refined = [float(refinement_nll(p)) for p in history]
by_refinement = min(range(len(history)), key=refined.__getitem__)
print(
    f"lowest NLL in epoch {by_nll + 1}, "
    f"lowest refinement NLL in epoch {by_refinement + 1}"
)

# %%
# For Lightning and Transformers, ``calibrant.integrations`` provides callbacks that log these metrics.
