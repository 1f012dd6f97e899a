"""The number of examples that a goal needs, by simulation or by a formula."""

import math
from collections.abc import Callable
from typing import Annotated, Any

from calibrant._core.arguments import Alpha, HalfOpenFraction, NonNegativeInt, OpenFraction, Range, check_arguments
from calibrant._core.kernels.bins import EventStatistics
from calibrant._core.text import parse_number
from calibrant._core.types import InputError
from calibrant.planning._populations import (
    MAX_CLUSTER_CORRELATION,
    Pattern,
    observed_design_effect,
    observed_population,
)
from calibrant.planning._problems import (
    PlanningData,
    check_power,
    check_whole_outcomes,
    difference_problem,
    event_problem,
    event_start,
    event_trial,
    precision_size,
    select_goal,
    select_metric,
)
from calibrant.planning._result import PRECISIONS, SampleSize
from calibrant.planning._search import PowerCurve, estimate_size, find_size, simulate_curve
from calibrant.predictions import Predictions

NUM_DRAWS, NUM_CLUSTER_DRAWS, ESTIMATE_DRAWS, QUICK_DRAWS = 2000, 500, 500, 300
Effect = Annotated[float, Range(gt=0, lt=1, example=0.05)]  # that is to be detected or bounded
IntervalWidth = Annotated[float, Range(gt=0, example=0.2)]
DEFAULT_POWER = 0.8
SIZE_ROUNDING = 1e-9  # relative rounding error of a formula, by which n is not rounded up
DEFAULT_CORRELATION = 0.5  # of the scores of two models


