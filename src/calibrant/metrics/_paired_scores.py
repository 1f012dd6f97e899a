"""Scores of two models on the same examples, for observed and other labels, and the sums that intervals need."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from calibrant._core.kernels.overlap import hash_rows
from calibrant.metrics._intervals import Sample, ScoreRange
from calibrant.metrics._metric import Metric
from calibrant.predictions import Predictions

MAX_UNSEEN_LOSS = 53 * math.log(2)  # NLL of a probability of 2^-53, the last one that float64 distinguishes from 0


@dataclass(frozen=True, eq=False)
class PairedScores:
    """Scores of two models on the same examples, for their labels and for other ones that they could have had."""

    first: Predictions
    second: Predictions

    def values(self, metric: Metric[...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the smallest, the observed and the largest difference of every example's score, second minus first.

        The extremes are over the observed label, the most likely other one and an arbitrary one. If the range of the
        score is known, such as 0 to 1 for a correct prediction, they are the extremes over any labels and models.
        """
        if self.first is self.second:  # a model does not differ from itself, whatever the labels
            zero = np.zeros(len(self.first))
            return zero, zero, zero
        if isinstance(metric.score_range, ScoreRange):
            difference = metric.values(self.second).astype(float) - metric.values(self.first)
            width = np.full_like(difference, metric.score_range.high - metric.score_range.low)
            return -width, difference, width
        first, second = ([metric.values(pair[i]).astype(float) for pair in self._relabeled] for i in (0, 1))
        return _extremes(first, second)

    def sums(self, metric: Metric[...]) -> np.ndarray:
        """Return numbers (8) from which `paired_difference` computes an interval; `merge_sums` joins those of batches.

        A unit is a cluster, whose weight is n and whose sum of differences is s. Independent examples of weight w count
        as w units.

        1. The number of units.
        2. to 6. Sums over units of n, s, n^2, n s and s^2.
        7. and 8. The smallest and the largest mean difference of a unit with the labels that are extreme for it, or 0.
        """
        low, value, high = self.values(metric)
        w = np.ones_like(value) if self.first.weights is None else self.first.weights
        ends = [np.minimum(low, 0), np.maximum(high, 0)]
        if self.first.clusters is None:
            terms = [w, w, w * value, w, w * value, w * np.square(value)]
            ends = [end[w > 0] for end in ends]
        else:
            n, s, *ends = (np.bincount(self.first.clusters, v) for v in (w, w * value, *(w * end for end in ends)))
            terms = [n > 0, n, s, np.square(n), n * s, np.square(s)]
            ends = [end[n > 0] / n[n > 0] for end in ends]
        numbers = [*(term.astype(float).sum() for term in terms), ends[0].min(), ends[1].max()]
        return np.stack(numbers)

    @cached_property
    def _relabeled(self) -> list[tuple[Predictions, Predictions]]:
        """Both models with the observed labels, with the most likely other ones and, of three or more, arbitrary ones.

        An error need not be the one that the models find most likely. The arbitrary label follows from the logits and
        the label of the example, so that copies have the same one, wherever they are.
        """
        first, second = self.first, self.second
        labels = [_other_labels(first, second)]
        if first.k > 2:
            # two logits make rows different enough, and their sum is the same for both orders of the models
            hashes = sum(hash_rows(p.logits[:, :2], p.labels) for p in (first, second))
            step = (hashes % np.uint64(first.k - 1)).astype(first.labels.dtype)
            labels.append((first.labels + 1 + step) % first.k)
        return [(first, second), *((first.with_labels(y), second.with_labels(y)) for y in labels)]


def merge_sums(sums: np.ndarray, later_sums: np.ndarray) -> np.ndarray:
    """Return the numbers of `PairedScores.sums` for two batches together, which share no clusters."""
    low, high = np.minimum(sums[6:7], later_sums[6:7]), np.maximum(sums[7:], later_sums[7:])
    return np.concatenate([sums[:6] + later_sums[:6], low, high])


def read_sums(sums: Sequence[float]) -> tuple[Sample, ScoreRange]:
    """Return the mean difference over units with its precision, and its range, from `PairedScores.sums`."""
    # for units of weight n and summed difference s, n_s is the sum of n * s, and so on
    num_units, n, s, n_n, n_s, s_s, low, high = sums
    mean = s / n
    unseen_range = ScoreRange(low, high)
    if num_units < 2:  # a single unit does not show its precision
        return Sample(num_units, mean, 0.0, error=math.inf, degrees=0.0), unseen_range
    mean_variance = max(s_s - 2 * mean * n_s + mean**2 * n_n, 0.0) / n**2  # sum of (s - mean n)^2 over units
    error = math.sqrt(mean_variance * num_units / (num_units - 1))
    units = n**2 / n_n  # of equal weight, which would be as precise (Kish 1965)
    return Sample(units, mean, error**2 * (units - 1), error, degrees=units - 1), unseen_range


def score_values(metric: Metric[...], p: Predictions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the smallest, the observed and the largest score of each example of one model.

    The extremes are over two labels, the observed and the most likely other one, or the ends of the score's range if it
    is known.
    """
    if isinstance(metric.score_range, ScoreRange):
        value = metric.values(p).astype(float)
        return np.full_like(value, metric.score_range.low), value, np.full_like(value, metric.score_range.high)
    values = [metric.values(x).astype(float) for x in (p, p.with_labels(_other_labels(p, p)))]
    return _extremes([np.zeros_like(value) for value in values], values)


def _extremes(first: list[np.ndarray], second: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the smallest, the observed and the largest difference of scores (n), second minus first, over labels.

    An infinite loss, of the probability 0, counts as that of 2^-53 for the most likely other label, and is left out for
    the arbitrary one: a class that a model excludes may be impossible.

    Args:
        first: Scores of the first model for the observed, the most likely other and, if there is one, another label.
        second: Scores of the second model.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        value = low = high = second[0] - first[0]
    for i, (a, b) in enumerate(zip(first[1:], second[1:], strict=True)):
        if i == 0:
            a, b = (np.where(np.isinf(x), np.sign(x) * MAX_UNSEEN_LOSS, x) for x in (a, b))
        with np.errstate(invalid="ignore", over="ignore"):  # of equal infinities
            difference = np.where(np.isfinite(b - a), b - a, value)
        low, high = np.minimum(low, difference), np.maximum(high, difference)
    return low, value, high


def _other_labels(first: Predictions, second: Predictions) -> np.ndarray:
    """Return for each example the class other than its label that the models find most likely.

    If they evaluate the event of one class, it is that class for all examples with another label.
    """
    y, a, b = first.labels, first.predicted, second.predicted
    # If the models suggest two classes, take the one of lower index: the order of the models must not matter
    runner_up = np.minimum(first.runner_up, second.runner_up)
    # A model suggests its prediction if that is not the label, otherwise the other model's; if both are right, the
    # second most likely class
    alternative = np.minimum(np.where(a != y, a, b), np.where(b != y, b, a))
    alternative = np.where((a == y) & (b == y), runner_up, alternative)
    return np.where(y == first.of, alternative, first.of) if isinstance(first.of, int) else alternative
