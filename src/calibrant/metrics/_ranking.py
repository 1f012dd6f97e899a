"""Ranking: AUROC, AURC and other metrics of whether confidence ranks correct predictions first."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np

from calibrant._core.arrays import namespace, to_numpy
from calibrant._core.kernels.bins import EventStatistics, GroupedScores
from calibrant._core.kernels.sorting import distinct_values
from calibrant._core.kernels.threads import map_chunks
from calibrant._core.lazy import special
from calibrant._core.types import PerExample, Sums
from calibrant.metrics._intervals import SHARE, Interval, Sample
from calibrant.metrics._logit_fits import check_both_outcomes
from calibrant.metrics._metric import metric
from calibrant.metrics._null import merge_scores
from calibrant.predictions import Predictions

__all__ = ["aurc", "auroc", "average_precision"]

MAX_INFLUENCE_GROUPS = 4096  # groups of confidence from which the standard error of the AURC is computed
_BLOCK_GROUPS = 1 << 16  # groups whose part of the AURC is computed at a time, in cache


def _forecasts(p: Predictions) -> list[Callable[[], tuple[np.ndarray, np.ndarray]]]:
    """Return functions that compute scores (n), and 1 for the examples whose scores should be higher, else 0 (n).

    Two classes have one such pair, for class 1. More have one for each label that occurs: scores that rise as the
    probability of this class falls, and the examples with other labels. They are functions because all pairs together
    would take twice the memory of the logits.
    """
    if p.k == 2:  # the difference of the logits orders as p_1 does, and is not saturated
        return [lambda: (_column(p, 1) - _column(p, 0), (p.labels == 1).astype(float))]
    xp = namespace(p.logits)
    top = to_numpy(xp.max(p.logits, axis=1)).astype(float)
    log_confidence = np.log(p.with_event("top").events.confidence)

    def forecast(j: int) -> tuple[np.ndarray, np.ndarray]:
        # 1 - log p_j, which rises as p_j falls. It is at least 1, because scores tie if their relative difference is
        # small, and log p_j near 0 has large relative errors
        return top - _column(p, j) - log_confidence + 1, (p.labels != j).astype(float)

    return [partial(forecast, j) for j in np.flatnonzero(np.bincount(p.labels)).tolist()]


def _finite_mean(values: np.ndarray) -> Sums:
    """Return the mean over the first axis without NaN, or NaN where there is nothing else."""
    is_number = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.where(is_number, values, 0.0).sum(0) / is_number.sum(0)


def _column(p: Predictions, j: int) -> np.ndarray:
    """Return the logits of one class, (n) float64."""
    return to_numpy(p.logits[:, j]).astype(float)


def _placements(p: Predictions) -> PerExample:
    """Return one number per example (n): the mean is the AUROC, and its standard error is as in DeLong et al. (1988).

    For more than two classes, each number is the mean over the classes that have positives and negatives.
    """
    # nan for a class without positives or negatives
    return np.asarray(_finite_mean(np.array([placements(*forecast(), p.weights) for forecast in _forecasts(p)])))


def _auroc_interval(p: Predictions, *, level: float) -> Interval:
    """Return the interval with DeLong's standard error and the sample size of the rarer of positives and negatives.

    For more than two classes, the sample size is the mean of that of each class against the rest, over the classes that
    occur.
    """
    if p.k == 2 and p.clusters is None:  # faster: without a number per example
        sample = _sum_placements(GroupedScores.from_scores(*_forecasts(p)[0](), p.weights))
    else:
        sample = Sample.from_values(_placements(p), p.weights, p.clusters, p.examples)
    w = np.ones_like(p.labels, dtype=float) if p.weights is None else p.weights.astype(float)
    count = np.bincount(p.labels, w, minlength=p.k)
    count = count[(count > 0) & (count < sample.n)]  # of classes with positives and negatives
    count = count[:1] if p.k == 2 else count  # the second class has the same positives and negatives
    rarer = np.minimum(count, sample.n - count).mean() if len(count) else sample.n
    return sample.bounded_interval(SHARE, level, effective_share=float(rarer) / sample.n)


@metric(
    "AUROC",
    higher_is_better=True,
    meaning="probability that a positive example has a higher score than a negative one",
    per_example=_placements,
    interval=_auroc_interval,
)
def auroc(p: Predictions, *, of: Literal["classes", "correctness"] = "classes") -> float:
    """Return the area under the ROC curve: how often a positive outranks a negative, ties counting half.

    The interval has the width of DeLong et al. (1988) and does not collapse if the classes are separated: it is the
    interval of a mean over the positives or negatives, whichever are fewer.

    Args:
        p: Predictions, or logits and labels.
        of: "classes" ranks by the probability of class 1 for two classes; for more it is the mean over classes of one
            against the rest, without classes that are never or always true. "correctness" ranks right against wrong
            predictions by confidence. nan if no area is left.

    >>> auroc(np.array([[0.0, 1.0], [0.0, 0.0], [0.0, 2.0]]), np.array([0, 0, 1]))
    1.0
    >>> print(auroc.interval(np.array([[0.0, x] for x in range(5)]), np.array([0, 0, 0, 1, 1])))
    1.0000 [0.2236, 1.0000]
    """
    if of == "correctness":
        return auroc_of(p.with_event("top").events.by_score)

    def area(forecast: Callable[[], tuple[np.ndarray, np.ndarray]]) -> float:
        return auroc_of(GroupedScores.from_scores(*forecast(), p.weights))

    return float(_finite_mean(np.array(map_chunks(area, _forecasts(p), len(p)))))


def _aurc_interval(events: EventStatistics, *, level: float) -> Interval:
    r"""Return the interval of a mean in [0, 1] with the standard error of the influence function.

    The squared standard error is the mean square of every example's influence, divided by n. In clusters, the
    influences of a cluster's examples are added first.
    """
    by_score = events.by_score
    n, value = float(by_score.total_weight.sum()), float(aurc_of(by_score))
    by_score = merge_scores(by_score, MAX_INFLUENCE_GROUPS)
    influence, error_influence = _aurc_influence(by_score)
    wrong = by_score.total_weight - by_score.correct
    square = by_score.correct * np.square(influence) + wrong * np.square(influence + error_influence)
    clusters = None
    if (sums := by_score.clusters) is not None:
        # The group of each bin of the clusters
        group = np.minimum(np.searchsorted(by_score.value, sums.value), len(by_score.value) - 1)
        wrong = sums.total_weight * (1 - sums.value) - sums.residual
        deviation = sums.total_weight @ influence[group] + wrong @ error_influence[group]
        weight = sums.total_weight.sum(1)
        clusters = weight, deviation + value * weight  # sums whose mean is the AURC and which vary as the influences
    sample = Sample.from_sums(n, value, float(square.sum()), clusters)
    # An error has the weight w = -log G, with G the share of examples at least as confident, which is uniform. So
    # (E w)^2 / E w^2 is 1/2, and the errors are as precise as half of the examples (Kish 1965)
    return sample.bounded_interval(SHARE, level, effective_share=0.5)


@metric(
    "area under risk-coverage",
    unit="share",
    short="AURC",
    meaning="error rate of the most confident predictions, averaged over all coverages",
    interval=_aurc_interval,
)
def aurc(events: EventStatistics) -> float:
    r"""Return the area under the risk-coverage curve (Geifman et al. 2019).

    It is the mean, over m = 1 .. n, of the error rate of the m most confident predictions; lower is better. Correctness
    is averaged within ties, so that the row order does not matter. The interval has the standard error of the influence
    function, and is the interval of a mean in [0, 1].

    >>> aurc(np.array([[0.0, 2.0], [0.0, 1.0]]), np.array([1, 0]))  # risks 0 and 1/2
    0.25
    """
    return aurc_of(events.by_score)


def _precision(by_score: GroupedScores) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the weight of at least each score (g), the precision there (g), and the average precision."""
    above = sums_from(by_score.total_weight)[:-1]
    precision = sums_from(by_score.correct)[:-1] / above
    return above, precision, by_score.correct @ precision / by_score.correct.sum()


