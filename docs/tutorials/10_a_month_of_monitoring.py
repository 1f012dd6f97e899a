"""
A month of monitoring
=====================

A model serves two hospitals. From the nineteenth day on, one of them uses a new scanner, and the model becomes too sure
of itself there. Labels come days later. A watch finds out, and names the hospital and the day.
"""

import numpy as np
import torch
from matplotlib import pyplot

from calibrant import Predictions, Watch
from calibrant.reports import plots

ROWS, DAYS, CHANGE = 400, 30, 19


def predict(day):
    """Return the predictions of a day, with the labels that will be known later."""
    g = torch.Generator().manual_seed(day)
    hospital = np.random.default_rng(day).choice(
        ["north", "south"], ROWS, p=[0.75, 0.25]
    )
    z = 1.5 * torch.randn(ROWS, 3, generator=g, dtype=torch.float64)
    labels = torch.multinomial(z.softmax(1), 1, generator=g).squeeze(1)
    too_sure = torch.from_numpy(hospital == "south") & (day >= CHANGE)
    return Predictions(
        torch.where(too_sure[:, None], 2.2 * z, z), labels, groups=hospital
    )


# %%
# Predictions today, labels later
# -------------------------------
#
# Each night, the state gets the predictions of the day without labels, and the labels of the day before yesterday. Rows
# count in the order of prediction, once their labels are known.

days = {day: predict(day) for day in range(1, DAYS + 1)}
ids = {day: [f"{day}-{i}" for i in range(ROWS)] for day in days}
watch, first_alarm = Watch(by_class=False), None
for night, predictions in days.items():
    unlabeled = np.zeros(ROWS, dtype=bool)
    watch = watch.add(
        predictions, ids=ids[night], labeled=unlabeled, name=f"day {night}"
    )
    if night > 2:
        watch = watch.add_labels(ids[night - 2], days[night - 2].labels)
    if watch.verdict.alarm and first_alarm is None:
        first_alarm = night
        print(f"Night {night}:", watch.verdict)

# %%
# A calibrated model ever raises an alarm with probability at most 5 %, however often the verdict is read. One day
# outside the gray range is no alarm:

periods = watch.periods
rows, outcomes, confidence, variance = periods.sums[periods.sums[:, 0] > 0].T
figure, (upper, lower) = pyplot.subplots(
    2, 1, figsize=(7, 4.5), sharex=True, layout="constrained"
)
plots.gap_timeline(
    (confidence - outcomes) / rows,
    1.96 * np.sqrt(variance) / rows,
    since=CHANGE,
    ax=upper,
)
plots.evidence_timeline(periods.peak[: len(rows)], since=CHANGE, ax=lower)

# %%
# Which group, and since when
# ---------------------------
#
# The gap of all rows is small beside that of the hospital:

for test in watch.verdict.tests:
    low, high = 100 * test.gap.low, 100 * test.gap.high
    print(
        f"{test.title:12} gap {100 * test.gap.value:+.2f} % "
        f"in [{low:+.2f}, {high:+.2f}], alarm: {test.alarm}"
    )
print("since", watch.verdict.alarms[0].since)

# %%
# The intervals hold at all times at once. They cover the average over the month, which mixes the time before and after
# the change.
#
# ``watch.save("watch.html")`` writes a page with the last periods and every test, ``watch.save("watch.prom")`` metrics
# for Prometheus, and ``watch.save("model.watch")`` the state. On the command line, ``calibrant watch`` does all of it.
#
# After a repair, ``watch.reset()`` starts a new epoch.
