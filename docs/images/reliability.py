"""Draw the figure of the README from the runs of `make demo`: python docs/images/reliability.py."""

from pathlib import Path

import torch
from matplotlib.figure import Figure

from calibrant import Predictions, metrics
from calibrant.calibrators import fit
from calibrant.lab.study import Store, Study
from calibrant.reports.plots import reliability

here = Path(__file__).parent
study = Study.load(here.parents[1] / "studies" / "quickstart.toml")
store = Store(here.parents[1] / "runs" / "quickstart")
runs = [run for run in study.runs() if study.label("losses", run.loss) == "cross_entropy"]

figure = Figure(figsize=(6.6, 3.4), layout="constrained", dpi=160)
for ax, name in zip(figure.subplots(1, 2), ("Identity", "Temperature"), strict=True):
    tests = [store.get(run, "test").double() for run in runs]
    logits = torch.cat([fit(name, store.get(run, "val"))(t.logits) for run, t in zip(runs, tests, strict=True)])
    pooled = Predictions(logits, torch.cat([t.labels for t in tests]))
    state = "as trained" if name == "Identity" else "after temperature scaling"
    title = f"{state}: ECE {100 * metrics.ece(pooled):.1f} %"
    reliability(metrics.tables.bins(pooled), ax=ax, title=title)
figure.savefig(here / "reliability.png")