@check_arguments
def sample_size(
    predictions: Predictions | None = None,
    second: Predictions | None = None,
    *,
    detect: Effect | None = None,
    bound: Effect | None = None,
    difference: Annotated[float, Range(gt=0, example=0.05)] | None = None,
    slope: IntervalWidth | None = None,
    observed_expected: IntervalWidth | None = None,
    net_benefit: IntervalWidth | None = None,
    threshold: OpenFraction | None = None,
    metric: str | None = None,
    of: str | int | None = None,
    confidence: Any = None,
    accuracy: float | None = None,
    correlation: HalfOpenFraction = DEFAULT_CORRELATION,
    cluster_size: Any = None,
    icc: Annotated[float, Range(ge=0, le=MAX_CLUSTER_CORRELATION)] | None = None,
    pattern: Pattern = "shift",
    power: OpenFraction = DEFAULT_POWER,
    alpha: Alpha = 0.05,
    exact: bool = False,
    draws: Annotated[int, Range(ge=100)] | None = None,
    seed: NonNegativeInt = 0,
    progress: Callable[[str], object] | None = None,
) -> SampleSize:
    r"""Return how many examples, or clusters, a goal needs.

    Three goals promise a power, by simulation. `detect`: a test of calibration rejects a model with this calibration
    error. `bound`: the upper end of the interval of the error of a calibrated model lies below this bound.
    `difference`: the paired test of `metrics.compare` rejects if the means of a metric differ by this number. A few
    hundred simulations give n to about 10 %, rounded up to two digits; `exact` simulates thousands of data sets, which
    may take minutes.

    Three goals promise a precision for a calibrated model: the expected width of the interval at the level 1 - `alpha`
    of the calibration `slope`, of the ratio `observed_expected` or of the standardized `net_benefit` at a `threshold`,
    by the formulas of Riley et al. (2021). They do not promise that a miscalibrated model is noticed.

    Future examples have the confidences of the given predictions, or assumed ones. To `detect` an error, their true
    probabilities p differ from the confidences c by this error on average: `pattern` "shift" is $p = c - \delta$ within
    [0, 1] (or $c + \delta$ if confidences are below 1/2 on average); "scale" is an overconfident model, whose logits
    are too large by a factor: $\mathrm{logit}\,p = s\,\mathrm{logit}\,c - (1 - s) \log(k - 1)$, s < 1, for k classes.
    Outcomes of a cluster share a normal random effect on the probit scale. With two sets of predictions, exponential
    tilting of the examples moves their difference to `difference` (Efron 1981).

    Args:
        predictions: Predictions of a model. Labels are used for `difference`, and for the correlation within clusters.
        second: Predictions of a second model for the same examples, for `difference`.
        detect: Calibration error to detect, the mean of $|p - c|$, such as 0.05.
        bound: Bound on the error, such as the default tolerance of `measure`: 0.05, or half of the base rate of a class
            that is rarer than 10 %.
        difference: Difference of the means of a metric between two models.
        slope: Width of the interval of the calibration slope, such as 0.4 for 0.8 to 1.2.
        observed_expected: Width of the interval of the ratio of observed to expected events, such as 0.2.
        net_benefit: Width of the interval of the standardized net benefit, such as 0.2.
        threshold: Risk from which on to act, for `net_benefit`.
        metric: The test of `detect` (default "omnibus", which decides the verdict of `measure`), the error of `bound`
            ("debiased_l2", or "signed_gap" and others with an interval), or the score of `difference` ("nll"). The
            test of "skce" draws outcomes and takes minutes.
        of: Event to evaluate, as in `measure`.
        confidence: Without predictions: the mean confidence, "beta(a, b)" or an array of confidences. A mean m stands
            for beta(10 m, 10 (1 - m)).
        accuracy: The same as a mean confidence, which the accuracy of a calibrated model equals.
        correlation: Correlation of the scores of two models, if there is no second model.
        cluster_size: Examples per future cluster, one number or several.
        icc: Intraclass correlation of the outcomes given their probabilities; for `difference`, of the differences of
            the scores. Default: estimated from the labels.
        pattern: How the model to detect is miscalibrated.
        power: Probability to reach the goal.
        alpha: Significance level of the test. The interval of `bound` has the level 1 - 2 `alpha`, so that its upper
            end errs with probability `alpha`; that of a precision has the level 1 - `alpha`.
        exact: Whether to confirm n, and draw the power around it, by thousands of simulations.
        draws: Simulated data sets at the resulting n, which is then exact. Default: 2,000, and 500 for the slower tests
            of clusters.
        seed: Seed of the simulation.
        progress: Function that is called with a text during the simulations.

    Raises:
        InputError: If there is not exactly one goal, a setting has no effect on it, or it cannot be reached.

    >>> result = sample_size(accuracy=0.8, difference=0.05, metric="accuracy", draws=200)
    >>> result.unit, 400 < result.n < 650
    ('example', True)
    >>> print(sample_size(confidence=[0.2, 0.4], observed_expected=0.2).sentence)
    Label 900 examples for a 95 % interval of the ratio of observed to expected events that is 0.2 wide in expectation.
    """
    widths = {"slope": slope, "observed_expected": observed_expected, "net_benefit": net_benefit}
    goal, effect = select_goal(detect=detect, bound=bound, difference=difference, **widths)
    check_power(power, alpha)
    unused = {  # settings other than the default without effect
        "of": of is not None and predictions is None,
        "pattern": pattern != "shift" and goal != "detect",
        "threshold": threshold is not None and goal not in PRECISIONS,
        "metric": metric is not None and goal in PRECISIONS,
        "power": power != DEFAULT_POWER and goal in PRECISIONS,
        "exact": (exact or draws is not None) and goal in PRECISIONS,
        "correlation": correlation != DEFAULT_CORRELATION and (goal != "difference" or second is not None),
    }
    if name := next((name for name, is_unused in unused.items() if is_unused), None):
        raise InputError(
            f"Expected settings with an effect on this goal and these data, got {name}. Try without it.", code="unused"
        )
    if confidence is not None and accuracy is not None:
        raise InputError("Expected a confidence or an accuracy, got both. Try one.", code="confidence_and_accuracy")
    if confidence is None:
        confidence = accuracy
    if isinstance(confidence, str) and (mean := parse_number(confidence)) is not None:
        confidence = mean
    data = PlanningData(predictions, second, confidence, of=of, cluster_size=cluster_size, icc=icc)
    if goal in PRECISIONS:
        size, unit_size, unit, texts = precision_size(data, goal, effect, alpha=alpha, threshold=threshold)
        n = math.ceil(size * (1 - SIZE_ROUNDING))
        return SampleSize(n, unit, round(n * unit_size), goal, effect, "", alpha, None, (), texts)
    method = select_metric(metric, goal)
    if goal == "difference":
        problem = difference_problem(data, method, effect, correlation=correlation, alpha=alpha, seed=seed)
    else:
        problem = event_problem(data, method, goal, effect, pattern=pattern, alpha=alpha)
    curve = PowerCurve(problem.trial, seed, progress or (lambda text: None))
    is_exact = exact or draws is not None
    if is_exact:
        is_slow = problem.unit == "cluster" and goal != "difference"
        draws = draws or (NUM_CLUSTER_DRAWS if is_slow else NUM_DRAWS)
        n = find_size(curve, problem.start, power, draws)
        simulate_curve(curve, n, draws)
    else:
        n = round_up(estimate_size(curve, problem.start, power, ESTIMATE_DRAWS))
    return SampleSize(
        n=n,
        unit=problem.unit,
        examples=round(n * problem.unit_size),
        goal=goal,
        effect=effect,
        metric=method.text,
        alpha=alpha,
        power=power,
        curve=curve.points,
        assumptions=problem.assumptions,
        is_exact=is_exact,
    )


