"""What a study file can name besides the usual, each trained for an epoch on next to nothing."""

import pytest

from calibrant import study

STUDY = """
datasets = ["blobs(train=60, val=40, test=50)"]
networks = ["mlp(features=2, hidden=())"]
losses = {losses}
calibrators = ["Identity"]
metrics = ["error"]
traces = ["gammas"]
recipe = {{epochs = 1, batch_size = 20, milestones = []}}
"""


@pytest.fixture(autouse=True)
def no_page(monkeypatch):
    monkeypatch.setattr("calibrant.study.report.study_report", lambda *_: "no page")


def trained(folder, text):
    """Write a study, run it, and return the result, of which nothing failed."""
    (folder / "study.toml").write_text(text)
    result = study.run(folder / "study.toml", out=folder / "out")
    assert not result.failed
    return result


def test_objectives(tmp_path):
    losses = [
        "flsd_continuous",
        "RegMixup",
        "RegMixup(loss='AdaFocal(every=1)', alpha=2)",
        "cross_entropy(smoothing=-0.05)",
    ]
    rows = trained(tmp_path, STUDY.format(losses=losses)).to_polars()
    assert rows["loss"].to_list() == losses
    assert rows["value"].is_finite().all()
