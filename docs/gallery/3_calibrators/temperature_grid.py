"""
NLL and ECE over the temperature
================================

The NLL is smooth in the temperature and has a single minimum, which ``Temperature.fit`` finds exactly. The ECE on the
same examples is rugged; papers search it over a grid.
"""

import numpy as np
import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics
from calibrant.calibrators import Temperature

g = torch.Generator().manual_seed(0)
truth = 1.5 * torch.randn(1000, 10, generator=g)
labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
p = Predictions(2 * truth, labels)

grid = np.linspace(1, 4, 61)
mapped = [p.apply(Temperature(torch.tensor(t))) for t in grid]
figure, ax = pyplot.subplots(figsize=(5, 3.4))
ax.plot(grid, [float(metrics.nll(q)) for q in mapped], label="NLL")
ax.axvline(float(Temperature.fit(p).temperature), color="gray", linewidth=1)
ax.set(xlabel="temperature", ylabel="NLL")
other = ax.twinx()
other.plot(
    grid, [100 * float(metrics.ece(q)) for q in mapped], color="#ff725c", label="ECE"
)
other.set(ylabel="ECE (%), in red", ylim=(0, None))
ax.set_title("line: fitted temperature", fontsize=10)
