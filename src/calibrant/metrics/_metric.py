"""What a metric is: one declaration that every table, comparison, report, command and page asks."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Concatenate, Generic, Literal, ParamSpec

import torch
from torch import Tensor

from calibrant import registry
from calibrant.backend.bins import Events, EventStatistics
from calibrant.metrics._intervals import Evidence, Interval, mean_interval
from calibrant.predictions import Predictions, as_predictions
from calibrant.types import InputError, PerExample

P = ParamSpec("P")
Unit = Literal["share", "nats", ""]
MetricInput = Literal["arrays", "predictions", "events"]
MIN_EXPONENT_VALUE = 1e7  # from which on a number is written with an exponent


@dataclass(frozen=True)
class MetricInfo:
    """What to say of a number: its name in words, its unit, which way is better, and what it means."""

    title: str
    unit: Unit = ""  # a share is shown in percent
    higher_is_better: bool | None = False  # None: neither, such as a difference whose best is 0
    meaning: str = ""  # one line
    short: str = ""  # the title of a column
    plain: str = ""  # what it is, for who is not in the field

    @property
    def percent(self) -> bool:
        """Whether it is shown in percent."""
        return self.unit == "share"

    def heading(self, name: str = "") -> str:
        """Name it, or `name`, with the unit it is shown in."""
        return (name or self.short or self.title) + (" (%)" if self.percent else "")

    def text(self, value: float, digits: int | None = None) -> str:
        """Write a value in the unit it is shown in, with 2 digits of a percentage and 4 of others, or so many.

        >>> MetricInfo("x").text(0.5), MetricInfo("x", "share").text(0.5), MetricInfo("x").text(1e296)
        ('0.5000', '50.00', '1e296')
        """
        displayed = 100 * value if self.percent else value
        if MIN_EXPONENT_VALUE <= abs(displayed) < math.inf:
            return f"{displayed:.3g}".replace("e+", "e")
        return f"{displayed:z.{(2 if self.percent else 4) if digits is None else digits}f}"

    def best(self, values: list[float]) -> float:
        """Return the best of some values; nan of none, and where no direction is better."""
        not_nan = [value for value in values if not math.isnan(value)]
        if not not_nan or self.higher_is_better is None:
            return math.nan
        return max(not_nan) if self.higher_is_better else min(not_nan)


class Metric(Generic[P]):
    """A metric: call it with predictions, or with logits, labels and, if there are any, weights; it is one number.

    `about` says what to say of it. `interval` and `test` add how surely the number is known, where it has them.
    Settings are keywords, checked by name, type and range.
    """

    __name__: str
    __module__: str
    __qualname__: str

    def __init__(
        self,
        function: Callable[..., Tensor],
        about: MetricInfo,
        takes: MetricInput,
        per_example: Callable[[Any], PerExample] | None,
        interval: Callable[..., Interval] | None,
        test: Callable[..., Evidence] | None,
    ) -> None:
        self.function, self.about, self.takes, self.per_example = function, about, takes, per_example
        self._interval, self._test = interval, test
        update_wrapper(self, function)
        self.__signature__ = _signature(function)
        parameters = inspect.signature(function).parameters
        self.accepts_weights = takes != "arrays" or "weights" in parameters
        self.accepts_sums = takes == "events" and next(iter(parameters.values())).annotation is EventStatistics

    def __call__(
        self, predictions: Any, labels: Any = None, weights: Any = None, *args: P.args, **settings: P.kwargs
    ) -> Tensor:
        with as_predictions(predictions, labels, weights) as p:
            checked = self._check_settings(settings)
            if self.takes == "events" and p.of == "classes":
                parts = [self.function(p.with_event(j).events, **checked) for j in range(p.k)]
                return torch.stack(parts).mean()
            return self.compute_from_view(p.events if self.accepts_sums else self.view(p), **checked)

    def view(self, p: Predictions) -> Predictions | Events:
        """What of the predictions the metric is a function of."""
        return p.events if self.takes == "events" else p

    def compute_from_view(self, view: Any, **settings: Any) -> Tensor:
        """The number from what `view` gave, or from some rows of it."""
        if self.takes != "arrays":
            return self.function(view, **settings)
        if view.weights is None:
            return _to_scalar(self.function(view.logits, view.labels, **settings), self.__name__)
        if not self.accepts_weights:
            raise InputError(
                f"{self.__name__} takes no weights, but these predictions have some; leave them out, or give the "
                "metric a parameter weights=None",
                code="weights_refused",
            )
        return _to_scalar(self.function(view.logits, view.labels, weights=view.weights, **settings), self.__name__)

    @property
    def has_interval(self) -> bool:
        """Whether there is an interval."""
        return self._interval is not None or self.per_example is not None

    @property
    def has_test(self) -> bool:
        """Whether there is a test."""
        return self._test is not None

    def interval(
        self, predictions: Any, labels: Any = None, weights: Any = None, *, level: float = 0.90, **settings: Any
    ) -> Interval:
        """The number with the interval that holds the truth with probability `level`.

        Raises `InputError` if the metric has none.
        """
        with as_predictions(predictions, labels, weights) as p:
            return self.interval_from_view(self.view(p), level=level, **settings)

    def interval_from_view(self, view: Any, *, level: float, **settings: Any) -> Interval:
        """The interval from what `view` gave."""
        if not 0 < level < 1:
            raise InputError(f"level must lie in (0, 1), got {level}", code="level_range")
        if self._interval is not None:
            return self._interval(view, level=level, **registry.check_settings(self._interval, settings, self.__name__))
        if self.per_example is None or settings:
            only = " with these settings" if settings and self.per_example else ""
            raise InputError(
                f"{self.__name__} has no interval{only}; metrics.compare gives that of a difference", code="no_interval"
            )
        return mean_interval(self.per_example(view), view.weights, level, view.clusters)

    def test(self, predictions: Any, labels: Any = None, weights: Any = None, **settings: Any) -> Evidence:
        """The number, and how often a perfectly calibrated model would show one as large.

        Raises `InputError` if the metric has no test.
        """
        with as_predictions(predictions, labels, weights) as p:
            return self.test_from_view(self.view(p), **settings)

    def test_from_view(self, view: Any, **settings: Any) -> Evidence:
        """The test from what `view` gave."""
        if self._test is None:
            raise InputError(f"{self.__name__} is no test statistic; kuiper, ks and skce are", code="no_test")
        return self._test(view, **registry.check_settings(self._test, settings, self.__name__))

    def _check_settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        return registry.check_settings(self.function, settings, self.__name__) if settings else settings

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
    plain: str = "",
    takes: MetricInput = "arrays",
    per_example: Callable[[Any], PerExample] | None = None,
    interval: Callable[..., Interval] | None = None,
    test: Callable[..., Evidence] | None = None,
) -> Callable[[Callable[Concatenate[Any, P], Tensor]], Metric[P]]:
    """Declare a metric and register it: all that tables, comparisons, reports, commands and docs know of it.

        @metric("top-3 accuracy", unit="share", higher_is_better=True, meaning="the label is among the first three")
        def top3(logits, labels):
            return (logits.topk(3).indices == labels[:, None]).any(1).double().mean()

    `meaning` is for who knows the field, `plain` a phrase for who does not.

    `takes`: "arrays", a function of (logits, labels) and, if it has that parameter, `weights`; "predictions", of
    `Predictions`; "events", of their `events`, so that it judges whatever the predictions say is to be judged. One
    whose parameter is annotated `Judged` needs them only sorted or binned, and works on a `Summary`, too.
    `each`: the number per example of which the metric is the mean, for its interval and paired comparisons.
    `interval` and `test` take what the metric takes. Settings are keyword-only.
    """

    def declare(function: Callable[Concatenate[Any, P], Tensor]) -> Metric[P]:
        about = MetricInfo(title, unit, higher_is_better, meaning, short, plain)
        return registry.METRICS.register(Metric(function, about, takes, per_example, interval, test))

    return declare


def _to_scalar(value: Any, name: str) -> Tensor:
    value = torch.as_tensor(value, dtype=torch.float64)
    if value.ndim:
        raise InputError(
            f"{name} must return one number, got shape {tuple(value.shape)}; take its mean?", code="not_a_number"
        )
    return value


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Of the public call: predictions or logits and labels, then the settings."""
    signature = inspect.signature(function)
    settings = [
        p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY and p.name not in registry.DATA_PARAMETERS
    ]
    data = [inspect.Parameter("predictions", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    data += [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None) for name in ("labels", "weights")
    ]
    return signature.replace(parameters=[*data, *settings])
