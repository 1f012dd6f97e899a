r"""Measure the accuracy of a model from few labeled and many unlabeled rows: which rows to label, and intervals.

Every row needs a probability that the model is right, such as that of a `Fusion` learned from other models. With these
probabilities, the interval of the accuracy is as short as with more labels (prediction-powered inference). The
probabilities need not be calibrated, but must not be fitted to the labels.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant._core.types import InputError, NonNegativeInt, OpenFraction, PositiveInt, check_arguments
from calibrant.metrics import Interval
from calibrant.predictions.validation.arrays import to_column

__all__ = ["LabelPlan", "accuracy_interval", "gap_interval", "rows_to_label"]

MAX_SLOPE = 1.5  # largest slope of the regression of outcomes on probabilities
MAX_GAIN = 4.0  # factor by which the unlabeled rows may change the effective number of labels
MIN_LABELS = 3  # with fewer, slope and residuals cannot be estimated
MIN_DEVIATION = 0.3  # smallest assumed standard deviation of an outcome, because no probability is certain


@dataclass(frozen=True, eq=False)
class LabelPlan:
    """Rows to label, in random order: the first m rows with the first m weights are a fair sample too."""

    rows: np.ndarray  # (n) int64
    weights: np.ndarray  # (n) float64, of these rows in `accuracy_interval`; their expected mean is 1


@check_arguments
def rows_to_label(probability: Any, n: PositiveInt, *, seed: NonNegativeInt = 0) -> LabelPlan:
    r"""Choose the rows to label that determine the accuracy best.

    Rows are sorted by their probability p and divided into n strata with equal sums of their standard deviations,
    $\max(\sqrt{p (1 - p)}, 0.3)$. From each stratum a random row is chosen (the allocation of Neyman 1934). Rows with p
    near 0.5 are chosen more often; the weights, proportional to one over the chance of being chosen, correct for this.

    Args:
        probability: Probability that the model is right on every row (N).
        n: Number of rows to choose.
        seed: Seed of the draws.

    Raises:
        InputError: If probabilities leave [0, 1], or there are fewer than n rows.

    >>> plan = rows_to_label([0.5, 0.6, 0.7, 0.8, 0.9, 0.99], 3)
    >>> sorted(plan.rows.tolist())
    [0, 2, 4]
    """
    p = _read_probabilities(probability, "probabilities")
    if n > len(p):
        raise InputError(f"Expected n of at most {len(p)}, the number of rows, got {n}. Try {len(p)}.", code="n_range")
    rng = np.random.default_rng(seed)
    order = np.lexsort((rng.random(len(p)), p))  # by probability, equal ones in random order
    deviation = np.maximum(np.sqrt(p * (1 - p)), MIN_DEVIATION)
    chance = _cap_shares(deviation * n / deviation.sum(), n)  # of each row to be chosen
    ends = chance[order].cumsum()  # each row takes a segment as long as its chance; all together are n long
    # Systematic sampling: n equidistant points with one random offset fall into the segments of the chosen rows
    points = (np.arange(n) + rng.random()) * ends[-1] / n
    ranks = np.searchsorted(ends, points, side="right").clip(max=len(p) - 1)  # rounding may pass the last end
    rows = rng.permutation(order[ranks])
    return LabelPlan(rows, n / len(p) / chance[rows])


@check_arguments
def accuracy_interval(
    probability: Any, rows: Any, correct: Any, *, weights: Any = None, level: OpenFraction = 0.90
) -> Interval:
    r"""Return the accuracy with its interval over all rows, estimated from few labels.

    The estimate is $\bar y - \lambda (\bar f_n - \bar f_N)$. $\bar y$ is the accuracy of the n labeled rows, and
    $\bar f_n$ and $\bar f_N$ are the mean probabilities of the labeled and of all N rows (prediction-powered inference,
    Angelopoulos et al. 2023). $\lambda$ is the slope of the regression of y on f, within 0 and 1.5 (Angelopoulos, Duchi
    & Zrnic 2023). The variance of the estimate is the variance of the residuals over n, plus
    $\lambda^2 \operatorname{var} f / N$. The interval is that of Wilson (1927) around the estimate, for the number of
    labels with which an accuracy without f would have this variance, within n / 4 and 4 n. If all labels are equal, it
    is the exact interval of Clopper & Pearson (1934) instead. With fewer than 3 labels, the interval is 0 to 1.

    Args:
        probability: Probability that the model is right on every row (N), not fitted to these labels: from a prior,
            from other models, or the stated confidence.
        rows: Indices of the labeled rows (n), a random sample of all rows or those of `rows_to_label`.
        correct: Whether the labeled rows are right (n), 0 or 1.
        weights: Weights of the labeled rows (n), those of `rows_to_label`. Default: equal.
        level: Level of the interval.

    Raises:
        InputError: If probabilities leave [0, 1], outcomes are not 0 or 1, or lengths differ.

    >>> p = np.linspace(0.3, 0.9, 1000)
    >>> rows = np.arange(5, 1000, 20)
    >>> print(accuracy_interval(p, rows, (p[rows] > 0.6).astype(int)))
    0.5041 [0.4320, 0.5759]
    """
    f, index, y, w = _read_labels(probability, rows, correct, weights)
    n = len(y)
    if n < MIN_LABELS:
        return Interval(float(y @ w) / n if n else math.nan, 0.0, 1.0, level)
    if y.min() == y.max():
        return _equal_labels_interval(float(y[0]), n, level)
    accuracy, labeled_mean = float(w @ y) / n, float(w @ f[index]) / n
    distance = f[index] - labeled_mean
    distance_square = float(w @ distance**2)  # 0 if all labeled rows have one probability
    slope = min(max(float(w @ (distance * y)) / distance_square, 0.0), MAX_SLOPE) if distance_square > 0 else 0.0
    estimate = min(max(accuracy - slope * (labeled_mean - float(f.mean())), 0.0), 1.0)
    residuals = w * (y - accuracy - slope * distance)
    # n - 2 degrees of freedom: accuracy and slope are estimated
    variance = float(residuals @ residuals) / (n * (n - 2)) + slope**2 * float(f.var()) / len(f)
    variance_without_f = accuracy * (1 - accuracy) / (n - 1)  # of the mean of equally weighted outcomes
    gain = min(max(variance_without_f / max(variance, 1e-300), 1 / MAX_GAIN), MAX_GAIN)  # 1e-300: not divided by 0
    return _wilson_interval(estimate, n * gain, level)


def gap_interval(confidence: Any, accuracy: Interval) -> Interval:
    """Return the mean confidence minus the accuracy, with its interval. Positive values mean overconfidence.

    Args:
        confidence: Stated confidence of every row (N).
        accuracy: Accuracy over the same rows, from `accuracy_interval`.

    Raises:
        InputError: If confidences leave [0, 1], or the accuracy has no interval.
    """
    if not isinstance(accuracy, Interval):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(
            f"Expected an accuracy with its interval, got {type(accuracy).__name__}. Try accuracy_interval.",
            code="accuracy_kind",
        )
    mean = float(_read_probabilities(confidence, "confidences").mean())
    return Interval(mean - accuracy.value, mean - accuracy.high, mean - accuracy.low, accuracy.level)


def _read_probabilities(values: Any, title: str) -> np.ndarray:
    """Return probabilities (n) in float64. Raises `InputError` for anything else; errors call them `title`."""
    p = to_column(values, title).astype(float)
    if p.ndim != 1 or not len(p) or not bool(((p >= 0) & (p <= 1)).all()):
        raise InputError(f"Expected a column of {title} in [0, 1], got other values.", code="probability_range")
    return p


def _read_labels(
    probability: Any, rows: Any, correct: Any, weights: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the probabilities (N), and the labeled rows, their outcomes and their weights with mean 1 (n)."""
    f, y = _read_probabilities(probability, "probabilities"), to_column(correct, "correct").astype(float)
    index = np.atleast_1d(np.asarray(rows))
    if len(index) and index.dtype.kind not in "iu":
        raise InputError(f"Expected rows as whole numbers, got {index.dtype}. Try np.flatnonzero.", code="rows")
    index = index.astype(np.int64)
    w = np.ones(len(y)) if weights is None else to_column(weights, "weights").astype(float)
    if not y.shape == index.shape == w.shape == (len(y),):
        raise InputError(
            f"Expected as many labels as rows, got labels {y.shape} for rows {index.shape} and weights {w.shape}.",
            code="shape",
        )
    if not bool(((y == 0) | (y == 1)).all()):
        raise InputError("Expected whether each row is right, 0 or 1, got other values.", code="correct_range")
    if len(np.unique(index)) < len(index) or (len(index) and not 0 <= index.min() <= index.max() < len(f)):
        raise InputError(f"Expected different rows from 0 to {len(f) - 1:,}, got others.", code="rows")
    if not bool((w > 0).all() and np.isfinite(w).all()):
        raise InputError("Expected positive weights, got others.", code="weights")
    return f, index, y, w / w.mean() if len(w) else w


