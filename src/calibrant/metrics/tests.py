"""Tests of perfect calibration of the top label: the same names as the numbers, (logits, labels) -> `Evidence`."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from calibrant._bins import Events, Ties
from calibrant._types import InputError, Labels, Logits, PerExample
from calibrant.metrics._cumulative import kernel_sum, ks_of, kuiper_of, own_pairs, range_sf, skce_of, sup_sf
from calibrant.metrics._results import Evidence

__all__ = ["ks", "kuiper", "skce", "two_sample"]


def kuiper(logits: Logits, labels: Labels, *, weights: PerExample | None = None) -> Evidence:
    """Kuiper's calibration error and its p-value: the range of a Brownian motion, the law of a calibrated model.

    No bins and no simulation. The law is that of many examples; it errs to the safe side for few and for
    ties.

    >>> print(kuiper(torch.zeros(100, 2), torch.tensor([0] * 60 + [1] * 40)))
    0.1000 (p = 0.181)
    """
    return kuiper_test(Events.top(logits, labels, weights).ties)


def ks(logits: Logits, labels: Labels, *, weights: PerExample | None = None) -> Evidence:
    """Kolmogorov-Smirnov calibration error and its p-value: the supremum of a Brownian motion's absolute value.

    >>> print(ks(torch.zeros(100, 2), torch.tensor([0] * 60 + [1] * 40)))
    0.1000 (p = 0.091)
    """
    ties = Events.top(logits, labels, weights).ties
    statistic = float(ks_of(ties))
    return Evidence(statistic, _p_value(statistic, ties, sup_sf))


def skce(
    logits: Logits,
    labels: Labels,
    *,
    width: float = 0.4,
    draws: int = 999,
    seed: int = 0,
    weights: PerExample | None = None,
) -> Evidence:
    """Squared kernel calibration error and its p-value by simulation.

    Correctness is drawn anew from the confidences: the p-value is exact for any number of examples, in steps of
    1 / (draws + 1), and the same for the same seed.

    >>> skce(torch.zeros(100, 2), torch.tensor([0] * 80 + [1] * 20)).p_value
    0.001
    """
    ties = Events.top(logits, labels, weights).ties
    own = own_pairs(ties)
    generator = torch.Generator(device=ties.value.device).manual_seed(seed)
    observed = kernel_sum(ties, ties.correct - ties.mass * ties.value, width) - own
    exceeded = 0
    for _ in range(draws):
        correct = draw(ties, generator)
        drawn = Ties(ties.value, ties.mass, correct, ties.square, ties.count, ties.weighted)
        exceeded += int(kernel_sum(ties, correct - ties.mass * ties.value, width) - own_pairs(drawn) >= observed)
    return Evidence(float(skce_of(ties, width)), (exceeded + 1) / (draws + 1))


def draw(ties: Ties, generator: torch.Generator) -> Tensor:
    """Correctness of every group if each example is right with the probability it states."""
    return torch.binomial(ties.count.double(), ties.value, generator=generator) * ties.mass / ties.count


def kuiper_test(ties: Ties) -> Evidence:
    """Kuiper's test on sorted examples."""
    statistic = float(kuiper_of(ties))
    return Evidence(statistic, _p_value(statistic, ties, range_sf))


def _p_value(statistic: float, ties: Ties, sf: Callable[[float], float]) -> float:
    sigma = math.sqrt(float(ties.spread)) / float(ties.mass.sum())
    if sigma == 0:  # every confidence is 0 or 1: one miss is a contradiction
        return 1.0 if statistic == 0 else 0.0
    return sf(statistic / sigma)


def two_sample(first: Sequence[float], second: Sequence[float], *, equal_variance: bool = True) -> Evidence:
    """Student's two-sample t-test of a metric over seeds, second minus first (as in Wang et al. 2021, Table 2).

    The statistic is t; the p-value is two-sided. `equal_variance=False` is Welch's test.

    >>> print(two_sample([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]))
    3.6742 (p = 0.0213)
    """
    from scipy.stats import ttest_ind  # slow to import

    if min(len(first), len(second)) < 2:
        raise InputError(f"a t-test needs at least 2 values on each side, got {len(first)} and {len(second)}")
    found: Any = ttest_ind(second, first, equal_var=equal_variance)
    return Evidence(float(found.statistic), float(found.pvalue))
