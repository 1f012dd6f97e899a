"""
A decision curve
================

Net benefit by the threshold from which on to act, of a model and of one that is too extreme, beside acting on all and
on none. The right figure shows the first minus the second, with the band that holds at all thresholds.
"""

import numpy as np
from matplotlib import pyplot

from calibrant import Predictions, decisions
from calibrant.reports import plots

rng = np.random.default_rng(0)
log_odds = rng.normal(-2, 1.2, 3000)
died = (rng.random(3000) < 1 / (1 + np.exp(-log_odds))).astype(int)
p, extreme = (
    Predictions.from_binary_logits(z, died).with_event(1)
    for z in (log_odds, 1.6 * log_odds + 2)
)

first, second = decisions.net_benefit(p, extreme), decisions.net_benefit(extreme)
figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 3.4))
plots.net_benefit({"model": first, "too extreme": second}, ax=left)
difference = first.over_second
right.fill_between(
    first.threshold, difference.band_low, difference.band_high, alpha=0.2
)
right.plot(first.threshold, difference.value)
right.axhline(0, color="gray", linewidth=1)
right.set(xlabel="threshold", ylabel="difference of net benefit")
