"""
Long tails
==========

Some classes have a hundred training examples, others five. Losses for long tails give up calibration for balanced
accuracy. A calibrator restores it, for the class frequencies that you need.
"""

import numpy as np
import torch
from matplotlib import pyplot

from calibrant import Predictions, calibrators, losses, metrics
from calibrant.lab import data, networks
from calibrant.nn import Criterion
from calibrant.reports import plots

digits = data.digits(train=1100, val=300)
wanted = torch.tensor([100, 70, 50, 35, 25, 18, 13, 9, 7, 5])
keep = torch.cat(
    [(digits.train.labels == k).nonzero()[: wanted[k], 0] for k in range(10)]
)
x, y = digits.prepare(digits.train.inputs[keep]), digits.train.labels[keep]
counts = torch.bincount(y, minlength=10)
print(counts)

# %%
# Three losses
# ------------
#
# ``for_counts`` passes the class counts of the training set to a loss. Studies do this automatically.


def train(loss):
    """Return the predictions of a network on the balanced validation and test sets."""
    torch.manual_seed(0)
    network = networks.mlp(10, hidden=(64,))
    criterion, step = (
        Criterion(losses.for_counts(loss, counts)),
        torch.optim.Adam(network.parameters(), 0.01),
    )
    for _ in range(60):
        step.zero_grad()
        criterion(network(x), y).backward()
        step.step()
    with torch.no_grad():
        return [
            Predictions(network(digits.prepare(s.inputs)), s.labels)
            for s in (digits.val, digits.test)
        ]


results = {
    f.__name__: train(f)
    for f in (losses.cross_entropy, losses.class_balanced, losses.logit_adjusted)
}
for name, (_, test) in results.items():
    print(
        f"{name:15} accuracy {100 * float(metrics.accuracy(test)):.1f} %, "
        f"NLL {float(metrics.nll(test)):.3f}"
    )

# %%
# Logit adjustment predicts probabilities for equally frequent classes, as in this balanced test set. The figure shows
# the mean probability of each class, which should be 10 %:

lines = {
    name: metrics.tables.classes(test).forecast.tolist()
    for name, (_, test) in results.items()
}
figure, ax = pyplot.subplots(figsize=(5.6, 3.4))
plots.curves(
    lines,
    ax=ax,
    x=[str(int(n)) for n in counts],
    xlabel="training examples of the class",
    ylabel="mean probability",
)
ax.axhline(0.1, color="gray", linewidth=1)

# %%
# Calibrate
# ---------
#
# The error is a bias per class. A temperature cannot correct it; ``BiasCorrectedTemperature`` and ``StructuredVector``
# can. Fit on data with the class frequencies of your application. If you only know these frequencies, weight the
# examples.

val, test = results["cross_entropy"]
for name in ("Identity", "Temperature", "BiasCorrectedTemperature", "StructuredVector"):
    after = test.apply(calibrators.fit(name, val))
    nll, by_class = float(metrics.nll(after)), 100 * float(metrics.classwise_ece(after))
    print(f"{name:26} NLL {nll:.3f}, class-wise ECE {by_class:.2f} %")

# %%
# An application in which class 9 is ten times as frequent:

weights = np.where(test.labels == 9, 10.0, 1.0)
test_shifted = Predictions(test.logits, test.labels, weights)
val_shifted = Predictions(val.logits, val.labels, np.where(val.labels == 9, 10.0, 1.0))
for name, fitted_on in (
    ("fitted on the old frequencies", val),
    ("fitted on the new frequencies", val_shifted),
):
    after = test_shifted.apply(calibrators.fit("BiasCorrectedTemperature", fitted_on))
    print(f"{name:30} NLL {float(metrics.nll(after)):.3f}")