@check_arguments
def quick_sample_size(
    events: Predictions | EventStatistics,
    *,
    detect: Effect | None = None,
    bound: Effect | None = None,
    power: OpenFraction = 0.8,
    alpha: Alpha = 0.05,
) -> int:
    """Return about how many examples a goal needs, in a fraction of a second (see `sample_size`).

    A few hundred simulations of independent examples give n to about 10 %; it is rounded up to two digits. If there are
    clusters, n is multiplied by their design effect, which is estimated from the outcomes; future clusters are assumed
    to be as large.

    Args:
        events: Predictions, of the event that `measure` evaluates by default, or the statistics of one event, such as
            `predictions.events` or a `Summary`.
        detect: Calibration error that the omnibus test detects.
        bound: Bound on the debiased L2 error of a calibrated model.
        power: Probability to reach the goal.
        alpha: Significance level of the test, or error rate of the upper end of the interval.

    Raises:
        InputError: If there is not exactly one goal, or the goal cannot be reached with ten million examples.

    >>> 120 < quick_sample_size(Predictions.from_confidence([0.7, 0.8, 0.9], [1, 1, 1]), detect=0.1) < 180
    True
    """
    goal, effect = select_goal(detect=detect, bound=bound, difference=None)
    check_power(power, alpha)
    if isinstance(events, Predictions):
        check_whole_outcomes(events)
        events = events.with_default_event().events
    grouped_scores = events.by_score
    population = observed_population(grouped_scores, chance=0.5)  # any value: the pattern "shift" does not use chance
    method = select_metric(text=None, goal=goal)
    trial = event_trial(population, method, goal, effect, pattern="shift", alpha=alpha)
    n = estimate_size(PowerCurve(trial, seed=0), event_start(population, effect), power, QUICK_DRAWS)
    if grouped_scores.clusters is not None:
        n *= observed_design_effect(grouped_scores.clusters, grouped_scores.variance)
    return round_up(n)


def round_up(n: float | int) -> int:
    """Round a size up to two significant digits.

    >>> round_up(347), round_up(5.2)
    (350, 6)
    """
    rounding_unit = 10 ** max(0, math.floor(math.log10(n)) - 1)
    return math.ceil(n / rounding_unit) * rounding_unit
