"""Intervals of twenty examples, where those of a normal mean collapse."""

import pytest
import torch

from calibrant import Predictions, metrics
from calibrant._bins import Events
from calibrant.metrics._results import gap_interval


def test_gap_interval_does_not_collapse_when_all_are_right():
    answers = Predictions.from_confidence([0.9] * 20, [1] * 20)
    gap = metrics.signed_gap.interval(answers)
    assert gap.value == pytest.approx(-0.1)
    assert gap.low == pytest.approx(-0.1)
    assert 0 < gap.high < 0.1


def test_gap_interval_covers_with_twenty_calibrated_examples():
    draws, n = 400, 20
    generator = torch.Generator().manual_seed(0)
    said = 0.95 + 0.005 * (torch.rand(draws, n, generator=generator, dtype=torch.float64) - 0.5)
    right = (torch.rand(draws, n, generator=generator, dtype=torch.float64) < said).double()
    intervals = [gap_interval(Events(c, y), 0.9) for c, y in zip(said, right)]
    assert sum(0.0 in interval for interval in intervals) / draws > 0.88  # the normal interval of a mean: .63


def test_summary_has_the_gap_interval_of_the_predictions():
    answers = Predictions.from_confidence([0.9, 0.8] * 10, [1] * 19 + [0])
    summed = metrics.Summary.from_predictions(answers).interval("signed_gap")
    whole = metrics.signed_gap.interval(answers)
    assert [summed.low, summed.high] == pytest.approx([whole.low, whole.high], abs=1e-12)
