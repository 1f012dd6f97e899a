"""
Before and after temperature scaling
====================================

A single parameter, fitted on 1,000 examples and evaluated on 4,000 others.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics
from calibrant.calibrators import Temperature
from calibrant.reports import plots

g = torch.Generator().manual_seed(0)
truth = 1.5 * torch.randn(5000, 10, generator=g)
labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
p = Predictions(2.2 * truth, labels)
val, test = p[:1000], p[1000:]

temperature = Temperature.fit(val)
after = test.apply(temperature)

figure, axes = pyplot.subplots(1, 2, figsize=(7.5, 3.8))
plots.reliability(
    test, ax=axes[0], title=f"as trained: ECE {100 * float(metrics.ece(test)):.1f} %"
)
t = float(temperature.temperature)
plots.reliability(
    after,
    ax=axes[1],
    title=f"after T = {t:.2f}: ECE {100 * float(metrics.ece(after)):.1f} %",
)
