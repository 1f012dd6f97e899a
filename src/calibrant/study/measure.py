"""From stored logits to rows: fit on validation, judge on test. Never stored as truth, always made anew."""

import math
from collections.abc import Iterator
from typing import Any

from calibrant.assess import fit, judge
from calibrant.study.config import Study
from calibrant.study.store import Store


def measure(study: Study, store: Store) -> Iterator[dict[str, Any]]:
    """Yield a row per finished run, calibrator and metric of a study.

    Columns: run, dataset, network, loss, seed, calibrator, temperature (nan where there is none), metric, value.
    """
    for run in study.runs():
        if run not in store:
            continue
        val, test = store.get(run, "val"), store.get(run, "test").double()
        where = {
            "run": run.id,
            "dataset": study.label("datasets", run.dataset),
            "network": study.label("networks", run.network),
            "loss": study.label("losses", run.loss),
            "seed": run.seed,
        }
        for calibrator in study.calibrators:
            fitted = fit(calibrator, val)
            scaled = type(fitted).__name__.endswith("Temperature")  # elsewhere such a field is a unit, not the map
            temperature = float(getattr(fitted, "temperature", math.nan)) if scaled else math.nan
            for name, value in judge(fitted(test.logits), test, study.metrics).items():
                yield {**where, "calibrator": calibrator, "temperature": temperature, "metric": name, "value": value}
