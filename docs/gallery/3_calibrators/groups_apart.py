"""
A calibrator for every group
============================

Every group gets its own calibrator. Those of small groups are shrunk toward the common one.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics
from calibrant.calibrators import GroupCalibrated, Platt
from calibrant.reports import plots

g = torch.Generator().manual_seed(0)
sizes = {"a": 4000, "b": 4000, "c": 2000, "d": 800, "e": 400}
names = [name for name, n in sizes.items() for _ in range(n)]
shift = {"a": 0.0, "b": 0.9, "c": -0.9, "d": 0.8, "e": -0.8}
s = 1.5 * torch.randn(len(names), generator=g)
labels = (torch.rand(len(names), generator=g) < s.sigmoid()).long()
p = Predictions.from_binary_logits(
    s + torch.tensor([shift[name] for name in names]), labels, groups=names
)
half = torch.rand(len(names), generator=g) < 0.5
val, test = p[half], p[~half]

figure, ax = pyplot.subplots(figsize=(5.5, 3))
fits = {
    "uncalibrated": test,
    "Platt": test.apply(Platt.fit(val)),
    "GroupCalibrated": test.apply(GroupCalibrated.fit(val)),
}
lines = {}
for name, q in fits.items():
    table = metrics.tables.groups(q)
    lines[name] = [float(table.gap[table.names.index(group)]) for group in sizes]
plots.curves(
    lines,
    ax=ax,
    x=[f"{name}\n{n}" for name, n in sizes.items()],
    xlabel="group, and its examples",
)
ax.axhline(0, color="gray", linewidth=1)
ax.set_ylabel("mean probability minus frequency")
