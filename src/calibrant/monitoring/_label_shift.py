"""New class shares without labels, and a test of whether they alone explain how the predictions changed."""

import math
from dataclasses import dataclass

import numpy as np

from calibrant._text import display_name, format_percent, format_percent_range
from calibrant.calibrators import PriorShift
from calibrant.monitoring._features import confidences
from calibrant.predictions import Predictions

MAX_SHIFT_CLASSES = 20
MIN_CLASS_ROWS = 5  # labeled examples of every class
NUM_SCORE_CELLS = 10  # of the score of two classes
NUM_BOOTSTRAP_DRAWS = 999
_MIN_SINGULAR_VALUE = 1e-9  # relative, below which a moment carries no information


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


@dataclass(frozen=True, eq=False)
class _Cells:
    """Row counts in cells of predicted class and confidence, and the class of each cell."""

    by_class: np.ndarray  # (k, m) counts of the reference, by label
    new: np.ndarray  # (m) counts of the new rows
    predicted: np.ndarray  # (m) predicted class of the cell


def estimate_label_shift(reference: Predictions, new: Predictions, seed: int = 0) -> LabelShift | str:
    r"""Estimate the new class shares, and test whether they alone explain the new predictions.

    The shares are the maximum likelihood estimates of `PriorShift` (EM; Saerens et al. 2002, Alexandari et al. 2020).
    If only the shares $\pi$ have changed, the share of new rows in each cell of predictions is $\sum_y \pi_y m_y$, with
    the shares m of the cells among the rows of class y in the reference. The test statistic is the minimum over $\pi$
    of the distance to that, in the metric of its covariance (Hansen's J, 1982), and the p-value that of a parametric
    bootstrap. Cells are ten ranges of the probability for two classes, and each predicted class with a high or low
    confidence for more.

    Returns:
        The estimates, or a sentence on why there are none.
    """
    counts = np.bincount(reference.labels.cpu().numpy(), minlength=reference.k)
    if reference.k > MAX_SHIFT_CLASSES:
        return f"Class shares are estimated for at most {MAX_SHIFT_CLASSES} classes, not for {reference.k}."
    if counts.min() < MIN_CLASS_ROWS:
        return f"Class shares need at least {MIN_CLASS_ROWS} labeled examples of every class."
    if any(getattr(p, name) is not None for p in (reference, new) for name in ("weights", "clusters")):
        return "Class shares are estimated for independent examples that count once, not for weights or clusters."
    from scipy.special import stdtrit  # slow to import

    cells = _count_cells(reference, new)
    shares = _shares_by_em(reference, new, counts)
    statistic, moment_shares = _hansen_statistic(cells.by_class, cells.new)
    statistics, share_draws, errors = _bootstrap(cells, moment_shares, seed)
    p_value = (1 + int((statistics >= statistic * (1 - 1e-9)).sum())) / (1 + len(statistics))  # 1e-9: for rounding
    recall = _recalls(cells.by_class, cells.predicted)
    accuracy = float(shares @ recall)
    quantile = float(stdtrit(counts.min() - 1, 0.95))  # of Student's t; the smallest class is known least
    accuracy_margin = quantile * float(errors.std())
    share_margins = quantile * share_draws.std(0)
    names = reference.class_names or tuple(map(str, range(reference.k)))
    # Limits are around the shares that fit best, as those of EM are shrunk toward the old ones in small samples
    low = np.minimum(moment_shares - share_margins, shares).clip(0, 1)
    high = np.maximum(moment_shares + share_margins, shares).clip(0, 1)
    columns = (column.tolist() for column in (counts / counts.sum(), shares, low, high))
    rows = tuple(map(ClassShare, names, *columns))
    low_accuracy, high_accuracy = max(0.0, accuracy - accuracy_margin), min(1.0, accuracy + accuracy_margin)
    return LabelShift(rows, accuracy, low_accuracy, high_accuracy, p_value)


def _shares_by_em(reference: Predictions, new: Predictions, counts: np.ndarray) -> np.ndarray:
    """Return the class shares that `PriorShift` estimates."""
    fitted = PriorShift.fit(reference, calibrator="Identity", unlabeled=new)
    # the old shares as `PriorShift` counts them, with one more example that is spread over the classes
    shares = (counts + 1 / len(counts)) / (counts.sum() + 1) * fitted.shift.exp().cpu().numpy()
    return shares / shares.sum()


