"""The module as Hugging Face evaluate uses it: made, loaded by its path, combined, fed batch by batch."""

import numpy as np
import pytest

pytest.importorskip("evaluate", reason="Hugging Face evaluate is not installed")
import evaluate
from refusals import refused

from calibrant import Predictions, metrics
from calibrant.integrations.evaluate import CalibrationModule

pytestmark = pytest.mark.filterwarnings("ignore")  # of evaluate, about datasets


def draw(k, n=300):
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((n, k))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return logits, probs, rng.integers(0, k, n)


def test_compute_at_once_and_in_batches():
    _, probs, labels = draw(4)
    p = Predictions.from_probs(probs, labels)
    expected = {"nll": float(metrics.nll(p)), "ece(bins=10)": float(metrics.ece(p, bins=10))}
    module, names = CalibrationModule(), ("nll", "ece(bins=10)")
    assert module.compute(predictions=probs, references=labels, metrics=names) == pytest.approx(expected)
    for i in range(0, 300, 70):
        module.add_batch(predictions=probs[i : i + 70], references=labels[i : i + 70])
    assert module.compute(metrics=names) == pytest.approx(expected)


def test_single_numbers_are_probabilities_or_declared_logits():
    logits, probs, labels = draw(2)
    of_1 = Predictions.from_probs(probs[:, 1], labels)
    values = CalibrationModule().compute(predictions=probs[:, 1].tolist(), references=labels.tolist())
    assert values["ece"] == pytest.approx(float(metrics.ece(of_1)))
    assert values["ece"] != pytest.approx(float(metrics.ece(of_1.with_event("top"))), abs=1e-3)
    s = logits[:, 1] - logits[:, 0]
    assert CalibrationModule().compute(predictions=s, references=labels, logits=True) == pytest.approx(values)
    top = CalibrationModule().compute(predictions=logits, references=labels, logits=True, of="top")
    assert top["ece"] == pytest.approx(float(metrics.ece(of_1.with_event("top"))))


def test_module_loads_by_path_and_combines(tmp_path, monkeypatch):
    from calibrant.integrations import evaluate as ours

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    _, probs, labels = draw(3)
    loaded = evaluate.load(ours.__file__, cache_dir=str(tmp_path))
    values = loaded.compute(predictions=probs, references=labels, metrics=["brier"])
    assert values == pytest.approx({"brier": float(metrics.brier(Predictions.from_probs(probs, labels)))})
    combined = evaluate.combine([loaded]).compute(predictions=probs, references=labels)
    assert set(combined) == {"accuracy", "nll", "ece"}


def test_rows_that_do_not_sum_to_1_are_refused():
    with refused("not_probabilities"):
        CalibrationModule().compute(predictions=[[0.5, 0.9]], references=[0])


def test_rows_of_different_lengths_are_refused():
    with refused("not_numbers"):
        CalibrationModule().compute(predictions=[[0.5, 0.5], [0.2, 0.3, 0.5]], references=[0, 1])
