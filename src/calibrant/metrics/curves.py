"""Curves: predictions, or (logits, labels) -> `Curve`."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from calibrant.backend.bins import ClusterSums, GroupedScores
from calibrant.metrics import _corp, _ranking
from calibrant.metrics._cumulative import draw_outcomes
from calibrant.metrics._intervals import Curve
from calibrant.predictions import as_predictions

__all__ = ["corp", "risk_coverage"]

_MAX_BAND_GROUPS = 4096  # groups of confidence that a band is computed from


def corp(
    predictions: Any, labels: Any = None, weights: Any = None, *, level: float = 0.90, draws: int = 200, seed: int = 0
) -> Curve:
    """The CORP reliability curve: confidence against its isotonic recalibration (Dimitriadis et al. 2021).

    The band is where the curve of a perfectly calibrated model lies: correctness is drawn `draws` times from the
    confidences, or of examples in clusters the signs of what these are off (`draws=0` leaves the band out). Its points
    beyond the band are evidence of miscalibration there.

    >>> curve = corp(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]), draws=0)
    >>> curve.x, curve.y
    (tensor([0.5000], dtype=torch.float64), tensor([0.7500], dtype=torch.float64))
    """
    with as_predictions(predictions, labels, weights) as p:
        return corp_of(p.events.ties, level, draws, seed)


def risk_coverage(predictions: Any, labels: Any = None, weights: Any = None) -> Curve:
    """Error of the most confident predictions (y) against the share of all that they are (x).

    >>> curve = risk_coverage(torch.tensor([[0.0, 2.0], [0.0, 1.0]]), torch.tensor([1, 0]))
    >>> curve.x, curve.y
    (tensor([0.5000, 1.0000], dtype=torch.float64), tensor([0.0000, 0.5000], dtype=torch.float64))
    """
    with as_predictions(predictions, labels, weights) as p:
        return risk_coverage_of(p.events.ties)


def risk_coverage_of(ties: GroupedScores) -> Curve:
    """The curve from sorted examples."""
    return Curve(*_ranking.risk_coverage(ties))


def corp_of(ties: GroupedScores, level: float, draws: int, seed: int) -> Curve:
    """The curve and its band from sorted examples; many distinct confidences are first merged into 4,096."""
    ties = merge_ties(ties, _MAX_BAND_GROUPS)
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
    """Curves of a calibrated model whose clusters vary as these do: signs are drawn for what they are off."""
    mass = sums.total_weight.sum(0)
    residuals = sums.gap - sums.total_weight * (sums.gap.sum(0) / mass)
    place = torch.searchsorted(sums.value.contiguous(), ties.value.contiguous()).clamp_max_(len(mass) - 1)
    for _ in range(draws):
        signs = (
            torch.randint(0, 2, (len(residuals),), generator=generator, device=residuals.device).to(residuals) * 2 - 1
        )
        share = (sums.value + signs @ residuals / mass).clamp(0, 1)
        yield _corp.isotonic_fit(GroupedScores(sums.value, mass, share * mass))[place]


def merge_ties(ties: GroupedScores, max_groups: int) -> GroupedScores:
    """Neighbors merged into at most `most` groups of nearly equal mass."""
    if len(ties.value) <= max_groups:
        return ties
    _, index = ties.slot_indices(max_groups).unique_consecutive(return_inverse=True)

    def total(values: Tensor) -> Tensor:
        return torch.zeros(int(index[-1]) + 1, dtype=values.dtype, device=values.device).index_add(0, index, values)

    mass = total(ties.total_weight)
    value = total(ties.total_weight * ties.value) / mass
    return GroupedScores(value, mass, total(ties.correct), ties.clusters)
