"""
A study, from file to LaTeX
===========================

Losses by networks by seeds, each calibrated and judged alike: a study is a small file, and its tables are ready for a
paper.
"""

import tempfile
from pathlib import Path

import polars
from matplotlib import pyplot

from calibrant import plots
from calibrant.lab import study

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
# ``run`` trains what is missing, calibrates, measures, and writes tables and report. Stop it and start it again:
# finished networks are kept. From the shell: ``calibrant study run mine.toml``.

result = study.run(folder / "mine.toml", out=folder / "runs")
print(result)

# %%
# A cell is the mean over seeds with its standard deviation, the mean temperature in brackets. The triangles compare
# with the first row by a paired t-test: filled is significant. Calibrators that share a letter do not differ
# significantly.
#
# In words
# --------

print(result.finding)

# %%
# In LaTeX
# --------
#
# ``tables.tex`` wants ``booktabs`` and ``amssymb``.

print((folder / "runs" / "tables.tex").read_text()[:1600])

# %%
# As data
# -------
#
# A row per network, calibrator and metric, for whatever else one would like to know.

frame = result.to_polars()
print(frame.select("loss", "seed", "calibrator", "metric", "value").head(6))

# %%
# Such as a figure: the mean over seeds, and the range from least to most.

calibrators = ["Identity", "Temperature", "HistogramBinning"]
wide = frame.filter(polars.col("metric") == "ece").pivot("calibrator", index=["loss", "seed"], values="value")
lines = {
    loss: 100 * rows.select(calibrators).to_numpy() for (loss,), rows in wide.group_by("loss", maintain_order=True)
}
figure, ax = pyplot.subplots(figsize=(5.6, 3.4))
plots.curves(lines, ax=ax, x=calibrators, xlabel="", ylabel="ECE (%)")

# %%
# Measured again
# --------------
#
# Another metric or calibrator is a matter of seconds: predictions are kept, and nothing is trained.

again = study.measure(
    folder / "mine.toml", out=folder / "runs", metrics=["smooth_ece"], calibrators=["Identity", "Monotone"]
)
print(again)

# %%
# Models that were trained elsewhere take part by their files of predictions: :doc:`/studies`.
