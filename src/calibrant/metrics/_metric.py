"""The declaration of a metric: everything that tables, comparisons, reports, commands and docs ask about it."""

import inspect
import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Concatenate, Generic, Literal, NamedTuple, ParamSpec

import numpy as np

from calibrant._core import registry
from calibrant._core.arrays import call_with_arrays, to_numpy
from calibrant._core.kernels.bins import EventStatistics
from calibrant._core.numbers import format_number
from calibrant._core.types import InputError, OpenFraction, PerExample, check_arguments
from calibrant.metrics._intervals import Evidence, Extremes, Interval, Sample, ScoreRange
from calibrant.metrics._sums import BinSums
from calibrant.predictions import Predictions, as_predictions

P = ParamSpec("P")
Unit = Literal["share", "nats", ""]
INPUT_KINDS = {"Predictions": "predictions", "Events": "events", "EventStatistics": "statistics"}  # by annotation
MIN_EXPONENT_VALUE = 1e7  # smallest number that is written with an exponent
NUM_INTERVAL_BINS = 15  # bins from which the range of a score is computed


class ErrorBins(NamedTuple):
    """The bins of a mean absolute calibration error."""

    bins: int
    is_equal_mass: bool


@dataclass(frozen=True)
class MetricInfo:
    """The words for a number: its title, unit, better direction and meaning."""

    title: str
    unit: Unit = ""  # a share is shown in percent
    higher_is_better: bool | None = False  # None if neither is better, as for a difference that should be 0
    meaning: str = ""  # one line for readers who know the field
    short: str = ""  # the title of a column

    @property
    def percent(self) -> bool:
        """Whether the number is shown in percent."""
        return self.unit == "share"

    def heading(self, name: str = "") -> str:
        """Return a heading, `name` or the short title, with the unit that numbers are shown in."""
        return (name or self.short or self.title) + (" (%)" if self.percent else "")

    def text(self, value: float, digits: int | None = None) -> str:
        """Write a value in its unit, with 2 digits if in percent and 4 otherwise, or with `digits`.

        >>> MetricInfo("x").text(0.5), MetricInfo("x", "share").text(0.5), MetricInfo("x").text(1e296)
        ('0.5000', '50.00', '1e296')
        """
        displayed = 100 * value if self.percent else value
        if MIN_EXPONENT_VALUE <= abs(displayed) < math.inf:
            return f"{displayed:.3g}".replace("e+", "e")
        return format_number(displayed, (2 if self.percent else 4) if digits is None else digits)

    def best(self, values: list[float]) -> float:
        """Return the best value, ignoring nan, or nan if there is none or neither direction is better."""
        not_nan = [value for value in values if not math.isnan(value)]
        if not not_nan or self.higher_is_better is None:
            return math.nan
        return max(not_nan) if self.higher_is_better else min(not_nan)