def _average_precision_interval(events: EventStatistics, *, level: float) -> Interval:
    """Return the interval of a mean in [0, 1] over the events, with the standard error of the influence function."""
    check_both_outcomes(events.by_score)
    by_score = merge_scores(events.by_score, MAX_INFLUENCE_GROUPS)
    above, precision, area = _precision(by_score)
    n, num_events = by_score.total_weight.sum(), by_score.correct.sum()
    # An example of at least a score lowers the precision there by its share, and raises it if it is an event
    lowered = (by_score.correct / above * precision).cumsum(0)
    raised = (by_score.correct / above).cumsum(0)
    influence = n / num_events * np.stack([-lowered, raised - lowered + precision - area])  # (2 g)
    hits, misses = by_score.correct, by_score.total_weight - by_score.correct
    square = misses @ np.square(influence[0]) + hits @ np.square(influence[1])
    clusters = None
    if (sums := by_score.clusters) is not None:
        group = np.minimum(np.searchsorted(by_score.value, sums.value), len(by_score.value) - 1)
        hits = sums.total_weight * sums.value + sums.residual
        weight = sums.total_weight.sum(1)
        deviation = (sums.total_weight - hits) @ influence[0, group] + hits @ influence[1, group]
        clusters = weight, deviation + area * weight
    sample = Sample.from_sums(float(n), float(area), float(square), clusters)
    return sample.bounded_interval(SHARE, level, effective_share=float(num_events / n))


