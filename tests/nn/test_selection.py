"""Selection of the epoch with the lowest loss after calibration."""

import pytest
import torch
from refusals import refused

from calibrant import Predictions, metrics, registry
from calibrant.calibrators import Temperature
from calibrant.nn.selection import refine_then_calibrate, refinement_nll


@pytest.fixture(params=[2, 10])
def calibrated(request) -> Predictions:
    g = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(4000, request.param, dtype=torch.float64, generator=g)
    return Predictions(logits, torch.multinomial(logits.softmax(-1), 1, generator=g).squeeze(1))


def test_refinement_nll_ignores_the_scale_of_logits(calibrated):
    nll = metrics.nll(calibrated)
    for scale in 0.1, 1.0, 7.0:
        value = refinement_nll(scale * calibrated.logits, calibrated.labels, folds=1)
        assert value <= nll
        cross_fitted = refinement_nll(scale * calibrated.logits, calibrated.labels)
        assert value <= cross_fitted <= value + 0.01
        assert value == pytest.approx(nll, rel=1e-3)  # calibrated predictions have T = 1, up to noise


def test_epoch_of_lowest_refinement_nll_is_selected():
    """Accuracy and overconfidence both grow from epoch to epoch."""
    g = torch.Generator().manual_seed(0)
    truth = 2 * torch.randn(5000, 4, dtype=torch.float64, generator=g)
    labels = torch.multinomial(truth.softmax(-1), 1, generator=g).squeeze(1)
    noise = torch.randn(5000, 4, dtype=torch.float64, generator=g)
    epochs = [
        Predictions(scale * (truth + sigma * noise), labels)
        for sigma, scale in [(2.0, 0.4), (1.0, 1.0), (0.5, 3.0), (0.1, 6.0), (0.6, 6.0)]
    ]
    by_nll = min(range(5), key=lambda i: float(metrics.nll(epochs[i])))
    epoch, temperature = refine_then_calibrate(iter(epochs))
    assert (by_nll, epoch) == (1, 3)
    assert float(temperature.temperature) == pytest.approx(6.0, rel=0.05)


def test_first_of_equal_epochs_is_selected(calibrated):
    assert refine_then_calibrate([calibrated, calibrated])[0] == 0
    with refused("no_epochs"):
        refine_then_calibrate([])


def test_refinement_is_the_score_of_cross_fitted_maps(calibrated):
    p = Predictions(3 * calibrated.logits, calibrated.labels).double()
    for name in "nll", "brier":
        expected = metrics.decompose_score(p, fit=Temperature.fit, score=name).refinement.value
        assert float(registry.METRICS[f"refinement_{name}"](p)) == pytest.approx(expected, rel=2e-3)


@pytest.mark.slow
def test_cross_fitting_reduces_the_optimism_of_few_samples():
    """Random predictions seem to improve if a temperature is evaluated on its own data."""
    gains = []
    for seed in range(30):
        g = torch.Generator().manual_seed(seed)
        z, y = torch.randn(20, 2, generator=g, dtype=torch.float64), torch.randint(2, (20,), generator=g)
        gains.append([0.6931 - float(refinement_nll(z, y, folds=folds)) for folds in (1, 5)])
    fitted, cross_fitted = (sum(g) / len(g) for g in zip(*gains, strict=True))
    assert fitted > 0.003
    assert cross_fitted < fitted - 0.003


def test_refinement_metrics_are_found_by_name():
    assert metrics.refinement_nll is registry.METRICS["refinement_nll"]
    assert metrics.metric_info("refinement_brier(folds=2)").title == "Brier score after temperature scaling"
    with pytest.raises(AttributeError, match="refinement_nul"):
        metrics.refinement_nul  # noqa: B018
