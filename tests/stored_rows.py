"""The rows of a study, as its tables are built from."""

import pytest

pytest.importorskip("torch")
from calibrant.lab.study.measurements import diverged_rows, measure_runs


def study_rows(study, store, jobs=1):
    """Yield a row per model or finished run, shift, calibrator and metric of a study, with nan for diverged runs."""
    for measurement in measure_runs(study, store, jobs):
        yield from measurement.rows
    for run in (run for run in study.runs() if store.state(run) == "diverged"):
        yield from diverged_rows(study, store, run)
