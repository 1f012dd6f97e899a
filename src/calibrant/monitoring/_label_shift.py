"""Estimates without labels under label shift, and the test of this assumption."""

import math
from collections.abc import Sequence

import numpy as np

from calibrant._core.arrays import to_numpy
from calibrant._core.kernels.softmax import probabilities
from calibrant.monitoring._estimates import LABEL_SHIFT, MAX_SHARE_CLASSES, Estimate, Precision, Target
from calibrant.monitoring._features import confidences
from calibrant.monitoring._permutation import STATISTIC_ROUNDING
from calibrant.predictions import Predictions

MIN_CLASS_ROWS = 5  # labeled examples of every class
NUM_PROBABILITY_BINS = 10  # for two classes
NUM_BOOTSTRAP_DRAWS = 999
_MIN_SINGULAR_VALUE = 1e-9  # relative to the largest; smaller ones are noise of an exactly singular matrix


def label_shift_obstacle(reference: Predictions, new: Predictions) -> str:
    """Return a sentence on why nothing can be estimated under label shift, or "" if it can."""
    if reference.k > MAX_SHARE_CLASSES:
        return f"Label shift is estimated for at most {MAX_SHARE_CLASSES} classes, not for {reference.k}."
    if any(p.weights is not None or p.clusters is not None for p in (reference, new)):
        return "Label shift is estimated for independent examples that count once, not for weights or clusters."
    if _class_counts(reference).min() < MIN_CLASS_ROWS:
        return f"Label shift needs at least {MIN_CLASS_ROWS} labeled examples of every class."
    singular_values = np.linalg.svd(_class_means(_probs(reference), reference), compute_uv=False)
    if singular_values[-1] <= _MIN_SINGULAR_VALUE * singular_values[0]:
        return "Label shift needs predictions that tell the classes apart."
    return ""


def estimate_label_shift(reference: Predictions, new: Predictions, targets: Sequence[Target]) -> tuple[Estimate, ...]:
    r"""Estimate means of the new predictions, if only the class shares have changed.

    Let M hold the mean probabilities of the rows of each class of the reference, one class per column. The mean
    probabilities of the new rows then are $M q$, which gives the new shares q (the soft confusion matrix of Lipton,
    Wang and Smola 2018). Every mean over the new rows is the sum over classes of $q_y$ times the mean in class y of the
    reference, so that shares, accuracy and gap agree. Negative shares are set to 0, while limits are around the
    estimates of the shares as they are.

    With $b = M^{-T} r$ for the class means r of a score s, the residual $s - b^T p(x)$ has the mean 0 in each class.
    The estimate minus the mean that the new labels will show is the mean of these residuals in the reference, class by
    class with weights q, minus their mean over the new rows. Limits of frequencies hold both this mean and its
    expectation in further rows. `label_shift_obstacle` says when there is no estimate.

    Args:
        reference: Labeled predictions.
        new: Predictions whose labels are not used.
        targets: Means to estimate.
    """
    probs, new_probs = _probs(reference), _probs(new)
    means = _class_means(probs, reference)
    shares = np.linalg.solve(means, new_probs.mean(0))
    return tuple(_estimate_target(target, reference, probs, new_probs, means, shares) for target in targets)


def _estimate_target(
    target: Target,
    reference: Predictions,
    probs: np.ndarray,
    new_probs: np.ndarray,
    means: np.ndarray,
    shares: np.ndarray,
) -> Estimate:
    """Return the estimate of a target, as `estimate_label_shift` describes it.

    Args:
        target: Mean score to estimate.
        reference: Labeled predictions (n).
        probs: Their probabilities (n, k).
        new_probs: Probabilities of the new rows (m, k).
        means: Mean probabilities of each class, one class per column (k, k).
        shares: Estimated shares, which may be negative (k).
    """
    n_class, m = _class_counts(reference), len(new_probs)
    scores = target.slope * target.outcome
    class_scores, class_squares = _class_means(np.column_stack([scores, scores**2]), reference)
    coefficients = np.linalg.solve(means.T, class_scores)
    residuals = scores - probs @ coefficients
    variance = _class_means(residuals[:, None] ** 2, reference)[0] * n_class / (n_class - 1)  # of each class
    positive = _positive_shares(shares)
    reference_parts = positive**2 * variance / n_class
    # Variance by the new rows: of their outcomes, given the estimate, or of the estimated frequency
    row_variance = float((new_probs @ coefficients).var()) if target.is_frequency else 0.0
    new_part = max(float(positive @ variance), row_variance) / m
    square = reference_parts.sum() + new_part  # of the standard error
    # Degrees of freedom of a sum of variances (Welch 1947)
    degree_parts = (reference_parts**2 / (n_class - 1)).sum() + new_part**2 / max(m - 1, 1)
    base, mean = float(target.new_base.mean()), float(positive @ class_scores)
    precision = Precision(
        center=base + float(shares @ class_scores),
        error=math.sqrt(square),
        degrees=square**2 / degree_parts if square > 0 else 0.0,
        size=1 / float((positive**2 / n_class).sum() + 1 / m),
        variance=float(positive @ class_squares) - mean**2,
    )
    return target.estimate(LABEL_SHIFT, base + mean, precision)


