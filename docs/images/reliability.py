"""Draw the figure of the README from its example: python docs/images/reliability.py."""

from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.statements import run_example
from calibrant import metrics
from calibrant.reports.plots import reliability

result, test = run_example()
figure = Figure(figsize=(6.6, 3.5), layout="constrained", dpi=160)
states = {"as trained": test, f"after {result.chosen_name}": test.apply(result.best)}
for ax, (state, preds) in zip(figure.subplots(1, 2), states.items(), strict=True):
    error, floor = (
        100 * float(metric(preds)) for metric in (metrics.ece, metrics.noise_floor)
    )
    reliability(
        metrics.tables.bins(preds),
        ax=ax,
        title=f"{state}: ECE {error:.1f} %\nby chance: {floor:.1f} %",
    )
figure.savefig(Path(__file__).parent / "reliability.png")
