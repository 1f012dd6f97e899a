"""
Reproducing a paper
===================

The studies of five papers come with Calibrant, and the numbers that they print. This page looks at one, then sets its
losses on a small problem beside the printed numbers.
"""

import tempfile
from pathlib import Path

import polars
from matplotlib import pyplot

from calibrant import plots
from calibrant.lab import study
from calibrant.lab.study import Study

mukhoti = Study.load("mukhoti_2020")
print(mukhoti.title)
print(len(list(mukhoti.runs())), "networks to train at full scale")
for run in list(mukhoti.runs())[:3]:
    print("   ", run.dataset, run.network, run.loss, f"seed {run.seed}")

# %%
# On a machine with GPUs and the data sets, one command does all of it, and can be stopped at any time:
#
# .. code-block:: console
#
#    $ calibrant study run mukhoti_2020 --data ~/datasets --engine ray
#    $ calibrant figures mukhoti_2020 --list
#
# ``--scale small`` takes about an hour on two cores; what came of that is in :doc:`/results/README`.
#
# Beside the paper's numbers
# --------------------------
#
# ``published`` puts the paper's number below each of ours that is of the same loss, calibrator and metric. ``beside``
# says whose: here a network of two layers on digits stands beside ResNet-50 on CIFAR-10. Neither level nor order need
# agree, since it hardly overfits; a line under each table says in what the training differs.

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
# The same as a figure, before and after a temperature:

frame = result.to_polars().filter(polars.col("metric") == "ece")
wide = frame.pivot("calibrator", index=["loss", "seed"], values="value")
both = ["Identity", "Temperature(criterion='ece')"]
lines = {loss: 100 * rows.select(both).to_numpy() for (loss,), rows in wide.group_by("loss", maintain_order=True)}
figure, ax = pyplot.subplots(figsize=(5.6, 3.4))
plots.curves(lines, ax=ax, x=["as trained", "after a temperature"], xlabel="", ylabel="ECE (%)")

# %%
# A paper of your own is a file of the same kind, in the paper's own words: :doc:`/studies`.
