"""
Reproducing a paper
===================

Calibrant includes the studies of five papers and their published numbers. This tutorial inspects one of them, then
trains its losses on a small problem and prints the published numbers beside the results.
"""

import tempfile
from pathlib import Path

import polars
from matplotlib import pyplot

from calibrant.lab import study
from calibrant.lab.study import Study
from calibrant.reports import plots

mukhoti = Study.load("mukhoti_2020")
print(mukhoti.title)
print(len(list(mukhoti.runs())), "networks to train at full scale")
for run in list(mukhoti.runs())[:3]:
    print("   ", run.dataset, run.network, run.loss, f"seed {run.seed}")

# %%
# On a machine with GPUs and the data sets, one command runs the whole study. You can interrupt it at any time:
#
# .. code-block:: console
#
#    $ calibrant study run mukhoti_2020 --data ~/datasets --engine ray
#    $ calibrant figures mukhoti_2020 --list
#
# ``--scale small`` takes about an hour on two cores. :doc:`/results/README` shows its results.
#
# Compare with the published numbers
# ----------------------------------
#
# ``published`` prints the paper's number below each cell with the same loss, calibrator and metric. ``beside`` selects
# the data set and network of the paper: here, a two-layer network on digits is compared with ResNet-50 on CIFAR-10.
# Levels and order may differ, because the small network hardly overfits. A line under each table lists the differences
# in training.

folder = Path(tempfile.mkdtemp())
(folder / "digits.toml").write_text("""
title = "The losses of Mukhoti et al. on handwritten digits"
published = "mukhoti_2020"
beside = {dataset = "cifar10", network = "resnet50"}
datasets = ["digits(train=100, val=300)"]
networks = ["mlp(hidden=(64,))"]
losses = ["cross_entropy", "brier", "mmce", "focal(gamma=3)", "flsd"]
calibrators = ["Identity", "Temperature(criterion='ece')"]
metrics = ["ece", "error"]
seeds = [0, 1]

[recipe]
epochs = 40
batch_size = 32
learning_rate = 0.05
milestones = [30]
""")
result = study.run(folder / "digits.toml", out=folder / "runs")
print(result)

# %%
# Draw the results before and after temperature scaling:

frame = result.to_polars().filter(polars.col("metric") == "ece")
wide = frame.pivot("calibrator", index=["loss", "seed"], values="value")
both = ["Identity", "Temperature(criterion='ece')"]
lines = {
    loss: 100 * rows.select(both).to_numpy()
    for (loss,), rows in wide.group_by("loss", maintain_order=True)
}
figure, ax = pyplot.subplots(figsize=(5.6, 3.4))
plots.curves(
    lines,
    ax=ax,
    x=["as trained", "after temperature scaling"],
    xlabel="",
    ylabel="ECE (%)",
)

# %%
# To add another paper, write a file with its numbers: :doc:`/studies`.
