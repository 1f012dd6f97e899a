"""
How many examples does a calibrator need?
=========================================

NLL on 5,000 held-out examples. With few examples one parameter is best; with many, flexible calibrators pay off.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, calibrators, metrics
from calibrant.reports import plots

g = torch.Generator().manual_seed(0)
truth = 1.5 * torch.randn(8000, 5, generator=g)
labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
p = Predictions(1.5 * truth + torch.tensor([1.0, 0.0, 0.0, 0.0, -1.0]), labels)
test = p[3000:]

sizes = [50, 100, 200, 500, 1000, 3000]
names = ("Temperature", "Vector", "StructuredMatrix", "Isotonic")
lines = {
    name: [float(metrics.nll(test.apply(calibrators.fit(name, p[:n])))) for n in sizes]
    for name in names
}
figure, ax = pyplot.subplots(figsize=(5, 3.4))
plots.curves(lines, ax=ax, x=sizes, xlabel="fitting examples", ylabel="NLL")
ax.set(xscale="log", ylim=(1.1, 1.7))