@metric(
    "average precision",
    higher_is_better=True,
    meaning="precision, averaged over the recall of the event; the event's frequency if the ranking is random",
    interval=_average_precision_interval,
)
def average_precision(events: EventStatistics) -> float:
    r"""Return the average precision of ranking by the probability of the event, as scikit-learn's.

    The mean, over the events, of the precision among the examples with at least their probability; equal probabilities
    share one threshold. A random ranking has the frequency of the event, so that it does not compare populations. The
    interval has the standard error of the influence function, and is that of a mean over the events in [0, 1].

    Raises:
        InputError: If all outcomes are alike.

    >>> round(average_precision(Predictions.from_confidence([0.1, 0.4, 0.6, 0.9], [0, 1, 0, 1])), 4)  # (2/3 + 1) / 2
    0.8333
    """
    check_both_outcomes(events.by_score)
    return _precision(events.by_score)[2]


def auroc_of(by_score: GroupedScores) -> float:
    """Return the area under the ROC curve of sorted scores, with outcome 1 as the positive class.

    It is the share of pairs of a positive and a negative in which the positive scores higher, ties counting half.
    """
    positive, negative = by_score.correct, by_score.total_weight - by_score.correct
    below = negative.cumsum(0) - (negative / 2)  # negatives with a lower score, and half of those with the same
    return (below * positive).sum() / (positive.sum() * negative.sum())


def placements(score: PerExample, positive: PerExample, weights: PerExample | None = None) -> PerExample:
    """Return a number per example: the mean is the AUROC, and its standard error is as in DeLong et al. (1988).

    The number is the placement, scaled by n / (number of positives) or n / (number of negatives) around the AUROC. A
    positive's placement is the share of negatives below it, a negative's the share of positives above it.

    Args:
        score: Score of each example, (n).
        positive: 1 for positives, 0 for negatives, (n).
        weights: Weights, (n); 1 by default.
    """
    w = np.ones_like(score) if weights is None else weights
    value, group = distinct_values(score)
    hits, misses = (np.bincount(group, part, minlength=len(value)) for part in (w * positive, w * (1 - positive)))
    below, above = _placement_shares(hits, misses)
    area = (hits * below).sum() / hits.sum()
    scale = w.sum() / np.stack([misses.sum(), hits.sum()])  # index 0 for negatives, 1 for positives
    return area + (np.where(positive == 1, below[group], above[group]) - area) * scale[positive.astype(np.int64)]


