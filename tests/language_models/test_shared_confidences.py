"""Stated confidences of 55 language models are read and measured with one call each."""

from pathlib import Path

import numpy as np
import polars
import pytest
from refusals import refused
from sklearn.metrics import brier_score_loss, roc_auc_score

from calibrant import Predictions, measure

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "language_models"
FILES = sorted(FOLDER.glob("*.parquet")) if FOLDER.is_dir() else []
pytestmark = pytest.mark.shared


def load_stated_confidences(path) -> Predictions:
    return Predictions.load(path, confidence="verbal", correct="correct", group="category", drop=True)


@pytest.mark.parametrize(
    "path", [pytest.param(f, marks=() if i % 20 == 0 else pytest.mark.slow, id=f.stem) for i, f in enumerate(FILES)]
)
def test_stated_confidences_are_measured(path):
    frame = polars.read_parquet(path)
    if frame["verbal"].is_null().all():
        pytest.skip("this model stated no confidences")
    answered = frame.filter(polars.col("verbal").is_between(0, 1) & polars.col("verbal").is_not_nan())
    if len(answered) < len(frame) / 2:
        with refused("drop_most"):
            load_stated_confidences(path)
        return
    p = load_stated_confidences(path)
    assert len(p) == len(answered)
    assert p.group_names == tuple(sorted(answered["category"].unique()))
    measurement = measure(p)
    c, y = answered["verbal"].to_numpy().astype(float), answered["correct"].to_numpy()
    assert measurement["event_brier"].value == pytest.approx(brier_score_loss(y, c), abs=1e-12)
    assert measurement["signed_gap"].value == pytest.approx(float(np.mean(c - y)), abs=1e-12)
    if 0 < y.mean() < 1:
        assert measurement["auroc"].value == pytest.approx(roc_auc_score(y, c), abs=1e-9)
    assert "answers" in measurement.html()
