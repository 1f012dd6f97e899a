"""
A study, from file to LaTeX
===========================

A study compares losses, networks and seeds, with the same calibrators and metrics for all. It is a small file, and its
tables are ready for a paper.
"""

import tempfile
from pathlib import Path

import polars
from matplotlib import pyplot

from calibrant.lab import study
from calibrant.reports import plots

folder = Path(tempfile.mkdtemp())
(folder / "mine.toml").write_text("""
title = "Does focal loss need a calibrator?"
datasets = ["digits(train=100, val=300)"]
networks = ["mlp(hidden=(64,))"]
losses = ["cross_entropy", "focal(gamma=3)", "brier"]
calibrators = ["Identity", "Temperature", "HistogramBinning"]
metrics = ["error", "nll", "ece"]
seeds = [0, 1, 2]

[recipe]
epochs = 20
batch_size = 32
learning_rate = 0.05
milestones = [15]
""")

# %%
# ``run`` trains missing networks, calibrates them, computes the metrics, and writes tables and a report. You can stop
# it and start it again; finished networks are kept. On the command line: ``calibrant study run mine.toml``.

result = study.run(folder / "mine.toml", out=folder / "runs")
print(result)

# %%
# A cell is the mean over seeds with its standard deviation, followed by the mean temperature in parentheses. Triangles
# compare with the first row by a paired t-test; filled triangles are significant. Calibrators that share a letter do
# not differ significantly.
#
# As a sentence
# -------------

print(result.finding)

# %%
# As LaTeX
# --------
#
# ``tables.tex`` needs the packages ``booktabs`` and ``amssymb``.

print((folder / "runs" / "tables.tex").read_text()[:1600])

# %%
# As data
# -------
#
# The data frame has one row per network, calibrator and metric.

frame = result.to_polars()
print(frame.select("loss", "seed", "calibrator", "metric", "value").head(6))

# %%
# For example, draw the mean over seeds and the range:

calibrators = ["Identity", "Temperature", "HistogramBinning"]
wide = frame.filter(polars.col("metric") == "ece").pivot(
    "calibrator", index=["loss", "seed"], values="value"
)
lines = {
    loss: 100 * rows.select(calibrators).to_numpy()
    for (loss,), rows in wide.group_by("loss", maintain_order=True)
}
figure, ax = pyplot.subplots(figsize=(5.6, 3.4))
plots.curves(lines, ax=ax, x=calibrators, xlabel="", ylabel="ECE (%)")

# %%
# Add a metric or a calibrator
# ----------------------------
#
# This takes seconds, because predictions are stored and nothing is trained again.

more = study.measure(
    folder / "mine.toml",
    out=folder / "runs",
    metrics=["smooth_ece"],
    calibrators=["Identity", "Monotone"],
)
print(more)

# %%
# A study can include models trained elsewhere, through their files of predictions: :doc:`/studies`.
