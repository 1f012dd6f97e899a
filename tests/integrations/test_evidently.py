"""Calibration metrics in reports of Evidently, with tests on current and reference data."""

import numpy as np
import pytest

pytest.importorskip("evidently.core.metric_types", reason="Evidently is not installed", exc_type=ImportError)
import pandas
from evidently import DataDefinition, Dataset, Report
from evidently.tests import lt

from calibrant import Predictions, metrics
from calibrant.integrations.evidently import Calibration

pytestmark = pytest.mark.filterwarnings("ignore")  # of Evidently


def frame(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((500, 3))
    labels = (z + rng.gumbel(size=z.shape)).argmax(1)
    probs = np.exp(scale * z) / np.exp(scale * z).sum(1, keepdims=True)
    return pandas.DataFrame({f"prob_{j}": probs[:, j] for j in range(3)} | {"label": labels})


def dataset(table):
    return Dataset.from_pandas(table, data_definition=DataDefinition())


def test_report_has_values_and_tests():
    current, reference = frame(0, scale=3.0), frame(1)
    report = Report([Calibration(name="ece", tests=[lt(0.05)]), Calibration(name="nll")])
    content = report.run(dataset(current), dataset(reference)).dict()
    values = [metric["value"] for metric in content["metrics"]]
    p = Predictions.from_table(current)
    assert values == [pytest.approx(float(metrics.ece(p))), pytest.approx(float(metrics.nll(p)))]
    assert content["tests"][0]["status"] == "FAIL"


def test_columns_can_be_named():
    table = frame(2).rename(columns={"label": "answer", "prob_0": "a0", "prob_1": "a1", "prob_2": "a2"})
    metric = Calibration(name="accuracy", label="answer", probs=["a0", "a1", "a2"])
    content = Report([metric]).run(dataset(table), None).dict()
    expected = (table[["a0", "a1", "a2"]].to_numpy().argmax(1) == table["answer"]).mean()
    assert content["metrics"][0]["value"] == pytest.approx(expected)
