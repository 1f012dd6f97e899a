"""Bin-free errors: what adds up when the examples are sorted by confidence."""

import math

import torch
from torch import Tensor

from calibrant._bins import Events, Ties
from calibrant._types import Labels, Logits, PerExample, Scalar

__all__ = ["ks", "kuiper", "mmce", "skce"]


def kuiper(logits: Logits, labels: Labels, *, weights: PerExample | None = None) -> Scalar:
    r"""Kuiper's calibration error, $\max_k C_k - \min_k C_k$ (Arrieta-Ibarra et al. 2022, ECCE-R).

    $C_k = \frac1n \sum_{i \le k} (a_i - c_i)$ of correctness a and confidence c runs over examples sorted by
    confidence, from C_0 = 0, and is read only where a tie ends. It is the largest gap of any interval of confidences,
    times the share of examples there: the cutoff calibration error (Rossellini et al. 2025). Its p-value is
    `metrics.tests.kuiper`.

    >>> kuiper(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    tensor(0.2500, dtype=torch.float64)
    """
    return kuiper_of(Events.top(logits, labels, weights).ties)


def ks(logits: Logits, labels: Labels, *, weights: PerExample | None = None) -> Scalar:
    r"""Kolmogorov-Smirnov calibration error, $\max_k |C_k|$ (Gupta et al. 2021; ECCE-MAD). See `kuiper`.

    >>> ks(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    tensor(0.2500, dtype=torch.float64)
    """
    return ks_of(Events.top(logits, labels, weights).ties)


def skce(logits: Logits, labels: Labels, *, width: float = 0.4, weights: PerExample | None = None) -> Scalar:
    r"""Squared kernel calibration error of the top label, without bias (Widmann et al. 2019).

    $\mathrm{mean}_{i \ne j}\, u_i u_j e^{-|c_i - c_j| / w}$ with u = correct - confidence: their estimator with the
    Laplacian kernel and width of Kumar et al. (2018), in O(n log n). Its mean is 0 for a calibrated model, so it can be
    negative; 0 for a single example, which has no pair. Its p-value is `metrics.tests.skce`.

    >>> skce(torch.zeros(2, 2), torch.tensor([0, 1]))  # u = 1/2 and -1/2, kernel 1
    tensor(-0.2500, dtype=torch.float64)
    """
    return skce_of(Events.top(logits, labels, weights).ties, width)


def mmce(logits: Logits, labels: Labels, *, width: float = 0.4, weights: PerExample | None = None) -> Scalar:
    r"""Maximum mean calibration error, $\sqrt{\frac1{n^2} \sum_{ij} u_i u_j e^{-|c_i - c_j| / w}}$ (Kumar et al. 2018).

    Biased upward, as the pairs i = j count; `skce` leaves them out.

    >>> mmce(torch.zeros(2, 2), torch.tensor([0, 0]))
    tensor(0.5000, dtype=torch.float64)
    """
    ties = Events.top(logits, labels, weights).ties
    return kernel_sum(ties, ties.correct - ties.mass * ties.value, width).clamp_min(0).sqrt() / ties.mass.sum()


def cumulative(ties: Ties) -> Tensor:
    """C_0 .. C_g: the running sum of correctness minus confidence, per unit of mass."""
    steps = (ties.correct - ties.mass * ties.value) / ties.mass.sum()
    return torch.cat([steps.new_zeros(1), steps.cumsum(0)])


def kuiper_of(ties: Ties) -> Scalar:
    """Range of the running sum."""
    c = cumulative(ties)
    return c.max() - c.min()


def ks_of(ties: Ties) -> Scalar:
    """Largest absolute value of the running sum."""
    return cumulative(ties).abs().max()


def kernel_sum(ties: Ties, steps: Tensor, width: float) -> Tensor:
    r"""$\sum_{gh} s_g s_h e^{-|v_g - v_h| / w}$ over groups, by one running sum.

    `steps` may hold several rows. Confidences lie in [0, 1], so that exponents stay below 1 / width.
    """
    growth = ((ties.value - ties.value[0]) / width).exp()
    before = (steps * growth).cumsum(-1) - steps * growth
    return steps.square().sum(-1) + 2 * (steps / growth * before).sum(-1)


def own_pairs(ties: Ties) -> Tensor:
    """The pairs i = j, sum of w^2 u^2, as correct examples weigh what their group weighs on average."""
    share = ties.accuracy
    return (ties.square * (share * (1 - ties.value).square() + (1 - share) * ties.value.square())).sum()


def skce_of(ties: Ties, width: float) -> Scalar:
    """The unbiased estimator on sorted examples."""
    pairs = ties.mass.sum().square() - ties.square.sum()
    if float(pairs) <= 0:
        return pairs.new_zeros(())
    return (kernel_sum(ties, ties.correct - ties.mass * ties.value, width) - own_pairs(ties)) / pairs


def range_sf(r: float) -> float:
    r"""P(range of Brownian motion on [0, 1] > r), $8 \sum_k (-1)^{k-1} k (1 - \Phi(k r))$ (Feller 1951).

    >>> round(range_sf(2.497672161), 9)
    0.05
    """
    if r < 0.4:
        return 1.0
    k = torch.arange(1, 101, dtype=torch.float64)
    terms = k * torch.special.erfc(k * r / math.sqrt(2)) / 2
    return min(1.0, max(0.0, 8 * float(terms[::2].sum() - terms[1::2].sum())))


def sup_sf(x: float) -> float:
    r"""P(sup |Brownian motion on [0, 1]| > x), $1 - \frac4\pi \sum_k \frac{(-1)^k}{2k+1} e^{-(2k+1)^2 \pi^2 / 8x^2}$.

    >>> round(sup_sf(2.241402727), 9)
    0.05
    """
    if x < 0.15:
        return 1.0
    if x > 2:  # the reflected series: no cancellation in the tail
        k = torch.arange(0, 50, dtype=torch.float64)
        tail = torch.special.erfc((2 * k + 1) * x / math.sqrt(2))
        return min(1.0, 2 * float(tail[::2].sum() - tail[1::2].sum()))
    k = torch.arange(0, 50, dtype=torch.float64)
    odd = 2 * k + 1
    terms = (-(odd**2) * math.pi**2 / (8 * x**2)).exp() / odd
    return min(1.0, max(0.0, 1 - 4 / math.pi * float(terms[::2].sum() - terms[1::2].sum())))
