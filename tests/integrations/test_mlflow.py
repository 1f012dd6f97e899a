"""Metrics and the report through MLflow's own evaluator, into a store in a folder."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mlflow.models", reason="MLflow is not installed")
pytest.importorskip("pandas")
import mlflow
import pandas
from refusals import refused

from calibrant import Predictions, assess, measure, metrics
from calibrant.integrations import mlflow as ours

pytestmark = pytest.mark.filterwarnings("ignore")  # of MLflow and pandas


@pytest.fixture
def run(tmp_path):
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    name = mlflow.create_experiment("calibration", artifact_location=(tmp_path / "artifacts").as_uri())
    with mlflow.start_run(experiment_id=name) as run:
        yield run


def draw(k, n=400):
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(k), n)
    return probs, np.array([rng.choice(k, p=row) for row in probs])


def files(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_the_evaluator_logs_metrics_and_the_report(run, tmp_path):
    probs, labels = draw(2)
    table = measure(Predictions.from_probs(probs[:, 1], labels))
    result = mlflow.models.evaluate(
        data=pandas.DataFrame({"prob": probs[:, 1], "label": labels}),
        targets="label",
        predictions="prob",
        extra_metrics=[ours.metric("ece"), ours.metric("ece(bins=10)"), ours.metric("nll")],
        custom_artifacts=[ours.report],
    )
    p = Predictions.from_probs(probs[:, 1], labels)
    assert result.metrics["ece"] == pytest.approx(table["ece"].value)
    assert result.metrics["ece_bins_10"] == pytest.approx(float(metrics.ece(p, bins=10)))
    assert mlflow.get_run(run.info.run_id).data.metrics["nll"] == pytest.approx(table["nll"].value)
    artifacts = files(tmp_path / "artifacts")
    assert "<svg" in artifacts["calibration.html"].read_text()
    assert json.loads(artifacts["calibration.json"].read_text())


@pytest.mark.slow
def test_evaluator_accepts_a_list_per_row(run):
    probs, labels = draw(3)
    result = mlflow.models.evaluate(
        lambda frame: [list(map(float, row)) for row in probs[frame["row"]]],
        data=pandas.DataFrame({"row": range(len(labels)), "label": labels}),
        targets="label",
        extra_metrics=[ours.metric("ece")],
    )
    assert result.metrics["ece"] == pytest.approx(float(metrics.ece(Predictions.from_probs(probs, labels))))


def test_assessment_is_logged_with_numbers_and_report(run, tmp_path):
    probs, labels = draw(3)
    p = Predictions.from_probs(probs, labels)
    result = assess(p[:200], p[200:], ["Identity", "Temperature"])
    ours.log(result, prefix="test/")
    artifacts = mlflow.get_run(run.info.run_id).data.metrics
    assert artifacts["test/nll"] == pytest.approx(result.measurements[result.chosen_name]["nll"].value)
    assert "<svg" in files(tmp_path / "artifacts")["calibration.html"].read_text()


def test_classes_instead_of_probabilities_are_refused():
    with refused("predicted_labels"):
        ours.metric("ece").eval_fn(pandas.Series([0, 1, 1]), pandas.Series([0, 1, 0]))
