"""`OnlineScaling`: its regret bound, references, and convergence to the true map."""

import math

import pytest
import torch
from monitoring.streams import draw
from refusals import code_of

from calibrant import Predictions, calibrators, metrics
from calibrant.monitoring import OnlineScaling


def run_batches(p, size, **options):
    scaling = OnlineScaling.start(p.k, **options)
    for first in range(0, len(p), size):
        scaling = scaling.update(p[first : first + size])
    return scaling


@pytest.mark.parametrize("share", [0.0, 0.01])
@pytest.mark.parametrize("k", [2, 4])
def test_regret_is_within_its_bound_for_any_labels(k, share):
    """Labels of an adversary who always chooses the least likely class."""
    z = 2 * torch.randn(60, k, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scaling = OnlineScaling.start(k, share=share)
    for row in z.split(1):
        scaling = scaling.update(row, scaling(row).argmin(1))
    assert -1e-9 <= scaling.regret <= scaling.regret_bound + 1e-9
    assert scaling.batch_regret == pytest.approx(scaling.regret)  # batches of one row


def test_losses_are_those_of_rows_predicted_in_turn():
    p = draw(40, k=3, scale=2.0)
    scaling, loss = OnlineScaling.start(3), 0.0
    for i in range(len(p)):
        loss += float(metrics.nll(p[i : i + 1].apply(scaling)))
        scaling = scaling.update(p[i : i + 1])
    assert scaling.loss == pytest.approx(loss, rel=1e-10)
    at_once = OnlineScaling.start(3).update(p)
    assert at_once.loss == pytest.approx(loss, rel=1e-10)
    torch.testing.assert_close(at_once.log_weights, scaling.log_weights)
    assert at_once.batch_loss == pytest.approx(len(p) * float(metrics.nll(p.apply(OnlineScaling.start(3)))), rel=1e-10)


def test_share_follows_the_recursion_of_the_weights():
    p = draw(25, k=3, scale=0.5)
    scaling = run_batches(p, 7, share=0.1)
    weights = torch.full((len(scaling.slopes),), 1 / len(scaling.slopes), dtype=torch.float64)
    for i in range(len(p)):
        probs = (scaling.slopes[:, None] * p.logits[i]).softmax(1)[:, p.labels[i]]
        weights = 0.9 * weights * probs / (weights @ probs) + 0.1 / len(weights)
    torch.testing.assert_close(scaling.log_weights.exp(), weights)


def test_converges_to_the_true_temperature():
    p = draw(6000, k=5, scale=2.0)
    scaling = run_batches(p, 500)
    temperature = calibrators.Temperature.fit(p)
    fresh = draw(4000, k=5, scale=2.0, seed=9)
    assert scaling.best_fixed_map.slope == pytest.approx(float(1 / temperature.temperature), rel=0.06)
    online, fitted = (float(metrics.nll(fresh.apply(calibrator))) for calibrator in (scaling, temperature))
    assert online == pytest.approx(fitted, abs=1e-3)


def test_converges_to_a_slope_and_shift():
    g = torch.Generator().manual_seed(0)
    z = 1.5 * torch.randn(8000, generator=g, dtype=torch.float64)
    y = (torch.rand(8000, generator=g, dtype=torch.float64) < (0.5 * z + 0.6).sigmoid()).long()
    scaling = run_batches(Predictions.from_binary_logits(z, y), 1000)
    assert scaling.best_fixed_map == pytest.approx((0.5, 0.6), abs=0.11)
    x = torch.tensor([[0.0, 2.0]], dtype=torch.float64)
    assert float(scaling(x).softmax(1)[0, 1]) == pytest.approx(1 / (1 + math.exp(-1.6)), abs=0.02)


def test_share_follows_a_change():
    before, after = draw(3000, k=3, scale=2.0), draw(1500, k=3, scale=0.5, seed=1)
    losses = {}
    for share in (0.0, 0.002):
        scaling = run_batches(before, 100, share=share)
        start = scaling.batch_loss
        for first in range(0, len(after), 100):
            scaling = scaling.update(after[first : first + 100])
        losses[share] = scaling.batch_loss - start
    assert losses[0.002] < losses[0.0] - 20


def test_probabilities_are_those_of_a_distribution():
    scaling = run_batches(draw(50, k=3), 50)
    z = torch.tensor([[0.0, -math.inf, 3.0], [1e4, 0.0, -1e4]], dtype=torch.float64)
    assert torch.isfinite(scaling(z).exp()).all()
    torch.testing.assert_close(scaling(z).exp().sum(1), torch.ones(2, dtype=torch.float64))
    assert scaling(z[:0]).shape == (0, 3)


def test_bad_input_is_refused():
    p = draw(10)
    assert code_of(OnlineScaling.start, 1) == "settings"
    assert code_of(OnlineScaling.start, 3, share=1.0) == "settings"
    assert code_of(OnlineScaling.start(4).update, p) == "num_classes"
    assert code_of(OnlineScaling.start(3).update, Predictions(p.logits, p.labels, torch.ones(10))) == "weights"
