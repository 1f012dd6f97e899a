"""
Segmentation
============

Segmentation predicts a class for every pixel. Pixels of one image depend on each other, some have no label, and there
are millions of them. This tutorial simulates images with known true probabilities.
"""

import tempfile
from pathlib import Path

import torch
from matplotlib import pyplot

import calibrant
from calibrant import Predictions, metrics
from calibrant.calibrators import Temperature
from calibrant.nn import CalibratedNetwork
from calibrant.reports import plots

g = torch.Generator().manual_seed(0)
coarse = torch.randn(32, 4, 6, 6, generator=g)
field = 2.5 * torch.nn.functional.interpolate(
    coarse, size=(48, 48), mode="bicubic"
)  # the true logits
flat = field.movedim(1, -1).reshape(-1, 4).softmax(1)
labels = torch.multinomial(flat, 1, generator=g).view(32, 48, 48)
labels[:, :3] = 255  # an unlabeled border
network = torch.nn.Conv2d(
    4, 4, 1, bias=False
)  # your network; this one doubles its input and is overconfident
network.weight.data = 2 * torch.eye(4)[..., None, None]

# %%
# Collect
# -------
#
# Every pixel becomes a row and every image a cluster. Pixels labeled 255 are ignored.

batches = [(field[i : i + 8], labels[i : i + 8]) for i in range(0, 32, 8)]
p = calibrant.collect(network, batches, ignore_index=255)
val, test = p[p.clusters < 16], p[p.clusters >= 16]
print(test)

# %%
# Measure
# -------
#
# Intervals and tests use images as independent units: 16 images, not 34,560 pixels.

print(calibrant.measure(test))

# %%

independent = Predictions(test.logits, test.labels)  # the same rows without clusters
print("images as units:", metrics.accuracy.interval(test))
print("pixels as units:", metrics.accuracy.interval(independent))

# %%
# Calibrate
# ---------
#
# Fit one temperature for all pixels. ``CalibratedNetwork`` applies it along the class axis.

temperature = Temperature.fit(val)
model = CalibratedNetwork(network, temperature)
calibrated = model(field[16:]).detach()
figure, axes = pyplot.subplots(1, 4, figsize=(13, 3.3))
for ax, logits, title in (
    (axes[0], network(field[16:]).detach(), "before"),
    (axes[1], calibrated, "after"),
):
    ax.imshow(logits[0].softmax(0).amax(0).numpy(), vmin=0.25, vmax=1)
    ax.set_title(f"confidence, {title}")
    ax.axis("off")
plots.reliability(
    test, ax=axes[2], title=f"before: ECE {100 * float(metrics.ece(test)):.1f} %"
)
after = Predictions(calibrated, labels[16:], ignore_index=255)
plots.reliability(
    after, ax=axes[3], title=f"after: ECE {100 * float(metrics.ece(after)):.1f} %"
)

# %%
# More pixels than memory
# -----------------------
#
# With ``to``, ``collect`` writes each batch to a file. ``assess`` and ``measure`` read large files in chunks.

path = calibrant.collect(
    network, batches, ignore_index=255, to=Path(tempfile.mkdtemp()) / "pixels.parquet"
)
summary = metrics.Summary.from_file(path)
print(len(summary), "pixels, ECE", round(summary["ece"], 4))
