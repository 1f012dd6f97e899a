"""Dense, binary and detected events: the values of others on the same confidences."""

import numpy as np
import pytest
import relplot
import torch
from netcal.metrics import ECE, MCE
from torchmetrics.functional.classification import binary_calibration_error

from calibrant import Predictions, metrics
from calibrant.integrations.torchmetrics import Calibration

BINS = 20


@pytest.fixture(scope="module")
def dense() -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities (n, k, h, w), too sure of themselves, and labels (n, h, w)."""
    g = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(3, 4, 24, 20, generator=g)
    true = (0.6 * logits).softmax(1).movedim(1, -1).flatten(0, -2)
    return logits.softmax(1), torch.multinomial(true, 1, generator=g).view(3, 24, 20)


def by_image_and_class(dense) -> dict[str, torch.Tensor]:
    """Ours, (n, k) each: every class of every image is an event of its own; ACE is the plain mean over full bins."""
    probs, labels = dense
    found: dict[str, list[float]] = {"expected": [], "average": [], "maximum": []}
    for image, truth in zip(probs, labels):
        p = Predictions.from_probs(image[None], truth[None])
        for one in (p.with_event(j) for j in range(p.k)):
            table = metrics.tables.bins(one, bins=BINS)
            found["expected"].append(float(metrics.ece(one, bins=BINS)))
            found["average"].append(float((table.accuracy - table.confidence)[table.count > 0].abs().mean()))
            found["maximum"].append(float(metrics.mce(one, bins=BINS)))
    return {name: torch.tensor(values).view(len(probs), -1) for name, values in found.items()}


def by_the_formulas(probs: torch.Tensor, happened: torch.Tensor) -> dict[str, float]:
    """The three reductions of the gaps of bins (i/b, (i+1)/b], as MONAI's documentation defines them."""
    p, y = probs.double().flatten(), happened.double().flatten()
    index = (p * BINS).ceil().clamp(1, BINS) - 1
    count = torch.stack([(index == i).sum() for i in range(BINS)])
    gaps = torch.stack([(p - y)[index == i].mean().abs() for i in range(BINS) if count[i]])
    share = count[count > 0].double() / len(p)
    return {"expected": float(share @ gaps), "average": float(gaps.mean()), "maximum": float(gaps.max())}


def test_dense_predictions_by_the_formulas_of_monai(dense):
    probs, labels = dense
    ours = by_image_and_class(dense)
    for i in range(3):
        for j in range(4):
            for name, value in by_the_formulas(probs[i, j], labels[i] == j).items():
                assert float(ours[name][i, j]) == pytest.approx(value, abs=1e-6)


@pytest.mark.filterwarnings("ignore")  # of MONAI
@pytest.mark.parametrize("reduction", ["expected", "average", "maximum"])
def test_dense_predictions_by_monai_itself(dense, reduction):
    theirs = pytest.importorskip("monai.metrics", reason="MONAI is not installed")
    probs, labels = dense
    one_hot = torch.nn.functional.one_hot(labels, 4).movedim(-1, 1)
    metric = theirs.CalibrationErrorMetric(BINS, calibration_reduction=reduction, metric_reduction="none")
    metric(y_pred=probs, y=one_hot)
    torch.testing.assert_close(by_image_and_class(dense)[reduction], metric.aggregate(), atol=1e-6, rtol=0)


@pytest.fixture(scope="module")
def stated() -> tuple[np.ndarray, np.ndarray]:
    """Confidences on both sides of a half, and whether they came true."""
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.02, 0.98, 3000)
    return confidence, (rng.random(3000) < confidence**1.5).astype(int)


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_binary_events_by_netcal_and_torchmetrics(stated, bins):
    c, y = stated
    for p in Predictions.from_confidence(c, y), Predictions.from_binary_logits(np.log(c / (1 - c)), y):
        assert float(metrics.ece(p, bins=bins)) == pytest.approx(ECE(bins).measure(c, y), abs=1e-6)
        assert float(metrics.mce(p, bins=bins)) == pytest.approx(MCE(bins).measure(c, y), abs=1e-6)
        for norm, ours in ("l1", metrics.ece), ("max", metrics.mce):
            theirs = binary_calibration_error(torch.tensor(c), torch.tensor(y), n_bins=bins, norm=norm)
            assert float(ours(p, bins=bins)) == pytest.approx(float(theirs), abs=1e-6)
    metric = Calibration("ece", bins=bins, binary=True, probs=True)
    metric.update(torch.tensor(c), torch.tensor(y))
    assert float(metric.compute()["ece"]) == pytest.approx(ECE(bins).measure(c, y), abs=1e-6)


def test_binary_events_by_relplot(stated):
    c, y = stated
    p = Predictions.from_confidence(c, y)
    assert float(metrics.smooth_ece(p)) == pytest.approx(relplot.smECE(c, y), abs=1.5e-3)
    assert float(metrics.smooth_ece(p)) != pytest.approx(float(metrics.smooth_ece(p.with_event("top"))), abs=5e-3)


@pytest.mark.parametrize("bins", [5, 10, 20])
def test_detections_by_netcal_without_locations(stated, bins):
    c, matched = stated
    ours = metrics.ece(Predictions.from_confidence(c, matched), bins=bins)
    assert float(ours) == pytest.approx(ECE(bins, detection=True).measure(c, matched), abs=1e-6)
