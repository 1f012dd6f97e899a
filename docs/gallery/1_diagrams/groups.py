"""
Groups with simultaneous intervals
==================================

The model is calibrated on average but not in every hospital. The plot shows mean probability minus frequency; intervals
that contain 0 are gray.
"""

import numpy as np
from matplotlib import pyplot

from calibrant import Predictions, metrics
from calibrant.metrics import Interval
from calibrant.reports import plots

rng = np.random.default_rng(0)
hospital = rng.choice(
    ["Basel", "Bern", "Chur", "Genf", "Thun"], 4000, p=[0.4, 0.3, 0.15, 0.1, 0.05]
)
risk = rng.beta(2, 5, 4000)
off = np.select([hospital == "Chur", hospital == "Thun"], [0.10, -0.12], 0.0)
ill = (rng.random(4000) < np.clip(risk - off, 0, 1)).astype(int)
p = Predictions.from_probs(risk, ill, groups=hospital)

table = metrics.tables.groups(p)
rows = {
    table.names[i]: Interval(
        *(100 * float(column[i]) for column in (table.gap, table.low, table.high))
    )
    for i in table.worst_first
}
figure, ax = pyplot.subplots(figsize=(5.5, 2.8))
plots.intervals(
    rows, ax=ax, xlabel="mean probability minus frequency, percentage points"
)
