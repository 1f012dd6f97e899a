"""Calibration metrics within an evaluator of PyTorch-Ignite."""

import pytest
import torch

pytest.importorskip("ignite", reason="PyTorch-Ignite is not installed")
from calibrant.registry import METRICS
from ignite.engine import Engine
from ignite.exceptions import NotComputableError
from refusals import refused

from calibrant import Predictions, metrics
from calibrant.integrations.ignite import EpochCalibration


def batches(n, k, size=50):
    g = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(n, k, generator=g), torch.randint(0, k, (n,), generator=g)
    return logits, labels, list(zip(logits.split(size), labels.split(size), strict=True))


@pytest.mark.parametrize("name", ["ece", "ece(bins=10)", "nll", "auroc"])
def test_evaluator_computes_the_metric_of_all_batches(name):
    logits, labels, data = batches(330, 4)
    evaluator = Engine(lambda engine, batch: {"scores": batch[0], "labels": batch[1]})
    metric = EpochCalibration(name, output_transform=lambda output: (output["scores"], output["labels"]))
    metric.attach(evaluator, "value")
    for _ in range(2):  # a second epoch starts anew
        state = evaluator.run(data)
        assert state.metrics["value"] == pytest.approx(float(METRICS.method(name)(Predictions(logits, labels))))
    assert metric.predictions is not None
    assert len(metric.predictions) == 330


def test_binary_logits():
    logits, labels, _ = batches(100, 2)
    metric = EpochCalibration("ece", binary=True)
    metric.update((logits[:, 0], labels))
    expected = metrics.ece(Predictions.from_binary_logits(logits[:, 0], labels))
    assert metric.compute() == pytest.approx(float(expected))


def test_no_batch_is_refused():
    with pytest.raises(NotComputableError):
        EpochCalibration("ece").compute()


def test_batches_may_differ_in_length_and_hold_padding():
    """Sequences are padded to the longest of their batch, with labels of -100; the last batch is all padding."""
    g = torch.Generator().manual_seed(0)
    metric = EpochCalibration("ece")
    for n, length in (4, 7), (4, 5), (1, 5):
        logits, labels = torch.randn(n, 3, length, generator=g), torch.randint(3, (n, length), generator=g)
        labels[:, 4:] = -100
        metric.update((logits.numpy(), labels if n > 1 else torch.full_like(labels, -100)))
    metric.compute()
    assert (len(metric.predictions), metric.predictions.clusters.unique().tolist()) == (32, list(range(8)))


def test_batches_of_other_classes_are_refused():
    metric = EpochCalibration("ece")
    for k in 3, 4:
        metric.update((torch.randn(5, k), torch.zeros(5)))
    with refused("num_classes"):
        metric.compute()
