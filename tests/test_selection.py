"""Refine, then calibrate, where the best epoch is known."""

import pytest
import torch

from calibrant import InputError, Predictions, metrics
from calibrant.selection import refine_then_calibrate, refinement_nll


def test_it_is_blind_to_the_scale_of_the_logits(honest):
    at_best = metrics.nll(honest)
    for scale in 0.1, 1.0, 7.0:
        value = refinement_nll(scale * honest.logits, honest.labels)
        assert value <= at_best
        assert value.item() == pytest.approx(float(at_best), rel=1e-3)  # honest predictions have T = 1, up to noise


def test_it_picks_the_most_refined_epoch_and_not_the_least_nll():
    """Epochs that know ever more of the truth, with confidence running away."""
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


def test_the_first_of_equals_wins(honest):
    assert refine_then_calibrate([honest, honest])[0] == 0
    with pytest.raises(InputError, match="no epochs"):
        refine_then_calibrate([])
