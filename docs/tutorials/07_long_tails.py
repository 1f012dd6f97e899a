"""
Long tails
==========

Some classes have two hundred training examples, others five. Losses for long tails trade honest probabilities for
balanced accuracy; a calibrator gives them back, for whatever frequencies matter.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, calibrators, losses, metrics, plots
from calibrant.lab import data, networks
from calibrant.nn import Criterion

digits = data.digits(train=1100, val=300)
wanted = torch.tensor([100, 70, 50, 35, 25, 18, 13, 9, 7, 5])
keep = torch.cat([(digits.train.labels == k).nonzero()[: wanted[k], 0] for k in range(10)])
x, y = digits.prepare(digits.train.inputs[keep]), digits.train.labels[keep]
counts = torch.bincount(y, minlength=10)
print(counts)

# %%
# Three losses
# ------------
#
# ``for_counts`` tells a loss how often training has each class; studies do so by themselves.


def trained(loss):
    """Return what a network says of the balanced validation and test sets."""
    torch.manual_seed(0)
    network = networks.mlp(10, hidden=(64,))
    criterion, step = Criterion(losses.for_counts(loss, counts)), torch.optim.Adam(network.parameters(), 0.01)
    for _ in range(60):
        step.zero_grad()
        criterion(network(x), y).backward()
        step.step()
    with torch.no_grad():
        return [Predictions(network(digits.prepare(s.inputs)), s.labels) for s in (digits.val, digits.test)]


found = {f.__name__: trained(f) for f in (losses.cross_entropy, losses.class_balanced, losses.logit_adjusted)}
for name, (_, test) in found.items():
    print(f"{name:15} accuracy {100 * float(metrics.accuracy(test)):.1f} %, NLL {float(metrics.nll(test)):.3f}")

# %%
# Logit adjustment says what would be true if all classes were equally frequent, which on this balanced test set they
# are. How often each class is predicted, of 10 % that it should be:

lines = {name: metrics.tables.classes(test).forecast.tolist() for name, (_, test) in found.items()}
figure, ax = pyplot.subplots(figsize=(5.6, 3.4))
plots.curves(
    lines, ax=ax, x=[str(int(n)) for n in counts], xlabel="training examples of the class", ylabel="share said"
)
ax.axhline(0.1, color="gray", linewidth=1)

# %%
# Repair
# ------
#
# What is off is a bias per class, which one temperature cannot mend: ``BiasCorrectedTemperature`` and ``Vector`` can.
# Fit on data of the frequencies that matter; where only their shares are known, weights do it: an example of class k
# counts as often as its class is wanted.

val, test = found["cross_entropy"]
for name in ("Identity", "Temperature", "BiasCorrectedTemperature", "StructuredVector"):
    after = test.apply(calibrators.fit(name, val))
    nll, by_class = float(metrics.nll(after)), 100 * float(metrics.classwise_ece(after))
    print(f"{name:26} NLL {nll:.3f}, class-wise ECE {by_class:.2f} %")

# %%
# And in a world where class 9 is ten times as frequent:

weights = torch.where(test.labels == 9, 10.0, 1.0)
there = Predictions(test.logits, test.labels, weights)
wanted_there = Predictions(val.logits, val.labels, torch.where(val.labels == 9, 10.0, 1.0))
for name, fitted_on in (("fitted on the old frequencies", val), ("fitted on the new", wanted_there)):
    after = there.apply(calibrators.fit("BiasCorrectedTemperature", fitted_on))
    print(f"{name:30} NLL {float(metrics.nll(after)):.3f}")
