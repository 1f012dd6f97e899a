"""New class shares without labels, and a test of whether they alone explain how the predictions changed."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from calibrant._text import display_name, format_percent, format_percent_range
from calibrant.calibrators import PriorShift
from calibrant.metrics import student_quantile
from calibrant.monitoring._features import confidences
from calibrant.monitoring._permutation import STATISTIC_ROUNDING
from calibrant.predictions import Predictions

MAX_SHIFT_CLASSES = 20
MIN_CLASS_ROWS = 5  # labeled examples of every class
NUM_PROBABILITY_BINS = 10  # for two classes
NUM_BOOTSTRAP_DRAWS = 999
_MIN_SINGULAR_VALUE = 1e-9  # relative to the largest; smaller ones are noise of an exactly singular matrix


@dataclass(frozen=True)
class ClassShare:
    """The share of a class in the reference, and its estimate in the new predictions."""

    name: str
    reference: float
    value: float
    low: float  # 90 % limits
    high: float

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """The name, the share in the reference, the new share and its limits as texts."""
        limits = format_percent_range(self.low, self.high)
        return display_name(self.name), format_percent(self.reference), format_percent(self.value), limits


@dataclass(frozen=True)
class LabelShift:
    """Estimates under the assumption that only the class shares have changed, and the test of this assumption."""

    shares: tuple[ClassShare, ...]
    accuracy: float
    accuracy_low: float  # 90 % limits of the accuracy that the new labels will show
    accuracy_high: float
    p_value: float  # of the test that the shares alone explain the change


def estimate_label_shift(reference: Predictions, new: Predictions, seed: int = 0) -> LabelShift | str:
    r"""Estimate the new class shares, and test whether they alone explain the new predictions.

    The shares are the maximum likelihood estimates of `PriorShift` (EM; Saerens et al. 2002, Alexandari et al. 2020).
    If only the shares $\pi$ have changed, the share of new rows in each bin of predictions is $\sum_y \pi_y m_y$, with
    the shares $m_y$ of the bins among the rows of class y in the reference. The test statistic is the minimum over
    $\pi$ of the distance to this sum, in the metric of its covariance (Hansen's J, 1982). Its p-value comes from a
    parametric bootstrap. Bins are ten ranges of the probability for two classes, and each predicted class with a high
    or low confidence for more.

    Returns:
        The estimates, or a sentence on why there are none.
    """
    counts = np.bincount(reference.labels.cpu().numpy(), minlength=reference.k)
    if reference.k > MAX_SHIFT_CLASSES:
        return f"Class shares are estimated for at most {MAX_SHIFT_CLASSES} classes, not for {reference.k}."
    if counts.min() < MIN_CLASS_ROWS:
        return f"Class shares need at least {MIN_CLASS_ROWS} labeled examples of every class."
    if any(p.weights is not None or p.clusters is not None for p in (reference, new)):
        return "Class shares are estimated for independent examples that count once, not for weights or clusters."
    by_class, new_bins, is_right = _count_bins(reference, new)
    shares = _shares_by_em(reference, new, counts)
    statistic, moment_shares = _hansen_statistic(by_class, new_bins)  # and the shares that fit the bins best
    draws = _bootstrap(by_class, int(new_bins.sum()), is_right, moment_shares, seed)
    statistics, drawn_shares, accuracy_errors = map(np.array, zip(*draws, strict=True))
    num_larger = int((statistics >= statistic * (1 - STATISTIC_ROUNDING)).sum())
    accuracy = float(shares @ _recalls(by_class, is_right))
    # Margins of intervals: standard deviations of the bootstrap times a quantile of Student's t
    quantile = student_quantile(0.90, int(counts.min()) - 1)  # the smallest class is known least
    accuracy_margin = quantile * float(accuracy_errors.std())
    share_margins = quantile * drawn_shares.std(0)
    names = reference.class_names or tuple(map(str, range(reference.k)))
    # Limits are around the shares that fit best, as EM shrinks its shares toward the old ones in small samples. They
    # are widened to hold the shares by EM
    low = np.minimum(moment_shares - share_margins, shares).clip(0, 1)
    high = np.maximum(moment_shares + share_margins, shares).clip(0, 1)
    columns = np.stack([counts / counts.sum(), shares, low, high], axis=1)  # as the fields of `ClassShare`
    return LabelShift(
        shares=tuple(ClassShare(name, *row) for name, row in zip(names, columns.tolist(), strict=True)),
        accuracy=accuracy,
        accuracy_low=max(0.0, accuracy - accuracy_margin),
        accuracy_high=min(1.0, accuracy + accuracy_margin),
        p_value=(1 + num_larger) / (1 + NUM_BOOTSTRAP_DRAWS),  # the data count as a draw
    )


def _shares_by_em(reference: Predictions, new: Predictions, counts: np.ndarray) -> np.ndarray:
    """Return the new class shares (k) that `PriorShift` estimates, whose map adds log(new share / old share)."""
    fitted = PriorShift.fit(reference, calibrator="Identity", unlabeled=new)
    # `PriorShift` counts the old shares with one more example, which is spread over the classes
    old_shares = (counts + 1 / len(counts)) / (counts.sum() + 1)
    shares = old_shares * fitted.shift.exp().cpu().numpy()
    return shares / shares.sum()


def _count_bins(reference: Predictions, new: Predictions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count the rows of both sets in the m bins of `estimate_label_shift`.

    Returns:
        Counts of the reference by label (k, m), counts of the new rows (m), and whether the class is predicted in the
        bin (k, m).
    """
    k, n = reference.k, len(reference)
    if k == 2:
        probs = np.concatenate([p.logits.double().softmax(1)[:, 1].cpu().numpy() for p in (reference, new)])
        edges = np.quantile(probs, np.linspace(0, 1, NUM_PROBABILITY_BINS + 1)[1:-1])
        edges = np.unique(np.append(edges, 0.5))  # at 0.5, the predicted class changes
        index = np.searchsorted(edges, probs, side="left")
        predicted = (np.append(edges, 1.0) > 0.5).astype(np.int64)  # by the upper edge of each bin
    else:
        confidence = np.concatenate([confidences(p.with_event("top")) for p in (reference, new)])
        top = np.concatenate([p.predicted.cpu().numpy() for p in (reference, new)])
        medians = np.ones(k)  # of the confidence of each predicted class; unused for a class that is never predicted
        for j in np.unique(top):
            medians[j] = np.median(confidence[top == j])
        index = 2 * top + (confidence > medians[top])
        predicted = np.repeat(np.arange(k), 2)
    by_class = np.zeros((k, len(predicted)))
    np.add.at(by_class, (reference.labels.cpu().numpy(), index[:n]), 1)
    is_right = predicted == np.arange(k)[:, None]
    return by_class, np.bincount(index[n:], minlength=len(predicted)).astype(float), is_right


def _recalls(by_class: np.ndarray, is_right: np.ndarray) -> np.ndarray:
    """Return the recall of each class (k), from its counts in bins and whether the bins predict it, both (k, m)."""
    return (by_class * is_right).sum(1) / by_class.sum(1)


def _hansen_statistic(by_class: np.ndarray, new: np.ndarray) -> tuple[float, np.ndarray]:
    r"""Return Hansen's J and the class shares (k) that attain it, by two steps of generalized least squares.

    J is the minimum over class shares of $r^T C^{-1} r$. Here r is the observed minus the expected share of each bin
    among the new rows, and C is the covariance of r.

    Args:
        by_class: Counts of bins by class in the reference, (k, m).
        new: Counts of bins of the new rows, (m).
    """
    n_class, n_new = by_class.sum(1), new.sum()
    means, observed = by_class / n_class[:, None], new / n_new
    shares = n_class / n_class.sum()
    statistic = math.nan
    for _ in range(2):  # the second step uses the covariance at the shares of the first
        covariance = _multinomial_covariance(_positive_shares(shares) @ means) / n_new
        for share, mean, n in zip(shares, means, n_class, strict=True):  # noise of the reference
            covariance += share**2 * _multinomial_covariance(mean) / n
        inverse = np.linalg.pinv(covariance, rcond=_MIN_SINGULAR_VALUE, hermitian=True)
        # Class shares sum to 1, so that the last class has the rest. `free` are the shares of the other classes, which
        # solve the normal equations; the expected shares of the bins are base + free @ directions
        base, directions = means[-1], means[:-1] - means[-1]
        normal_matrix = directions @ inverse @ directions.T
        normal_inverse = np.linalg.pinv(normal_matrix, rcond=_MIN_SINGULAR_VALUE, hermitian=True)
        free = normal_inverse @ (directions @ inverse @ (observed - base))
        shares = np.append(free, 1 - free.sum())
        residual = observed - shares @ means
        statistic = float(residual @ inverse @ residual)
    return statistic, shares


def _multinomial_covariance(mean: np.ndarray) -> np.ndarray:
    """Return the covariance of one multinomial draw with these probabilities (m), (m, m)."""
    return np.diag(mean) - np.outer(mean, mean)


def _positive_shares(shares: np.ndarray) -> np.ndarray:
    """Return shares with negative ones, which least squares may give, set to 0 and the rest scaled to sum to 1."""
    positive = np.clip(shares, 0, None)
    return positive / positive.sum()


def _bootstrap(
    by_class: np.ndarray, n_new: int, is_right: np.ndarray, shares: np.ndarray, seed: int
) -> Iterator[tuple[float, np.ndarray, float]]:
    """Yield the estimates from random reference and new rows, for which class shares alone explain the change.

    New rows are drawn from the reference's distribution of bins in each class, with these class shares. The estimates
    are the statistic, the shares (k) that attain it, and the estimated accuracy minus the accuracy that the drawn
    labels show.

    Args:
        by_class: Counts of bins by class in the reference, (k, m).
        n_new: Number of new rows.
        is_right: Whether the class is predicted in the bin, (k, m).
        shares: Class shares of the new rows (k), by least squares.
        seed: Seed of the draws.
    """
    rng = np.random.default_rng(seed)
    class_probs = _positive_shares(shares)
    n_class = by_class.sum(1).astype(int)
    means = by_class / n_class[:, None]
    for _ in range(NUM_BOOTSTRAP_DRAWS):
        drawn_class = rng.multinomial(n_class, means).astype(float)
        drawn_new = rng.multinomial(rng.multinomial(n_new, class_probs), means)  # (k, m), by the unseen label
        statistic, drawn_shares = _hansen_statistic(drawn_class, drawn_new.sum(0).astype(float))
        accuracy = float(drawn_shares @ _recalls(drawn_class, is_right))
        yield statistic, drawn_shares, accuracy - float((drawn_new * is_right).sum() / n_new)