class Metric(Generic[P]):
    """A metric: a function of predictions, or of logits, labels and weights, that returns one number.

    A call, `interval` and `test` also take one event's statistics, such as a `Summary`. `about` holds the words for the
    number, `noise_floor` names the metric that is the noise floor of this one. Settings are keywords, checked by name,
    type and range.
    """

    __name__: str
    __module__: str
    __qualname__: str

    def __init__(
        self,
        function: Callable[..., Any],
        about: MetricInfo,
        *,
        per_example: Callable[[Any], PerExample] | None,
        score_range: ScoreRange | Callable[[Extremes], ScoreRange] | None,
        sums: tuple[str, str, str] | None,
        by_class: bool,
        interval: Callable[..., Interval] | None,
        test: Callable[..., Evidence] | None,
        noise_floor: str,
        error_bins: Callable[..., ErrorBins | None] | None,
        term: str,
        is_calibration_error: bool,
        has_slow_test: bool,
    ) -> None:
        """Keep the declarations that `metric` describes, and read from the signature what the function takes."""
        self.function, self.about, self.noise_floor, self.error_bins = function, about, noise_floor, error_bins
        self.term, self.is_calibration_error, self.has_slow_test = term, is_calibration_error, has_slow_test
        self.per_example, self.score_range, self.sums, self.by_class = per_example, score_range, sums, by_class
        self._interval, self._test = interval, test
        update_wrapper(self, function)
        self.__signature__ = _signature(function)
        parameters = inspect.signature(function).parameters
        self.takes = _input_kind(next(iter(parameters.values()), None))
        self.is_binned, self.is_of_event = "bins" in parameters, self.takes in ("events", "statistics")
        self.accepts_weights = self.takes != "arrays" or "weights" in parameters

    def fits_summary(self, *, by_class: bool) -> bool:
        """Return whether a `Summary`, made `by_class` or not, has the metric: it then needs no rows."""
        return self.takes == "statistics" or self.sums is not None or (by_class and self.by_class)

    @property
    def is_summed_mean(self) -> bool:
        """Whether the metric is a mean over examples whose sums a `Summary` holds."""
        return self.per_example is not None and self.sums is not None

    @property
    def has_interval(self) -> bool:
        """Whether the metric has an interval."""
        return self._interval is not None or self.per_example is not None

    @property
    def has_test(self) -> bool:
        """Whether the metric has a test."""
        return self._test is not None

    def __call__(
        self, predictions: Any, labels: Any = None, weights: Any = None, *args: P.args, **settings: P.kwargs
    ) -> float:
        """Return the metric of predictions, of logits and labels, or of an event's statistics."""
        if self.is_of_event and isinstance(predictions, Predictions) and predictions.of == "classes":
            # One number per class, for the event that this class is the label, and their mean
            classes = map(predictions.with_event, range(predictions.k))
            return float(np.mean([self(p, labels, weights, *args, **settings) for p in classes]))
        with self._read(predictions, labels, weights) as view:
            return self._compute(view, self._check_settings(self.function, settings, view))

    def _compute(self, view: Any, settings: dict[str, Any]) -> float:
        """Return the metric of an input that `_read` yields: predictions, an event's rows, or an event's statistics.

        A metric that needs rows is computed for a `Summary`, which has none, as a mean from its sums.
        """
        if isinstance(view, BinSums) and not view.total("rows"):
            return math.nan  # a summary of no examples
        if isinstance(view, BinSums) and self.takes != "statistics":
            return self._sample(view, settings).mean
        if self.takes != "arrays":
            return float(self.function(view, **settings))
        assert not isinstance(view, BinSums)  # summaries were handled above
        if view.weights is not None:
            if not self.accepts_weights:
                raise InputError(
                    f"{self.__name__} takes no weights. Leave them out, or give the metric a parameter weights=None.",
                    code="weights_refused",
                )
            settings = {"weights": view.weights, **settings}
        value = to_numpy(call_with_arrays(self.function, view.logits, view.labels, **settings))
        if value.ndim:
            raise InputError(
                f"Expected one number from {self.__name__}, got shape {tuple(value.shape)}. Try its mean.",
                code="not_a_number",
            )
        return float(value)

    def values(self, p: Predictions) -> PerExample:
        """Return one value per example (n), whose weighted mean is the metric with default settings."""
        assert self.per_example is not None  # called only for means over examples
        return to_numpy(self.per_example(self.view(p)))

    def view(self, p: Predictions) -> Any:
        """Return the part of the predictions that the metric is a function of."""
        return p.events if self.is_of_event else p

    @check_arguments
    def interval(
        self, predictions: Any, labels: Any = None, weights: Any = None, *, level: OpenFraction = 0.90, **settings: Any
    ) -> Interval:
        """Return the number and the interval that holds the truth with probability `level`.

        Raises:
            InputError: If the metric has no interval, or a `Summary` lacks its sums.
        """
        with self._read(predictions, labels, weights) as view:
            # an interval function may need rows; of a summary, a mean is computed from its sums instead
            if self._interval is not None and not (isinstance(view, BinSums) and self.sums):
                return self._interval(view, level=level, **self._check_settings(self._interval, settings, view))
            if not self.has_interval or settings:  # values per example belong to the default settings
                suffix = " with these settings" if settings and self.has_interval else ""
                raise InputError(
                    f"{self.__name__} has no interval{suffix}. Try metrics.compare for that of a difference.",
                    code="no_interval",
                )
            sample, score_range = self._sample(view, settings), self._compute_range(view)
            return sample.normal_interval(level) if score_range is None else sample.bounded_interval(score_range, level)

    def _sample(self, view: Any, settings: dict[str, Any]) -> Sample:
        """Return a metric that is a mean over examples as a `Sample`: the mean with its precision.

        Raises `InputError` if a summary lacks its sums.
        """
        if not isinstance(view, BinSums):
            assert self.per_example is not None  # `has_interval` is true
            return Sample.from_values(to_numpy(self.per_example(view)), view.weights, view.clusters, view.examples)
        if self.sums is None or settings:
            raise self._summary_error()
        return view.sample(*self.sums)

    def _summary_error(self) -> InputError:
        """Return the error for a summary without the sums of this metric."""
        text = f"{self.__name__} needs every prediction, not a summary. Try measuring them in memory."
        return InputError(text, code="summary_only")

    def _compute_range(self, view: Any) -> ScoreRange | None:
        """Return the smallest and largest score of an example that was not drawn, or None if undeclared.

        A range that depends on the predictions, such as that of NLL, is computed from the most extreme ones.
        """
        if self.score_range is None or isinstance(self.score_range, ScoreRange):
            return self.score_range
        statistics = view
        if isinstance(view, Predictions):  # `of="classes"` names no single event to bin: take the top class
            statistics = (view.with_event("top") if view.of == "classes" else view).events
        bins = getattr(statistics, "bins", NUM_INTERVAL_BINS)  # a `Summary` has its own
        surprisals = getattr(view, "max_surprisals", (math.nan, math.nan))  # an event needs none, and has 2 classes
        extremes = Extremes.from_moments(statistics.moments(bins), map(float, surprisals), getattr(view, "k", 2))
        return ScoreRange(*map(float, self.score_range(extremes)))

    def test(self, predictions: Any, labels: Any = None, weights: Any = None, **settings: Any) -> Evidence:
        """Return the number and the probability that a perfectly calibrated model shows one as large.

        Raises:
            InputError: If the metric has no test.
        """
        if self._test is None:
            tests = [name for name, metric in registry.METRICS.items() if getattr(metric, "has_test", False)]
            raise InputError(f"{self.__name__} has no test. Try {', '.join(tests)}.", code="no_test")
        with self._read(predictions, labels, weights) as view:
            return self._test(view, **registry.check_settings(self._test, settings, self.__name__))

    @contextmanager
    def _read(self, predictions: Any, labels: Any, weights: Any) -> Generator[Any]:
        """Yield the validated input of the metric's function: predictions, or rows or statistics of their event.

        Statistics of an event, such as a `Summary`, are passed on.

        Raises:
            InputError: For a summary without the sums of this metric.
        """
        if isinstance(predictions, EventStatistics):
            if isinstance(predictions, BinSums) and not self.fits_summary(by_class=False):
                raise self._summary_error()
            with np.errstate(divide="ignore", invalid="ignore"):
                yield predictions
            return
        with as_predictions(predictions, labels, weights) as p:
            yield self.view(p)

    def _check_settings(self, function: Callable[..., Any], settings: dict[str, Any], view: Any) -> dict[str, Any]:
        """Return the validated settings. The bins of a summary are the default of `bins`."""
        checked = registry.check_settings(function, settings, self.__name__) if settings else {}
        return {"bins": view.bins, **checked} if self.is_binned and isinstance(view, BinSums) else checked

    def __repr__(self) -> str:
        return f"<metric {self.__name__}: {self.about.title}>"

    def __reduce__(self) -> str:
        return self.__qualname__


