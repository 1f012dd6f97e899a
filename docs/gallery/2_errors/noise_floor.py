"""
The noise floor of ECE
======================

A perfectly calibrated model has an ECE above 0, which grows as the number of examples shrinks. The band is computed in
closed form; the dots are simulations.
"""

import torch
from matplotlib import pyplot

from calibrant import Predictions, metrics

g = torch.Generator().manual_seed(0)
sizes = (100, 200, 500, 1000, 2000, 5000, 10_000)
figure, ax = pyplot.subplots(figsize=(5, 3.4))
bands = []
for n in sizes:
    truth = 1.5 * torch.randn(n, 10, generator=g)
    draws = [
        torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1) for _ in range(8)
    ]
    ax.plot(
        [n] * 8,
        [100 * float(metrics.ece(truth, y)) for y in draws],
        ".",
        color="#4269d0",
        markersize=4,
    )
    bands.append(metrics.noise_floor.interval(Predictions(truth, draws[0])))
ax.fill_between(
    sizes,
    [100 * b.low for b in bands],
    [100 * b.high for b in bands],
    color="#6b7280",
    alpha=0.3,
)
ax.plot(sizes, [100 * b.value for b in bands], color="#6b7280")
ax.set(
    xscale="log",
    xlabel="examples",
    ylabel="ECE of a calibrated model (%)",
    ylim=(0, None),
)
