"""Events of pixels, of binary classifiers and of detections: agreement with other libraries."""

import numpy as np
import pytest
from drawn import drawn_labels
from scipy.special import softmax

from calibrant import Predictions, metrics

BINS = 20


@pytest.fixture(scope="module")
def dense() -> tuple[np.ndarray, np.ndarray]:
    """Return overconfident probabilities (n, k, h, w) and labels (n, h, w)."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((3, 4, 24, 20), dtype=np.float32)
    return softmax(logits, 1), drawn_labels(0.6 * np.moveaxis(logits, 1, -1), rng)


def errors_by_image_and_class(dense) -> dict[str, np.ndarray]:
    """Return our errors (n, k) of every class of every image; "average" is the plain mean over non-empty bins."""
    probs, labels = dense
    errors: dict[str, list[float]] = {"expected": [], "average": [], "maximum": []}
    for image, truth in zip(probs, labels):
        p = Predictions.from_probs(image[None], truth[None])
        for event in (p.with_event(j) for j in range(p.k)):
            table = metrics.tables.bins(event, bins=BINS)
            errors["expected"].append(float(metrics.ece(event, bins=BINS)))
            errors["average"].append(abs(table.accuracy - table.confidence)[table.count > 0].mean())
            errors["maximum"].append(float(metrics.mce(event, bins=BINS)))
    return {name: np.reshape(values, (len(probs), -1)) for name, values in errors.items()}


def errors_by_formula(probs: np.ndarray, outcome: np.ndarray) -> dict[str, float]:
    """Return the three reductions of the gaps of bins (i/b, (i+1)/b] that MONAI's documentation defines."""
    p, y = probs.astype(float).ravel(), outcome.ravel()
    index = np.ceil(p * BINS).clip(1, BINS)
    gaps = [abs((p - y)[index == i].mean()) for i in np.unique(index)]
    share = np.unique(index, return_counts=True)[1] / len(p)
    return {"expected": share @ gaps, "average": np.mean(gaps), "maximum": max(gaps)}


def test_errors_of_pixels_follow_the_formulas_of_monai(dense):
    probs, labels = dense
    ours = errors_by_image_and_class(dense)
    for i in range(3):
        for j in range(4):
            for name, value in errors_by_formula(probs[i, j], labels[i] == j).items():
                assert ours[name][i, j] == pytest.approx(value, abs=1e-6)


@pytest.mark.filterwarnings("ignore")  # of MONAI
@pytest.mark.parametrize("reduction", ["expected", "average", "maximum"])
def test_errors_of_pixels_agree_with_monai(dense, torch, reduction):
    theirs = pytest.importorskip("monai.metrics", reason="MONAI is not installed")
    probs, labels = map(torch.from_numpy, dense)
    one_hot = torch.nn.functional.one_hot(labels, 4).movedim(-1, 1)
    metric = theirs.CalibrationErrorMetric(BINS, calibration_reduction=reduction, metric_reduction="none")
    metric(y_pred=probs, y=one_hot)
    np.testing.assert_allclose(errors_by_image_and_class(dense)[reduction], metric.aggregate(), atol=1e-6, rtol=0)


@pytest.fixture(scope="module")
def stated() -> tuple[np.ndarray, np.ndarray]:
    """Return confidences below and above 0.5, and their outcomes."""
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.02, 0.98, 3000)
    return confidence, (rng.random(3000) < confidence**1.5).astype(int)


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_binary_events_agree_with_netcal_and_torchmetrics(stated, torch, bins):
    netcal = pytest.importorskip("netcal.metrics")
    torchmetrics = pytest.importorskip("torchmetrics.functional.classification")
    from calibrant.integrations.torchmetrics import CalibrationMetric

    c, y = stated
    data = torch.tensor(c), torch.tensor(y)
    for p in Predictions.from_confidence(c, y), Predictions.from_binary_logits(np.log(c / (1 - c)), y):
        assert float(metrics.ece(p, bins=bins)) == pytest.approx(netcal.ECE(bins).measure(c, y), abs=1e-6)
        assert float(metrics.mce(p, bins=bins)) == pytest.approx(netcal.MCE(bins).measure(c, y), abs=1e-6)
        for norm, ours in ("l1", metrics.ece), ("max", metrics.mce):
            theirs = torchmetrics.binary_calibration_error(*data, n_bins=bins, norm=norm)
            assert float(ours(p, bins=bins)) == pytest.approx(float(theirs), abs=1e-6)
    metric = CalibrationMetric("ece", bins=bins, binary=True, probs=True)
    metric.update(*data)
    assert float(metric.compute()) == pytest.approx(netcal.ECE(bins).measure(c, y), abs=1e-6)


def test_binary_events_agree_with_relplot(stated):
    relplot = pytest.importorskip("relplot")
    c, y = stated
    p = Predictions.from_confidence(c, y)
    assert float(metrics.smooth_ece(p)) == pytest.approx(relplot.smECE(c, y), abs=1.5e-3)
    assert float(metrics.smooth_ece(p)) != pytest.approx(float(metrics.smooth_ece(p.with_event("top"))), abs=5e-3)


@pytest.mark.parametrize("bins", [5, 10, 20])
def test_detections_agree_with_netcal(stated, bins):
    netcal = pytest.importorskip("netcal.metrics")
    c, matched = stated
    ours = metrics.ece(Predictions.from_confidence(c, matched), bins=bins)
    assert float(ours) == pytest.approx(netcal.ECE(bins, detection=True).measure(c, matched), abs=1e-6)