def _placement_shares(hits: np.ndarray, misses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the shares of negatives below and of positives above each distinct score, (g) each, counting ties half.

    `hits` and `misses` are the weights of positives and negatives at the g scores, in increasing order.
    """
    below = (misses.cumsum(0) - misses / 2) / misses.sum()
    return below, 1 - (hits.cumsum(0) - hits / 2) / hits.sum()


def _sum_placements(by_score: GroupedScores) -> Sample:
    """Return the AUROC, the mean of `placements`, with its precision, from sorted scores and without the placements."""
    hits, misses = by_score.correct, by_score.total_weight - by_score.correct
    below, above = _placement_shares(hits, misses)
    n, area = float(by_score.total_weight.sum()), (hits * below).sum() / hits.sum()
    square = hits @ np.square(below - area) / hits.sum() ** 2 + misses @ np.square(above - area) / misses.sum() ** 2
    # n^2, as `placements` scales by n over the number of positives or negatives
    return Sample.from_sums(n, float(area), n**2 * float(square))


def aurc_of(by_score: GroupedScores) -> float:
    r"""Return the area under the risk-coverage curve of sorted examples.

    A group of m examples of equal confidence shares its error e. After N more confident examples with E errors, the
    errors among the first N + j add up to E + j e, so that the group adds to the area $\frac1n \sum_{j=1}^m
    (E + j e) / (N + j) = \frac1n (m e + (E - e N) H)$ with $H = \sum_{j=1}^m 1 / (N + j)$, a difference of digammas.
    """
    weight_below, _, correct_below, _ = by_score.cumulative_sums
    risk = 0.0
    for start in range(0, len(by_score.value), _BLOCK_GROUPS):
        groups, ends = slice(start, start + _BLOCK_GROUPS), slice(start, start + _BLOCK_GROUPS + 1)
        above = weight_below[-1] - weight_below[ends]  # weight above each end of a group
        wrong_above = above - (correct_below[-1] - correct_below[ends])
        weight = by_score.total_weight[groups]  # m
        wrong = weight - by_score.correct[groups]  # m e
        harmonic = -np.diff(special.digamma(above + 1))  # H
        risk += (wrong + (wrong_above[1:] - wrong / weight * above[1:]) * harmonic).sum()  # m e + (E - e N) H
    return risk / weight_below[-1]


def _aurc_influence(by_score: GroupedScores) -> tuple[np.ndarray, np.ndarray]:
    r"""Return a right example's influence on the AURC in every group (g), and what a wrong example adds to it.

    With the share G of examples that are at least as confident, the AURC is $E[e\,(-\log G)]$ of errors e. A wrong
    example adds $-\log G$. Every example of confidence c lowers the area by $E[e_i / G_i]$ over the examples with
    $c_i \le c$, of whose G it is a part. Sums of 1/m over ranks m stand for logarithms, as in `aurc_of`. The mean
    influence over all examples is 0.
    """
    weight, wrong = np.flip(by_score.total_weight, 0), np.flip(by_score.total_weight - by_score.correct, 0)
    cumulative_weight, total = weight.cumsum(0), weight.sum()
    # the sum of 1/m over the ranks m of this group, and over those of this group and of all below
    harmonic = special.digamma(cumulative_weight + 1) - special.digamma(cumulative_weight - weight + 1)
    from_here = sums_from(harmonic)[:-1]
    added = 1 - (cumulative_weight / weight) * harmonic + from_here  # -log G, averaged over the ranks of the group
    lowered = wrong * harmonic / weight
    lowered = np.flip(np.flip(lowered, 0).cumsum(0), 0) - lowered / 2  # of its own group, half
    influence = wrong.sum() / total - lowered - (wrong * added).sum() / total  # with mean 0 over all examples
    return np.flip(influence, 0), np.flip(added, 0)


def risk_coverage(by_score: GroupedScores) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of covered examples and their error rate, (g) each, at g confidences from the highest down.

    Covered are the examples whose confidence is at least this high.
    """
    weight = np.flip(by_score.total_weight, 0).cumsum(0)
    wrong = np.flip(by_score.total_weight - by_score.correct, 0).cumsum(0)
    return weight / weight[-1], wrong / weight


def sums_from(values: np.ndarray) -> np.ndarray:
    """Return the sum of each element and all after it in its row, and 0 at the end."""
    return np.append(np.flip(np.flip(values, -1).cumsum(-1), -1), np.zeros((*values.shape[:-1], 1)), axis=-1)
