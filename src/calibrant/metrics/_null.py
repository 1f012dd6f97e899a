"""Chance by simulation: outcomes of a calibrated model, for independent examples or for clusters."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.backend.bins import MAX_CLUSTER_SLOTS, ClusterSums, GroupedScores

NUM_NULL_DRAWS = 999  # p-values are multiples of 1/1000
MAX_CLUSTERED_PLACES = 64  # places of confidence at which sums of clusters are drawn
MAX_CHUNK_ELEMENTS = 1 << 20  # gaps of unanimous clusters that are drawn at once
PRIOR_EVENTS = 0.25  # expected events of unanimous clusters that join those of the sample


@dataclass(frozen=True, eq=False)
class NullGaps:
    """Gaps at places of confidence, as observed and as drawn for a calibrated model.

    A gap is the sum of outcomes minus confidences. There are g places and d draws.
    """

    value: Tensor  # (g) float64, mean confidence of a place
    total_weight: Tensor  # (g)
    observed: Tensor  # (1 g)
    drawn: Tensor  # (d g)
    dispersion: float = 1.0  # as in `GroupedScores`

    @classmethod
    def draw(cls, by_score: GroupedScores, draws: int = NUM_NULL_DRAWS, seed: int = 0) -> "NullGaps":
        """Draw gaps: of independent examples from their confidences, of clusters as `_draw_clustered_gaps` does.

        Fractional outcomes vary less than events: the gaps of events are multiplied by the root of their dispersion.
        """
        generator = torch.Generator().manual_seed(seed)
        if (sums := by_score.clusters) is not None:
            sums = ClusterSums(sums.value.cpu(), sums.total_weight.cpu(), sums.gap.cpu())
            sums = sums.equal_mass(MAX_CLUSTERED_PLACES) if len(sums.value) > MAX_CLUSTERED_PLACES else sums
            drawn = _draw_clustered_gaps(sums, draws, generator, by_score.dispersion)
            weight, observed = sums.total_weight.sum(0), sums.gap.sum(0, keepdim=True)
            return cls(sums.value, weight, observed, drawn, by_score.dispersion)
        by_score = merge_scores(by_score, MAX_CLUSTER_SLOTS)
        value, weight, gap = by_score.value.cpu(), by_score.total_weight.cpu(), by_score.gap.cpu()
        drawn = draw_hits(weight.expand(draws, -1), value, generator) - weight * value
        return cls(value, weight, gap[None], drawn * math.sqrt(by_score.dispersion), by_score.dispersion)

    def p_value(self, statistic: Callable[[Tensor], Tensor]) -> float:
        """Return the share of draws with as large a statistic, which takes rows of gaps (r g) and returns (r)."""
        observed, drawn = float(statistic(self.observed)), statistic(self.drawn)
        exceeded = int((drawn >= observed - 1e-9 * abs(observed)).sum())  # equal up to rounding counts
        return (exceeded + 1) / (len(drawn) + 1)


def draw_hits(weight: Tensor, value: Tensor, generator: torch.Generator) -> Tensor:
    """Draw the weight of the events among examples of given weight and confidence; weights below 1 round up."""
    count = weight.ceil()
    hits = torch.binomial(count, value.expand_as(count).contiguous(), generator=generator)
    return hits * weight / count.clamp_min(1)


def draw_outcomes(by_score: GroupedScores, generator: torch.Generator) -> GroupedScores:
    """Draw the outcomes of every group from its confidence."""
    hits = draw_hits(by_score.total_weight, by_score.value, generator)
    if by_score.dispersion < 1:
        expected = by_score.total_weight * by_score.value
        hits = expected + (hits - expected) * math.sqrt(by_score.dispersion)
    return GroupedScores(by_score.value, by_score.total_weight, hits)


def merge_scores(by_score: GroupedScores, max_groups: int) -> GroupedScores:
    """Merge neighbors into at most `max_groups` groups of nearly equal weight."""
    if len(by_score.value) <= max_groups:
        return by_score
    sums = by_score.cumulative_sums
    cuts = torch.linspace(0, 1, max_groups + 1, dtype=torch.float64, device=sums.device) * sums[0, -1]
    ends = torch.searchsorted(sums[0].contiguous(), cuts[1:-1].contiguous())
    index = torch.cat([ends.new_tensor([0, sums.shape[1] - 1]), ends]).unique()
    weight, confidence, correct, _ = sums[:, index].diff()
    value = (confidence / weight).clamp_max(1)
    return GroupedScores(value, weight, correct, by_score.clusters, by_score.fraction_variance, by_score.dispersion)


def _draw_clustered_gaps(sums: ClusterSums, draws: int, generator: torch.Generator, dispersion: float) -> Tensor:
    """Draw the gaps of a calibrated model with clusters, (d g), and studentize them by half.

    In every draw, each cluster is unanimous with probability `ClusterModel.unanimous_share`: a single uniform number
    decides the outcomes of all its examples. The examples of the other clusters are independent.

    If a few clusters have large gaps by chance, their examples also seem to depend on each other strongly. Tests of 20
    calibrated clusters would therefore reject too rarely. Student's t test divides every draw by the ratio of its
    estimated standard deviation to that of the sample. This is too much for 100 clusters, because real clusters are
    rarely unanimous and their squared gaps vary less. Dividing by the square root of the ratio gives levels of 3 to 6 %
    in simulations of both. In the deviation of a draw, independent examples have their expected squared gaps.
    """
    value, weight = sums.value, sums.total_weight
    model = ClusterModel.from_sums(sums, dispersion)
    u = sums.gap.sum(1)
    share = model.unanimous_share(u.square().sum(), u @ model.imbalance)
    is_unanimous = torch.rand(draws, len(weight), generator=generator, dtype=torch.float64) < share
    uniform = torch.rand(draws, len(weight), generator=generator, dtype=torch.float64)
    remaining_weight = (~is_unanimous).double() @ weight
    gaps = math.sqrt(dispersion) * (draw_hits(remaining_weight, value, generator) - remaining_weight * value)
    squares, products = (~is_unanimous).double() @ model.independent, gaps.new_zeros(draws)
    pairs = is_unanimous.nonzero()
    for draw, cluster in (chunk.T for chunk in pairs.split(max(1, MAX_CHUNK_ELEMENTS // len(value)))):
        is_event = uniform[draw, cluster, None] < value
        cluster_gaps = math.sqrt(dispersion) * weight[cluster] * (is_event.double() - value)
        gaps.index_add_(0, draw, cluster_gaps)
        u = cluster_gaps.sum(1)
        squares.index_add_(0, draw, u.square())
        products.index_add_(0, draw, u * model.imbalance[cluster])
    drawn_variance = model.variance(model.unanimous_share(squares, products))
    ratio = (model.variance(share) / drawn_variance).nan_to_num(1.0)  # 0 / 0 if every confidence is 0 or 1
    return gaps * ratio.pow(1 / 4)[:, None]  # the root of the ratio of standard deviations


@dataclass(frozen=True, eq=False)
class ClusterModel:
    r"""Clusters that are unanimous with a common probability, the share $\lambda$, and otherwise independent examples.

    A cluster with weight N and expected events S, of which S + u happen, has the variance $V_1$ of u if it is unanimous
    and $V_0$ with independent examples, both times the dispersion of fractional outcomes.
    """

    independent: Tensor  # (m) V_0 of every cluster
    unanimous: float  # sum of V_1
    imbalance: Tensor  # (m) N - 2 S
    num_events: float  # expected events, or expected non-events where these are rarer

    @classmethod
    def from_sums(cls, sums: ClusterSums, dispersion: float) -> "ClusterModel":
        """Compute the variances."""
        value, weight = sums.value, sums.total_weight
        n, expected = weight.sum(1), weight @ value
        # events of a unanimous cluster whose number falls between two places
        events = n[:, None] - torch.nn.functional.pad(weight.cumsum(1), (1, 0))
        width = value.diff(prepend=value.new_zeros(1), append=value.new_ones(1))
        unanimous = float(((events - expected[:, None]).square() @ width).sum())
        independent = weight @ (value * (1 - value))
        num_events = float((weight * torch.minimum(value, 1 - value)).sum())
        return cls(independent * dispersion, unanimous * dispersion, n - 2 * expected, num_events)

    def variance(self, share: Tensor) -> Tensor:
        """Return the variance of the sum of all gaps if this share of the clusters is unanimous."""
        return share * self.unanimous + (1 - share) * self.independent.sum()

    def unanimous_share(self, squares: Tensor, products: Tensor) -> Tensor:
        r"""Estimate the share that explains how the outcomes of a cluster depend on each other.

        The equation $\sum u^2 = \sum \lambda V_1 + (1 - \lambda) V_0$ yields a share that is small whenever rare
        events did not happen, and would exaggerate what they say. The estimate therefore uses
        $u^2 - \rho (N - 2S) u$, which is uncorrelated with u if a cluster's frequency has a beta distribution: then
        $\rho = 2 \lambda / (1 + \lambda)$, and the equation is quadratic in the share. The result is corrected for few
        expected events. A single cluster counts as unanimous.

        Args:
            squares: Sum of $u^2$ over the clusters, of one or more samples.
            products: Sum of $(N - 2S) u$.
        """
        independent = float(self.independent.sum())
        excess = self.unanimous - independent
        if len(self.independent) == 1:
            return torch.ones_like(squares)
        if excess <= 1e-12 * self.unanimous:  # every cluster is a single example
            return torch.zeros_like(squares)
        uncorrected = (squares - independent) / excess
        half = (uncorrected - 2 * products / excess - 1) / 2
        share = (half + (half.square() + uncorrected).clamp_min(0).sqrt()).clamp(0, 1)
        return (share * self.num_events + PRIOR_EVENTS) / (self.num_events + PRIOR_EVENTS)
