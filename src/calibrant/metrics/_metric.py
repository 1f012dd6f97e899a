"""What a metric is: one declaration that every table, comparison, report, command and page asks."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Concatenate, Generic, Literal, ParamSpec

import torch
from torch import Tensor

from calibrant import catalog
from calibrant._bins import Events, Judged
from calibrant.metrics._results import Evidence, Interval, mean_interval
from calibrant.predictions import Predictions, entering
from calibrant.types import InputError, PerExample

P = ParamSpec("P")
Unit = Literal["share", "nats", ""]
Takes = Literal["arrays", "predictions", "events"]
LARGE = 1e7  # from which on a number is written with an exponent


@dataclass(frozen=True)
class About:
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

        >>> About("x").text(0.5), About("x", "share").text(0.5), About("x").text(1e296)
        ('0.5000', '50.00', '1e296')
        """
        shown = 100 * value if self.percent else value
        if LARGE <= abs(shown) < math.inf:
            return f"{shown:.3g}".replace("e+", "e")
        return f"{shown:z.{(2 if self.percent else 4) if digits is None else digits}f}"

    def best(self, values: list[float]) -> float:
        """Return the best of some values; nan of none, and where no direction is better."""
        known = [value for value in values if not math.isnan(value)]
        if not known or self.higher_is_better is None:
            return math.nan
        return max(known) if self.higher_is_better else min(known)


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
        about: About,
        takes: Takes,
        each: Callable[[Any], PerExample] | None,
        interval: Callable[..., Interval] | None,
        test: Callable[..., Evidence] | None,
    ) -> None:
        self.function, self.about, self.takes, self.each = function, about, takes, each
        self._interval, self._test = interval, test
        update_wrapper(self, function)
        self.__signature__ = _signature(function)
        parameters = inspect.signature(function).parameters
        self.weighs = takes != "arrays" or "weights" in parameters
        self.of_sums = takes == "events" and next(iter(parameters.values())).annotation is Judged

    def __call__(
        self, predictions: Any, labels: Any = None, weights: Any = None, *args: P.args, **settings: P.kwargs
    ) -> Tensor:
        with entering(predictions, labels, weights) as p:
            chosen = self._checked(settings)
            if self.takes == "events" and p.of == "classes":
                parts = [self.function(p.judging(j).events, **chosen) for j in range(p.k)]
                return torch.stack(parts).mean()
            return self.of_view(p.judged if self.of_sums else self.view(p), **chosen)

    def view(self, p: Predictions) -> Predictions | Events:
        """What of the predictions the metric is a function of."""
        return p.events if self.takes == "events" else p

    def of_view(self, view: Any, **settings: Any) -> Tensor:
        """The number from what `view` gave, or from some rows of it."""
        if self.takes != "arrays":
            return self.function(view, **settings)
        if view.weights is None:
            return _number(self.function(view.logits, view.labels, **settings), self.__name__)
        if not self.weighs:
            raise InputError(
                f"{self.__name__} takes no weights, but these predictions have some; leave them out, or give the "
                "metric a parameter weights=None",
                code="weights_refused",
            )
        return _number(self.function(view.logits, view.labels, weights=view.weights, **settings), self.__name__)

    @property
    def has_interval(self) -> bool:
        """Whether there is an interval."""
        return self._interval is not None or self.each is not None

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
        with entering(predictions, labels, weights) as p:
            return self.interval_of(self.view(p), level=level, **settings)

    def interval_of(self, view: Any, *, level: float, **settings: Any) -> Interval:
        """The interval from what `view` gave."""
        if not 0 < level < 1:
            raise InputError(f"level must lie in (0, 1), got {level}", code="level_range")
        if self._interval is not None:
            return self._interval(view, level=level, **catalog.checked(self._interval, settings, self.__name__))
        if self.each is None or settings:
            only = " with these settings" if settings and self.each else ""
            raise InputError(
                f"{self.__name__} has no interval{only}; metrics.compare gives that of a difference", code="no_interval"
            )
        return mean_interval(self.each(view), view.weights, level, view.clusters)

    def test(self, predictions: Any, labels: Any = None, weights: Any = None, **settings: Any) -> Evidence:
        """The number, and how often a perfectly calibrated model would show one as large.

        Raises `InputError` if the metric has no test.
        """
        with entering(predictions, labels, weights) as p:
            return self.test_of(self.view(p), **settings)

    def test_of(self, view: Any, **settings: Any) -> Evidence:
        """The test from what `view` gave."""
        if self._test is None:
            raise InputError(f"{self.__name__} is no test statistic; kuiper, ks and skce are", code="no_test")
        return self._test(view, **catalog.checked(self._test, settings, self.__name__))

    def _checked(self, settings: dict[str, Any]) -> dict[str, Any]:
        return catalog.checked(self.function, settings, self.__name__) if settings else settings

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
    takes: Takes = "arrays",
    each: Callable[[Any], PerExample] | None = None,
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
        about = About(title, unit, higher_is_better, meaning, short, plain)
        return catalog.METRICS.register(Metric(function, about, takes, each, interval, test))

    return declare


def _number(value: Any, name: str) -> Tensor:
    value = torch.as_tensor(value, dtype=torch.float64)
    if value.ndim:
        raise InputError(
            f"{name} must return one number, got shape {tuple(value.shape)}; take its mean?", code="not_a_number"
        )
    return value


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Of the public call: predictions or logits and labels, then the settings."""
    own = inspect.signature(function)
    settings = [p for p in own.parameters.values() if p.kind is p.KEYWORD_ONLY and p.name not in catalog.DATA]
    data = [inspect.Parameter("predictions", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    data += [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None) for name in ("labels", "weights")
    ]
    return own.replace(parameters=[*data, *settings])
