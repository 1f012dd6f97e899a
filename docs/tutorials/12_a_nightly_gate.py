"""
A nightly gate
==============

Each night a new model is trained. Before it replaces the old one, it must be good enough, it must not be worse, and the
data of the day must be like those of the test. Three commands, or three functions, with exit statuses for continuous
integration: ``calibrant check``, ``calibrant compare`` and ``calibrant drift``.
"""

import numpy as np
import torch
from matplotlib import pyplot

from calibrant import Predictions, check, compare, drift
from calibrant.reports import plots


def predict(z, noise, seed, scale=1.0):
    """Return the logits of a model: the true ones with noise of its own."""
    g = torch.Generator().manual_seed(seed)
    return scale * (z + noise * torch.randn(z.shape, generator=g, dtype=torch.float64))


g = torch.Generator().manual_seed(0)
true_logits = 2 * torch.randn(4000, 4, generator=g, dtype=torch.float64)
labels = torch.multinomial(true_logits.softmax(1), 1, generator=g).squeeze(1)
site = np.random.default_rng(0).choice(["north", "south", "west"], 4000)
old = Predictions(predict(true_logits, 0.3, seed=1), labels, groups=site)
good = Predictions(predict(true_logits, 0.3, seed=2), labels, groups=site)
overconfident = Predictions(
    predict(true_logits, 0.3, seed=3, scale=1.6), labels, groups=site
)

# %%
# Good enough?
# ------------
#
# Requirements stand in the repository. Each holds, is broken, or has too little data; "holds" and "broken" are each
# wrong in at most 5 % of all nights. ``calibrant check new.csv --requirements gate.toml`` has the exit status 0, 3
# or 4.

requirements = ["ece < 0.06", "accuracy > 60%", "nll < old + 0.01"]
for name, model in (("good", good), ("overconfident", overconfident)):
    result = check(model, requirements, old=old)
    print(f"{name}: exit status {result.exit_status}")
    print(result)

# %%
# The reason is in the picture: the second model is right less often than it says.

figure, axes = pyplot.subplots(1, 2, figsize=(7.6, 3.8))
for ax, (name, model) in zip(axes, (("good", good), ("overconfident", overconfident))):
    plots.reliability(model, ax=ax, title=name)

# %%
# In every group too. A group of 1,300 rows cannot show an error below 3 %: that is no failure, but too little data,
# with the number of rows that a calibrated model would need.

print(check(good, "ece < 0.03", by_group=True))

# %%
# A small test set cannot pass by luck:

print(check(good[:100], requirements, old=old[:100]))

# %%
# What has changed?
# -----------------
#
# ``calibrant compare old.csv new.csv`` tests everything at once, with p-values that are adjusted for their number.

print(compare(old, good))
print(compare(old, overconfident))

# %%
# Is today like the test?
# -----------------------
#
# The data of the day have no labels yet. ``calibrant drift test.csv today.csv`` tests the predictions, and estimates
# the accuracy that the labels will show.

harder = 1.2 * torch.randn(3000, 4, generator=g, dtype=torch.float64)
later_labels = torch.multinomial(harder.softmax(1), 1, generator=g).squeeze(1)
today = Predictions(predict(harder, 0.3, seed=4), later_labels)
result = drift(good, today)  # which does not use the labels
print(result)
print(f"the labels will show an accuracy of {float(today.correct.mean()):.1%}")