def metric(
    title: str,
    *,
    unit: Unit = "",
    higher_is_better: bool | None = False,
    meaning: str = "",
    short: str = "",
    per_example: Callable[[Any], PerExample] | None = None,
    score_range: ScoreRange | Callable[[Extremes], ScoreRange] | None = None,
    sums: tuple[str, str, str] | None = None,
    by_class: bool = False,
    interval: Callable[..., Interval] | None = None,
    test: Callable[..., Evidence] | None = None,
    noise_floor: str = "",
    error_bins: Callable[..., ErrorBins | None] | None = None,
    term: str = "",
    is_calibration_error: bool = False,
    has_slow_test: bool = False,
    revision: int = 1,
) -> Callable[[Callable[Concatenate[Any, P], Any]], Metric[P]]:
    """Declare a metric and register it. No other module needs to know its name.

        @metric("top-3 accuracy", unit="share", higher_is_better=True, meaning="the label is among the first three")
        def top3(logits, labels):
            return (logits.argsort(axis=1)[:, -3:] == labels[:, None]).any(axis=1).mean()

    The annotation of the first parameter decides what the function is called with: `Predictions`; `Events`, the rows of
    the event that the predictions name; or `EventStatistics`, that event sorted (`by_score`) or binned (`moments`,
    `equal_width`). With any other annotation, or none, it is called with (logits, labels) and, if it has that
    parameter, `weights`. Only metrics of event statistics also work on a `Summary` without further declarations.

    Keyword-only parameters of the function are its settings. A metric with a parameter `bins` is given the bins of the
    table or `Summary` that it stands in.

    Args:
        title: Name in words.
        unit: "share" (shown in percent), "nats" or none.
        higher_is_better: None if neither direction is better.
        meaning: One line for readers who know the field.
        short: Title of a column, if the title is long.
        per_example: Number per example of which the metric is the mean, from the same input; gives an interval and
            paired comparisons.
        score_range: Range of the number per example, or a function of the `Extremes` of the predictions that returns
            it; gives bounded intervals. None means Student's t.
        sums: Names of the row statistics of a `Summary` (`FEATURES`) of which the metric is a mean: value, squared
            value, weight.
        by_class: Whether a `Summary` with `by_class=True` is enough.
        interval: Function of the same input and `level` that returns an `Interval`.
        test: Function of the same input that returns `Evidence` against calibration.
        noise_floor: Name of the metric that is the noise floor of this one.
        error_bins: Function of the settings that returns the bins of a mean absolute error, for differences, or None.
        term: Abbreviation or proper name in sentences, which reports explain. Default: the short title, or the title,
            if it has a capital letter.
        is_calibration_error: Whether true probabilities bring the metric to 0, up to chance.
        has_slow_test: Whether tables show the metric without its test, which takes too long for them.
        revision: Number to increase whenever the values of a built-in metric change, as in `Registry.register`.
    """

    def declare(function: Callable[Concatenate[Any, P], Any]) -> Metric[P]:
        """Register the function as a metric with the declarations above, and return the metric."""
        about = MetricInfo(title, unit, higher_is_better, meaning, short)
        name = term or short or title
        return registry.METRICS.register(
            Metric(
                function,
                about,
                per_example=per_example,
                score_range=score_range,
                sums=sums,
                by_class=by_class,
                interval=interval,
                test=test,
                noise_floor=noise_floor,
                error_bins=error_bins,
                term="" if name.islower() else name,  # words in lower case need no explanation
                is_calibration_error=is_calibration_error,
                has_slow_test=has_slow_test,
            ),
            revision=revision,
        )

    return declare


def declared_metric(method: registry.Method) -> Metric[...]:
    """Return the metric behind a method of the registry. Raises `InputError` for a plain function without a title."""
    if not isinstance(method.target, Metric):
        raise InputError(
            f"Expected a declared metric, got the function {method.name}. Put @metrics.metric('its title') above it.",
            code="undeclared_metric",
        )
    return method.target


def _input_kind(parameter: inspect.Parameter | None) -> str:
    """Return the kind of input by the annotation of a metric's first parameter.

    It is "predictions", "events", "statistics", or "arrays" for logits and labels. An annotation may be a type, or its
    name with or without the module.
    """
    annotation = None if parameter is None else parameter.annotation
    type_name = str(getattr(annotation, "__name__", annotation)).rpartition(".")[2]
    return INPUT_KINDS.get(type_name, "arrays")


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of the public call: predictions or logits, labels, weights, then the settings."""
    signature = inspect.signature(function)
    # keyword-only parameters, except those that hold data, such as `weights`
    settings = [
        p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY and p.name not in registry.DATA_PARAMETERS
    ]
    return signature.replace(parameters=[*registry.data_parameters(), *settings])
