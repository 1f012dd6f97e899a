"""Measuring in several processes."""

import os
from dataclasses import replace

import polars
import pytest
import torch
from polars.testing import assert_frame_equal

from calibrant import InputError, Predictions
from calibrant.study import Store, Study
from calibrant.study import measure as module
from calibrant.study.config import Grid
from calibrant.study.measure import measure


@pytest.fixture
def filled(tmp_path):
    """A study whose runs are stored, all different, and one that is missing."""
    losses, names = ("cross_entropy", "focal", "brier"), ("Temperature", "HistogramBinning", "StructuredMatrix")
    study = Study("x", (Grid(("digits",), ("resnet8",), losses, seeds=(0, 1, 2)),), names, ("nll", "ece"))
    store, g = Store(tmp_path), torch.Generator().manual_seed(0)
    for i, run in enumerate(study.runs()):
        logits = 2 * torch.randn(2, 1000, 3, generator=g)
        val, test = (Predictions(2 * z, z.softmax(-1).multinomial(1, generator=g).squeeze(1)) for z in logits)
        if i != 4:
            store.put(run, {"val": val, "test": test}, {})
    return study, store


@pytest.mark.slow
def test_many_processes_give_the_same_rows_in_the_same_order(filled, monkeypatch):
    one = polars.DataFrame(list(measure(*filled)))
    monkeypatch.setattr(module, "WORTH", 0.0)
    threads = os.environ.get("OMP_NUM_THREADS")
    assert_frame_equal(polars.DataFrame(list(measure(*filled, jobs=2))), one, check_exact=True)
    assert len(one) == 8 * 3 * 2
    assert os.environ.get("OMP_NUM_THREADS") == threads


@pytest.mark.slow
def test_a_killed_process_is_told_of(filled, monkeypatch):
    monkeypatch.setattr(module, "WORTH", 0.0)
    study, store = filled
    rows = measure(replace(study, calibrators=("processes.Dies",)), store, jobs=2)
    assert next(rows)["calibrator"] == "processes.Dies"  # the first run is measured here
    with pytest.raises(InputError, match="fewer --jobs"):
        list(rows)
