"""Simulation problems for goals: how a data set is drawn, and whether it reaches the goal."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from calibrant import metrics
from calibrant._core import registry
from calibrant._core.numbers import MAX_RARE_RATE, format_multiple, format_percent
from calibrant._core.types import InputError
from calibrant.metrics import Metric
from calibrant.planning._differences import NUM_PAIRS, assumed_pairs, observed_pairs, population_scores, to_finite_array
from calibrant.planning._populations import (
    Clusters,
    Pattern,
    Population,
    assumed_population,
    clustered_population,
    miscalibrate,
    observed_population,
    score_clusters,
)
from calibrant.planning._precision import net_benefit_size, ratio_size, slope_size
from calibrant.planning._result import Goal
from calibrant.planning._search import Trial
from calibrant.predictions import Predictions

# Default metric, description of the metrics that suit the goal, and whether a metric does. The signed gap counts as an
# error too
GOAL_METRICS: dict[str, tuple[str, str, Callable[[Metric[...]], bool]]] = {
    "detect": ("omnibus", "a metric with a test", lambda metric: metric.has_test and metric.is_of_event),
    "bound": (
        "debiased_l2",
        "a calibration error with an interval",
        lambda metric: (
            metric.has_interval
            and metric.is_of_event
            and (metric is metrics.signed_gap or metric.about.higher_is_better is False)
        ),
    ),
    "difference": ("nll", "a metric that is a mean over examples", lambda metric: metric.per_example is not None),
}
START_FACTOR = 7.0  # squared ratio of an error to its standard error that about suffices


@dataclass(frozen=True, eq=False)
class PlanningData:
    """The information about future examples that the caller of `sample_size` gives."""

    predictions: Predictions | None
    second: Predictions | None  # of a second model
    confidence: Any  # assumed, instead of predictions
    of: str | int | None  # event
    cluster_size: Any
    icc: float | None  # correlation of two outcomes of a cluster

    def __post_init__(self) -> None:
        """Raise `InputError` for data that are missing, contradict each other, or cannot be simulated."""
        num_sources = sum(source is not None for source in (self.predictions, self.confidence))
        if num_sources != 1:
            raise InputError(
                f"Expected predictions or an assumed confidence, got {'both' if num_sources else 'neither'}. Try "
                "accuracy=0.9 alone.",
                code="source",
            )
        for p in (self.predictions, self.second):
            check_whole_outcomes(p)
        has_clusters = self.predictions is not None and self.predictions.clusters is not None
        if self.icc is not None and self.cluster_size is None and not has_clusters:
            raise InputError("Expected clusters beside icc, got none. Try cluster_size=5.", code="no_clusters")


def check_whole_outcomes(p: Predictions | None) -> None:
    """Raise `InputError` for fractional outcomes, which no simulation draws."""
    if p is not None and p.examples is not None:
        raise InputError(
            "Expected outcomes 0 or 1, as simulated ones are, got fractional ones. Try confidence= with your "
            "confidences, whose answer is on the safe side.",
            code="fractional_outcomes",
        )


class Problem(NamedTuple):
    """A simulation of n units, and a description of the units."""

    trial: Trial
    start: float  # a first guess of n
    unit: Literal["example", "cluster"]
    unit_size: float  # mean number of examples of a unit
    assumptions: tuple[str, ...]


def event_problem(
    data: PlanningData, method: registry.Method, goal: Goal, effect: float, *, pattern: Pattern, alpha: float
) -> Problem:
    """Return the simulation for a goal of one model, in units of examples or clusters.

    Args:
        data: Predictions or assumptions about future examples.
        method: Metric whose test or interval decides.
        goal: "detect" or "bound".
        effect: Calibration error to detect, or the bound.
        pattern: How the true probabilities differ from the confidences, for "detect".
        alpha: Significance level of the test, or error rate of the upper end of the interval.
    """
    if data.second is not None:
        raise InputError("Expected one model, got two. Try difference=0.02.", code="two_models")
    population = _build_population(data)
    trial = event_trial(population, method, goal, effect, pattern=pattern, alpha=alpha)
    # The guess for independent examples, times the factor for dependent ones, divided by the examples of a cluster
    start = event_start(population, effect) * population.design_effect / population.unit_size
    miscalibration = {
        "shift": f"The true probabilities are {'lower' if population.mean >= 0.5 else 'higher'} than the confidences.",
        "scale": "The model is overconfident: its logits are too large by a factor.",
    }[pattern]
    assumed_model = miscalibration if goal == "detect" else "The model is calibrated."
    unit = "example" if population.clusters is None else "cluster"
    assumptions = (_source_text(data), *_cluster_text(population.clusters), assumed_model)
    if population.mean < MAX_RARE_RATE:
        relative = format_multiple(effect, population.mean)
        assumptions += (f"The base rate is {format_percent(population.mean)}; {100 * effect:g} % is {relative} it.",)
    return Problem(trial, start, unit, population.unit_size, assumptions)


def precision_size(
    data: PlanningData, goal: Goal, width: float, *, alpha: float, threshold: float | None
) -> tuple[float, float, Literal["example", "cluster"], tuple[str, ...]]:
    """Return the number of units for an interval of this width, the examples of a unit, the unit, and sentences.

    Clusters multiply the number of examples by their design effect.
    """
    if data.second is not None:
        raise InputError("Expected one model, got two. Try difference=0.02.", code="two_models")
    if (threshold is None) == (goal == "net_benefit"):
        raise InputError(
            "Expected a threshold for net_benefit, and for no other goal. Try net_benefit=0.1, threshold=0.2.",
            code="threshold_goal",
        )
    population = _build_population(data)
    sizes: dict[str, Callable[[], float]] = {
        "slope": lambda: slope_size(population, width, alpha),
        "observed_expected": lambda: ratio_size(population, width, alpha),
        "net_benefit": lambda: net_benefit_size(population, width, alpha, threshold or math.nan),
    }
    n = sizes[goal]() * population.design_effect / population.unit_size
    texts = [_source_text(data), *_cluster_text(population.clusters), "The model is calibrated."]
    if threshold is not None:
        texts.append(f"Action is taken from a risk of {threshold:g} on.")
    texts.append(
        "A single interval is wider or narrower by chance: about half of all studies of this size have a wider one."
    )
    return n, population.unit_size, "example" if population.clusters is None else "cluster", tuple(texts)


def event_trial(
    population: Population, method: registry.Method, goal: Goal, effect: float, *, pattern: Pattern, alpha: float
) -> Trial:
    """Return the simulation of n units: whether the test rejects ("detect"), or the error is bounded ("bound").

    Arguments are as in `event_problem`, with a calibrated population to draw from.
    """
    metric: Any = method.target
    if goal == "detect":
        miscalibrated = miscalibrate(population, effect, pattern)
        return lambda n, rng: metric.test(miscalibrated.draw(n, rng), **method.settings).p_value < alpha

    def is_bounded(n: int, rng: np.random.Generator) -> bool:
        """Draw n units of a calibrated model, and return whether the interval of the error lies below the bound."""
        interval = metric.interval(population.draw(n, rng), level=1 - 2 * alpha, **method.settings)
        return max(interval.high, -interval.low) < effect  # a signed gap is bounded on both sides

    return is_bounded


def event_start(population: Population, effect: float) -> float:
    """Return a first guess of the number of independent examples: `START_FACTOR` times variance / effect^2."""
    min_variance = 1e-3  # instead of nearly 0, for confidences near 0 or 1
    return START_FACTOR * max(population.variance, min_variance) / effect**2


def _build_population(data: PlanningData) -> Population:
    """Return the population of assumed confidences, or of given predictions and their clusters."""
    if data.predictions is None:
        population = assumed_population(data.confidence)
    else:
        p = data.predictions.with_default_event(data.of)
        if p.clusters is not None and data.cluster_size is None:
            return clustered_population(p.events, 1 / p.k, data.icc)  # 1 / k: chance
        population = observed_population(p.events.by_score, 1 / p.k)
    return replace(population, clusters=_assumed_clusters(data))


def _assumed_clusters(data: PlanningData) -> Clusters | None:
    """Return clusters of the given size or sizes, all equally frequent, or None if no size is given.

    Raises:
        InputError: If a size is no integer from 1 on, or the correlation within clusters is missing.
    """
    if data.cluster_size is None:
        return None
    sizes = np.atleast_1d(np.asarray(data.cluster_size))
    is_whole = sizes.dtype.kind in "iuf" and all(float(size).is_integer() for size in sizes.flat)  # as 5.0 is
    if not is_whole or sizes.ndim != 1 or not len(sizes) or int(sizes.min()) < 1:
        raise InputError(
            f"Expected sizes of clusters from 1 on, got {data.cluster_size!r}. Try 5.", code="cluster_size"
        )
    if data.icc is None:
        raise InputError(
            "Expected the correlation within clusters beside their size, got none. Try icc=0.1.", code="no_icc"
        )
    return Clusters(sizes.astype(np.int64), data.icc)


def difference_problem(
    data: PlanningData, method: registry.Method, effect: float, *, correlation: float, alpha: float, seed: int
) -> Problem:
    """Return the simulation of the paired test for two models, of which one or both may be assumed.

    Units are drawn such that the mean difference of the metric is `effect` in size. The `correlation` of the scores of
    two models is used unless both models are given.
    """
    metric: Any = method.target
    if data.second is not None and data.predictions is not None:
        first, second = (_with_event(p, data.of) for p in (data.predictions, data.second))
        metrics.compare(first, second, names=[], groups=2)  # refuses different examples
        pairs = observed_pairs(first, second, metric)
        pairs = pairs.tilt(math.copysign(effect, pairs.mean))  # the model that is better stays better
        has_clusters, texts = first.clusters is not None, ()
    else:
        scores, clusters = _assumed_scores(data, method, seed)
        pairs = assumed_pairs(scores, correlation, clusters, seed).tilt(effect)
        has_clusters = clusters is not None
        agreement = f"The scores of the two models have the correlation {correlation:g}."
        texts = (*_cluster_text(clusters, "differences"), agreement)

    start = START_FACTOR * (pairs.error / effect) ** 2  # a first guess of n
    unit = "cluster" if has_clusters else "example"
    assumptions = _source_text(data), *texts
    return Problem(lambda n, rng: pairs.p_value(n, rng) < alpha, start, unit, pairs.unit_size, assumptions)


def _assumed_scores(data: PlanningData, method: registry.Method, seed: int) -> tuple[np.ndarray, Clusters | None]:
    """Return scores of `NUM_PAIRS` examples of one model, and the clusters of future examples, or None without any.

    The scores (3, n) are the smallest over the labels that an example may have, the actual one, and the largest.
    """
    if data.predictions is None:
        population = assumed_population(data.confidence)
        return population_scores(population, method.text, seed), _assumed_clusters(data)
    metric: Any = method.target
    p = _with_event(data.predictions, data.of)
    scores = to_finite_array(metrics.score_values(metric, p))
    w = np.ones(len(p)) if p.weights is None else p.weights
    clusters = _assumed_clusters(data)
    if p.clusters is not None and clusters is None:
        clusters = score_clusters(scores[1], w, p.clusters, data.icc)  # of the actual scores
    return np.random.default_rng([seed, 2]).choice(scores, NUM_PAIRS, axis=1, p=w / w.sum()), clusters


def _with_event(p: Predictions, event: str | int | None) -> Predictions:
    """Return the predictions with this event, or with their own if it is None."""
    return p if event is None else p.with_event(event)


# Sentences


def _source_text(data: PlanningData) -> str:
    """Return a sentence on where the confidences come from: predictions, a distribution or an array."""
    if data.predictions is not None:
        models = "" if data.second is None else " of each of two models"
        return f"Future examples are like the {len(data.predictions):,} given predictions{models}."
    confidence = data.confidence
    if isinstance(confidence, float | int):
        return f"Confidences follow beta({10 * confidence:g}, {10 * (1 - confidence):g}), with mean {confidence:g}."
    if isinstance(confidence, str):
        return f"Confidences follow {confidence.strip()}."
    return f"Confidences are those of {np.size(confidence):,} given ones."


def _cluster_text(clusters: Clusters | None, values: str = "outcomes") -> tuple[str, ...]:
    """Return a sentence on clusters, and none without them."""
    if clusters is None:
        return ()
    size = f"{clusters.sizes.mean():.3g}"
    return (f"A cluster has {size} examples on average, and {values} in it have the correlation {clusters.icc:.3g}.",)


# Validation


def select_goal(**goals: float | None) -> tuple[Any, float]:
    """Return the name and the value of the only goal that is given; the others are None.

    Raises:
        InputError: If not exactly one goal is given.
    """
    values = {name: value for name, value in goals.items() if value is not None}
    if len(values) != 1:
        names = " and ".join(values) or "none"
        raise InputError(f"Expected one goal among {', '.join(goals)}, got {names}. Try detect=0.05.", code="num_goals")
    name, value = next(iter(values.items()))
    return name, float(value)


def select_metric(text: str | None, goal: Goal) -> registry.Method:
    """Return the metric of a goal, or raise `InputError` if it lacks the test, interval or mean that this needs."""
    default, expected, is_suitable = GOAL_METRICS[goal]
    method = registry.METRICS.method(text or default)
    metric = method.target
    # The paired test needs the metric of each example, which only metrics with default settings have
    has_settings = goal == "difference" and method.settings
    if not isinstance(metric, Metric) or has_settings or not is_suitable(metric):
        raise InputError(f"Expected {expected}, got {method.text}. Try {default}.", code="metric")
    return method


def check_power(power: float, alpha: float) -> None:
    """Raise `InputError` unless a power is above alpha, with which a test rejects even without any effect."""
    if power <= alpha:
        raise InputError(f"Expected a power above alpha={alpha:g}, got {power:g}. Try power=0.8.", code="power_range")
