"""The page of examples runs, and what it says of its own data is so."""

import numpy as np
import pytest
from netcal.metrics import ECE
from shown import run

from calibrant import metrics


@pytest.mark.large
@pytest.mark.filterwarnings("ignore")  # of scikit-learn
def test_every_example_runs_and_shows_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = run("docs/forecasts.md")
    reports = sorted(path.stem for path in tmp_path.glob("reports/*.html"))
    assert reports == ["answers", "detections", "pixels", "risk", "several_labels"]
    assert all("<svg" in (tmp_path / "reports" / f"{name}.html").read_text() for name in reports)
    for name in "risk", "segmented", "detector", "model_card":
        found = names[name]
        assert found.tables[found.chosen_name]["nll"].value < found.before["nll"].value
    boxes, said, came = names["boxes"], names["found"], names["matched"].astype(int)
    for bins in 10, 15:
        assert float(metrics.ece(boxes, bins=bins)) == pytest.approx(
            ECE(bins, detection=True).measure(said, came), abs=1e-6
        )
    gaps = {name: float(metrics.signed_gap(names["labels"].of_group(name))) for name in ("fever", "rash")}
    assert abs(gaps["fever"]) < 0.03 < 0.1 < gaps["rash"]
    assert len(names["test"].clusters.unique()) == 12
    assert np.isinf(names["model_card"].before["nll"].value)
    assert names["answers"].group_names == ("history", "medicine", "physics")
