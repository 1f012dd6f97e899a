"""
Segmentation
============

Where the network is confident, where it is wrong, and the calibration error before and after one temperature for all
pixels.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics
from calibrant.calibrators import Temperature
from calibrant.reports import plots

g = torch.Generator().manual_seed(0)
coarse = torch.randn(8, 3, 8, 8, generator=g)
field = 2 * torch.nn.functional.interpolate(coarse, size=(64, 64), mode="bicubic")
flat = field.movedim(1, -1).reshape(-1, 3).softmax(1)
labels = torch.multinomial(flat, 1, generator=g).view(8, 64, 64)
val, test = (
    Predictions(2.5 * field[:4], labels[:4]),
    Predictions(2.5 * field[4:], labels[4:]),
)
temperature = Temperature.fit(val)

figure, axes = pyplot.subplots(1, 4, figsize=(12, 3.2))
confidence = (2.5 * field[4]).softmax(0).amax(0).numpy()
axes[0].imshow(confidence, vmin=1 / 3, vmax=1)
axes[0].set_title("confidence")
wrong = ((2.5 * field[4]).argmax(0) != labels[4]).numpy()
axes[1].imshow(wrong, cmap="gray_r")
axes[1].set_title("wrong pixels")
for ax in axes[:2]:
    ax.axis("off")
plots.reliability(
    test, ax=axes[2], title=f"before: ECE {100 * float(metrics.ece(test)):.1f} %"
)
after = test.apply(temperature)
plots.reliability(
    after, ax=axes[3], title=f"after: ECE {100 * float(metrics.ece(after)):.1f} %"
)