def _cap_shares(shares: np.ndarray, n: int) -> np.ndarray:
    """Return chances of being chosen, at most 1 and with sum n, proportional to the shares where they are below 1.

    The shares are positive and have the sum n.
    """
    chances = shares
    while float(chances.max()) > 1 + 1e-12:  # raising the other chances to the sum n may lift some above 1
        is_sure = chances >= 1
        factor = (n - is_sure.sum()) / max(float(shares[~is_sure].sum()), 1e-300)  # not 0 / 0 if all rows are sure
        chances = np.where(is_sure, 1.0, shares * factor)
    return chances


def _equal_labels_interval(share: float, n: int, level: float) -> Interval:
    """Return the exact interval if the share of right answers among n labels is 0 or 1."""
    end = ((1 - level) / 2) ** (1 / n)  # at this accuracy, n answers are all right with probability (1 - level) / 2
    return Interval(share, end, 1.0, level) if share == 1 else Interval(share, 0.0, 1 - end, level)


def _wilson_interval(share: float, n: float, level: float) -> Interval:
    """Return the interval of Wilson (1927) for a share of n labels."""
    from scipy.special import ndtri  # slow to import

    z = float(ndtri((1 + level) / 2))
    center = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2) / (1 + z * z / n)
    return Interval(share, max(center - half, 0.0), min(center + half, 1.0), level)