def label_shift_p_value(reference: Predictions, new: Predictions, seed: int = 0) -> float:
    r"""Test whether new class shares alone explain the new predictions, and return the p-value.

    If only the shares $\pi$ have changed, the share of new rows in each bin of predictions is $\sum_y \pi_y m_y$, with
    the shares $m_y$ of the bins among the rows of class y in the reference. The test statistic is the distance to this
    sum, in the metric of its covariance, at the shares that fit best (Hansen's J, 1982), with negative shares set to 0.
    Its p-value comes from a parametric bootstrap. Bins are ten ranges of the probability for two classes, and each
    predicted class with a high or low confidence for more.
    """
    by_class, new_bins = _count_bins(reference, new)
    statistic, shares = _hansen_statistic(by_class[None], new_bins[None])
    rng, n_class = np.random.default_rng(seed), by_class.sum(1).astype(int)
    means = by_class / n_class[:, None]
    # New rows are drawn from the reference's bins of each class, with the shares that fit best
    size = NUM_BOOTSTRAP_DRAWS
    drawn_class = rng.multinomial(n_class, means, size=(size, len(means)))
    drawn_new = rng.multinomial(int(new_bins.sum()), _positive_shares(shares[0]) @ means, size=size)
    statistics, _ = _hansen_statistic(drawn_class.astype(float), drawn_new.astype(float))
    num_larger = int((statistics >= statistic[0] * (1 - STATISTIC_ROUNDING)).sum())
    return (1 + num_larger) / (1 + NUM_BOOTSTRAP_DRAWS)  # the data count as a draw


def _probs(p: Predictions) -> np.ndarray:
    """Return the probability of each class (n, k)."""
    return to_numpy(probabilities(p.logits))


def _labels(p: Predictions) -> np.ndarray:
    """Return the label of each row (n)."""
    return p.labels


def _class_counts(p: Predictions) -> np.ndarray:
    """Return the number of rows of each class (k)."""
    return np.bincount(_labels(p), minlength=p.k)


def _class_means(columns: np.ndarray, p: Predictions) -> np.ndarray:
    """Return the mean of each column (n, d) in each class (d, k)."""
    return columns.T @ (_labels(p)[:, None] == np.arange(p.k)) / _class_counts(p)


def _count_bins(reference: Predictions, new: Predictions) -> tuple[np.ndarray, np.ndarray]:
    """Return the counts of the reference by label (k, m) and of the new rows (m), in the bins of the test."""
    k, n = reference.k, len(reference)
    if k == 2:
        probs = np.concatenate([_probs(p)[:, 1] for p in (reference, new)])
        edges = np.unique(np.quantile(probs, np.linspace(0, 1, NUM_PROBABILITY_BINS + 1)[1:-1]))
        index, num_bins = np.searchsorted(edges, probs, side="left"), len(edges) + 1
    else:
        confidence = np.concatenate([confidences(p.with_event("top")) for p in (reference, new)])
        top = np.concatenate([p.predicted for p in (reference, new)])
        medians = np.ones(k)  # of the confidence of each predicted class; unused for a class that is never predicted
        for j in np.unique(top):
            medians[j] = np.median(confidence[top == j])
        index, num_bins = 2 * top + (confidence > medians[top]), 2 * k
    by_class = np.zeros((k, num_bins))
    np.add.at(by_class, (_labels(reference), index[:n]), 1)
    return by_class, np.bincount(index[n:], minlength=num_bins).astype(float)


def _hansen_statistic(by_class: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Return Hansen's J (...) and the class shares (..., k) that fit best, by two steps of generalized least squares.

    J is $r^T C^{-1} r$. Here r is the observed minus the expected share of each bin among the new rows, and C is the
    covariance of r.

    Args:
        by_class: Counts of bins by class in the reference, (..., k, m).
        new: Counts of bins of the new rows, (..., m).
    """
    n_class, n_new = by_class.sum(-1), new.sum(-1)
    means, observed = by_class / n_class[..., None], new / n_new[..., None]
    shares = n_class / n_class.sum(-1, keepdims=True)
    statistic = np.zeros(n_new.shape)
    for _ in range(2):  # the second step uses the covariance at the shares of the first
        positive = _positive_shares(shares)
        covariance = _multinomial_covariance(_combine(positive, means), 1 / n_new)
        covariance += _sum_of_covariances(positive**2 / n_class, means)  # noise of the reference
        inverse = np.linalg.pinv(covariance, rcond=_MIN_SINGULAR_VALUE, hermitian=True)
        # Class shares sum to 1, so that the last class has the rest. `free` are the shares of the other classes, which
        # solve the normal equations; the expected shares of the bins are base + free @ directions
        base, directions = means[..., -1, :], means[..., :-1, :] - means[..., -1:, :]
        weighted = directions @ inverse
        normal_inverse = np.linalg.pinv(
            weighted @ directions.swapaxes(-1, -2), rcond=_MIN_SINGULAR_VALUE, hermitian=True
        )
        free = (normal_inverse @ (weighted @ (observed - base)[..., None]))[..., 0]
        shares = np.concatenate([free, 1 - free.sum(-1, keepdims=True)], axis=-1)
        residual = observed - _combine(_positive_shares(shares), means)
        statistic = np.einsum("...i,...ij,...j->...", residual, inverse, residual)
    return statistic, shares


def _combine(shares: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Return the share of each bin (..., m) at class shares (..., k), from the shares within each class (..., k, m)."""
    return np.einsum("...k,...km->...m", shares, means)


def _sum_of_covariances(factors: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Return the sum over classes of multinomial covariances (..., m, m) times factors (..., k)."""
    total = -np.einsum("...k,...ki,...kj->...ij", factors, means, means, optimize=True)
    diagonal = np.arange(means.shape[-1])
    total[..., diagonal, diagonal] += _combine(factors, means)
    return total


def _multinomial_covariance(mean: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Return the covariance of one multinomial draw with these probabilities (..., m), times a factor (...)."""
    return _sum_of_covariances(factor[..., None], mean[..., None, :])


def _positive_shares(shares: np.ndarray) -> np.ndarray:
    """Return shares with negative ones, which least squares may give, set to 0 and the rest scaled to sum to 1."""
    positive = np.clip(shares, 0, None)
    return positive / positive.sum(-1, keepdims=True)