def _count_cells(reference: Predictions, new: Predictions) -> _Cells:
    """Divide the rows of both sets into cells, as in `estimate_label_shift`."""
    k = reference.k
    if k == 2:
        scores = [p.logits.double().softmax(1)[:, 1].cpu().numpy() for p in (reference, new)]
        edges = np.quantile(np.concatenate(scores), np.linspace(0, 1, NUM_SCORE_CELLS + 1)[1:-1])
        edges = np.unique(np.append(edges, 0.5))  # on whose two sides the predicted classes differ
        cells = [np.searchsorted(edges, score, side="left") for score in scores]
        predicted = (np.append(edges, 1.0) > 0.5).astype(np.int64)  # by the upper edge of each cell
    else:
        confidence = [confidences(p.with_event("top")) for p in (reference, new)]
        top = [p.predicted.cpu().numpy() for p in (reference, new)]
        all_confidence, all_top = np.concatenate(confidence), np.concatenate(top)
        medians = np.ones(k)  # of the confidence of each predicted class
        for j in np.unique(all_top):
            medians[j] = np.median(all_confidence[all_top == j])
        cells = [2 * t + (c > medians[t]) for t, c in zip(top, confidence, strict=True)]
        predicted = np.repeat(np.arange(k), 2)
    by_class = np.zeros((k, len(predicted)))
    np.add.at(by_class, (reference.labels.cpu().numpy(), cells[0]), 1)
    return _Cells(by_class, np.bincount(cells[1], minlength=len(predicted)).astype(float), predicted)


def _recalls(by_class: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return the share of each class that is predicted right."""
    is_right = predicted == np.arange(len(by_class))[:, None]
    return (by_class * is_right).sum(1) / by_class.sum(1)


def _hansen_statistic(by_class: np.ndarray, new: np.ndarray) -> tuple[float, np.ndarray]:
    """Return Hansen's J and the shares (k) that attain it, by two steps of generalized least squares.

    Args:
        by_class: Counts of cells by class in the reference, (k, m).
        new: Counts of cells of the new rows, (m).
    """
    n_class, n_new = by_class.sum(1), new.sum()
    means, observed = by_class / n_class[:, None], new / n_new
    shares = n_class / n_class.sum()
    statistic = math.nan
    for _ in range(2):  # the second step has the covariance at the shares of the first
        positive = np.clip(shares, 0, None)
        mixture = positive / positive.sum() @ means
        covariance = (np.diag(mixture) - np.outer(mixture, mixture)) / n_new
        for share, mean, n in zip(shares, means, n_class, strict=True):  # noise of the reference
            covariance += share**2 * (np.diag(mean) - np.outer(mean, mean)) / n
        inverse = np.linalg.pinv(covariance, rcond=_MIN_SINGULAR_VALUE, hermitian=True)
        # As shares sum to 1, the last class has the rest: the cells have the shares base + free @ directions. `free`,
        # the shares of the other classes, solves the normal equations
        base, directions = means[-1], means[:-1] - means[-1]
        normal_matrix = directions @ inverse @ directions.T
        normal_inverse = np.linalg.pinv(normal_matrix, rcond=_MIN_SINGULAR_VALUE, hermitian=True)
        free = normal_inverse @ (directions @ inverse @ (observed - base))
        shares = np.append(free, 1 - free.sum())
        residual = observed - shares @ means
        statistic = float(residual @ inverse @ residual)
    return statistic, shares


def _bootstrap(cells: _Cells, shares: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw reference and new rows from the fitted mixture.

    Returns:
        The statistics (draws), the shares that attain them (draws, k), and the errors of the estimated accuracy: the
        estimate minus the accuracy that the drawn labels show (draws).
    """
    rng = np.random.default_rng(seed)
    positive = np.clip(shares, 0, None)
    positive /= positive.sum()
    n_class, n_new = cells.by_class.sum(1).astype(int), int(cells.new.sum())
    means = cells.by_class / n_class[:, None]
    is_right = cells.predicted == np.arange(len(means))[:, None]
    statistics, share_draws, errors = list[float](), list[np.ndarray](), list[float]()
    for _ in range(NUM_BOOTSTRAP_DRAWS):
        drawn_class = rng.multinomial(n_class, means).astype(float)
        drawn_new = rng.multinomial(rng.multinomial(n_new, positive), means)  # by class, which is then forgotten
        statistic, drawn_shares = _hansen_statistic(drawn_class, drawn_new.sum(0).astype(float))
        statistics.append(statistic)
        share_draws.append(drawn_shares)
        estimate = drawn_shares @ _recalls(drawn_class, cells.predicted)
        errors.append(float(estimate - (drawn_new * is_right).sum() / n_new))
    return np.array(statistics), np.stack(share_draws), np.array(errors)
