"""Stated confidences of 55 language models: each file is read and measured with one call."""

from pathlib import Path

import numpy as np
import polars
import pytest
from refusals import refused
from sklearn.metrics import brier_score_loss, roc_auc_score

from calibrant import Predictions, measure

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "language_models"
FILES = sorted(FOLDER.glob("*.parquet")) if FOLDER.is_dir() else []
pytestmark = pytest.mark.shared


def stated(path) -> Predictions:
    return Predictions.load(path, confidence="verbal", correct="correct", group="category", drop=True)


@pytest.mark.parametrize(
    "path", [pytest.param(f, marks=() if i % 20 == 0 else pytest.mark.slow, id=f.stem) for i, f in enumerate(FILES)]
)
def test_stated_confidences_are_read_measured_and_shown(path):
    frame = polars.read_parquet(path)
    if frame["verbal"].is_null().all():
        pytest.skip("this model stated none")
    used = frame.filter(polars.col("verbal").is_between(0, 1) & polars.col("verbal").is_not_nan())
    if len(used) < len(frame) / 2:
        with refused("drop_most"):
            stated(path)
        return
    p = stated(path)
    assert len(p) == len(used)
    assert p.group_names == tuple(sorted(used["category"].unique()))
    found = measure(p)
    c, y = used["verbal"].to_numpy().astype(float), used["correct"].to_numpy()
    assert found["event_brier"].value == pytest.approx(brier_score_loss(y, c), abs=1e-12)
    assert found["signed_gap"].value == pytest.approx(float(np.mean(c - y)), abs=1e-12)
    if 0 < y.mean() < 1:
        assert found["auroc"].value == pytest.approx(roc_auc_score(y, c), abs=1e-9)
    assert "answers" in found.html()
