"""The examples of docs/forecasts.md run, and their data are as the text describes them."""

import numpy as np
import pytest
from doc_pages import run

from calibrant import metrics


@pytest.mark.large
@pytest.mark.filterwarnings("ignore")  # of scikit-learn
def test_examples_run_and_match_their_text(tmp_path, monkeypatch, capsys):
    calibration_error = pytest.importorskip("netcal.metrics").ECE
    monkeypatch.chdir(tmp_path)
    names = run("docs/forecasts.md")
    reports = sorted(path.stem for path in tmp_path.glob("reports/*.html"))
    assert reports == ["answers", "detections", "pixels", "risk", "several_labels"]
    assert all("<svg" in (tmp_path / "reports" / f"{name}.html").read_text() for name in reports)
    for name in "risk", "segmented", "detector", "model_card":
        result = names[name]
        assert result.measurements[result.chosen_name]["nll"].value < result.uncalibrated["nll"].value
    boxes, confidence, matched = names["boxes"], names["confidence"], names["matched"].astype(int)
    for bins in 10, 15:
        expected = calibration_error(bins, detection=True).measure(confidence, matched)
        assert float(metrics.ece(boxes, bins=bins)) == pytest.approx(expected, abs=1e-6)
    gaps = {name: float(metrics.signed_gap(names["labels"].select_group(name))) for name in ("fever", "rash")}
    assert abs(gaps["fever"]) < 0.03 < 0.1 < gaps["rash"]
    assert len(np.unique(names["test"].clusters)) == 12
    assert np.isinf(names["model_card"].uncalibrated["nll"].value)
    assert names["answers"].group_names == ("history", "medicine", "physics")
