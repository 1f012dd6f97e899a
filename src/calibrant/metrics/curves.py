"""Curves: predictions, or logits and labels -> `Curve`."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from calibrant.backend.bins import ClusterSums, GroupedScores
from calibrant.metrics import _corp, _ranking
from calibrant.metrics._clusters import draw_signs
from calibrant.metrics._cumulative import draw_outcomes
from calibrant.metrics._intervals import Curve
from calibrant.predictions import as_predictions

__all__ = ["corp", "risk_coverage"]

MAX_BAND_GROUPS = 4096  # groups of confidence from which a band is computed


def corp(
    predictions: Any, labels: Any = None, weights: Any = None, *, level: float = 0.90, draws: int = 200, seed: int = 0
) -> Curve:
    """Return the CORP reliability curve: confidence against its isotonic recalibration (Dimitriadis et al. 2021).

    The band contains the curve of a perfectly calibrated model: points outside are evidence of miscalibration there.

    Args:
        predictions: Predictions, or logits.
        labels: Labels, if logits are given.
        weights: Weights, if logits are given.
        level: Probability that the band holds each point of a calibrated curve.
        draws: Draws of outcomes from the confidences, or of signs of the clusters' gaps; 0 leaves the band out.
        seed: Seed of the draws.

    >>> curve = corp(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]), draws=0)
    >>> curve.x, curve.y
    (tensor([0.5000], dtype=torch.float64), tensor([0.7500], dtype=torch.float64))
    """
    with as_predictions(predictions, labels, weights) as p:
        return corp_of(p.events.ties, level, draws, seed)


def risk_coverage(predictions: Any, labels: Any = None, weights: Any = None) -> Curve:
    """Return the error of the most confident predictions (y) against the share of all that they are (x).

    >>> curve = risk_coverage(torch.tensor([[0.0, 2.0], [0.0, 1.0]]), torch.tensor([1, 0]))
    >>> curve.x, curve.y
    (tensor([0.5000, 1.0000], dtype=torch.float64), tensor([0.0000, 0.5000], dtype=torch.float64))
    """
    with as_predictions(predictions, labels, weights) as p:
        return risk_coverage_of(p.events.ties)


def risk_coverage_of(ties: GroupedScores) -> Curve:
    """Return the risk-coverage curve of sorted examples."""
    return Curve(*_ranking.risk_coverage(ties))


def corp_of(ties: GroupedScores, level: float, draws: int, seed: int) -> Curve:
    """Return the CORP curve and its band of sorted examples, first merged into at most 4,096 groups of confidence."""
    ties = merge_ties(ties, MAX_BAND_GROUPS)
    weight = ties.total_weight / ties.total_weight.sum()
    y = _corp.isotonic_fit(ties)
    if draws == 0:
        return Curve(ties.value, y, weight=weight)
    generator = torch.Generator(device=ties.value.device).manual_seed(seed)
    if ties.clusters is None:
        fits = [_corp.isotonic_fit(draw_outcomes(ties, generator)) for _ in range(draws)]
    else:
        fits = list(_draw_cluster_curves(ties, ties.clusters, draws, generator))
    tail = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64, device=ties.value.device)
    low, high = torch.stack(fits).quantile(tail, dim=0)
    return Curve(ties.value, y, low, high, weight)


def _draw_cluster_curves(
    ties: GroupedScores, sums: ClusterSums, draws: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield curves of a calibrated model whose clusters vary as these do: their residuals get random signs."""
    weight = sums.total_weight.sum(0)
    residuals = sums.gap - sums.total_weight * (sums.gap.sum(0) / weight)
    place = torch.searchsorted(sums.value.contiguous(), ties.value.contiguous()).clamp_max_(len(weight) - 1)
    for signs in draw_signs(draws, len(residuals), generator, residuals):
        share = (sums.value + signs @ residuals / weight).clamp(0, 1)
        yield _corp.isotonic_fit(GroupedScores(sums.value, weight, share * weight))[place]


def merge_ties(ties: GroupedScores, max_groups: int) -> GroupedScores:
    """Merge neighbors into at most `max_groups` groups of nearly equal weight."""
    if len(ties.value) <= max_groups:
        return ties
    _, index = ties.slot_indices(max_groups).unique_consecutive(return_inverse=True)
    sums = torch.stack([ties.total_weight, ties.total_weight * ties.value, ties.correct])
    weight, confidence, correct = sums.new_zeros(3, int(index[-1]) + 1).index_add_(1, index, sums)
    return GroupedScores(confidence / weight, weight, correct, ties.clusters)
