"""Requirements as text: a metric, a comparison and a limit, such as "ece < 0.02" or "nll < old + 0.005"."""

import re
from dataclasses import dataclass
from typing import Any

from calibrant._core.registry import METRICS, Method
from calibrant._core.text import shorten_repr
from calibrant._core.types import InputError
from calibrant.metrics import Metric

_REQUIREMENT = re.compile(r"\s*(?P<metric>[^<>]+?)\s*(?P<comparison><=|>=|<|>)\s*(?P<limit>[^<>=]+?)\s*")
_RELATIVE_LIMIT = re.compile(r"old\s*(?:(?P<sign>[+-])\s*(?P<margin>\S.*))?")
_LIMIT_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,2})?")
BOUNDED_BY_L2 = ("ece", "adaptive_ece")  # L1 errors, which are at most the L2 error
ABSOLUTE_GAP = "abs(signed_gap)"
EXAMPLE = "ece < 0.02"


@dataclass(frozen=True)
class Requirement:
    """A condition on a metric: below or above a limit, or a limit relative to an older model."""

    text: str
    method: Method
    is_upper: bool  # whether the metric must be below the limit
    limit: float  # or the margin to the older model's value
    is_relative: bool = False
    is_absolute: bool = False  # whether the absolute value of the signed gap is required

    @property
    def metric(self) -> Any:
        """The declared metric, or a plain function that cannot be required."""
        return self.method.target

    def is_met(self, value: float) -> bool:
        """Return whether a value, or a difference to the older model, meets the requirement."""
        value = abs(value) if self.is_absolute else value
        return value < self.limit if self.is_upper else value > self.limit


def parse_requirement(text: str) -> Requirement:
    """Return the requirement that a text states, such as "ece < 0.02".

    >>> parse_requirement("accuracy > 90%").limit, parse_requirement("nll < old + 0.005").is_relative
    (0.9, True)

    Raises:
        InputError: If the text is no requirement, the metric has no bounds, or the limit cannot be meant.
    """
    match = _REQUIREMENT.fullmatch(text)
    if match is None:
        raise InputError(f"Expected a requirement such as {EXAMPLE!r}, got {shorten_repr(text)}.", code="requirement")
    is_absolute = "".join(match["metric"].split()) == ABSOLUTE_GAP
    method = METRICS.method("signed_gap" if is_absolute else match["metric"])
    is_upper = match["comparison"].startswith("<")
    relative = _RELATIVE_LIMIT.fullmatch(match["limit"])
    if relative is not None:
        margin = _parse_limit(relative["margin"], text) if relative["margin"] else 0.0
        limit = -margin if relative["sign"] == "-" else margin
    else:
        limit = _parse_limit(match["limit"], text)
    requirement = Requirement(" ".join(text.split()), method, is_upper, limit, relative is not None, is_absolute)
    _check_metric(requirement)
    _check_limit(requirement)
    return requirement


def _parse_limit(text: str, requirement: str) -> float:
    """Return a number, or a percentage as a share, or raise `InputError` for other texts."""
    number = text.strip().removesuffix("%").strip()
    if _LIMIT_NUMBER.fullmatch(number) is None:
        raise InputError(
            f"Expected a number, a percentage or 'old + NUMBER' as the limit in {shorten_repr(requirement)}, got "
            f"{shorten_repr(text)}. Try {EXAMPLE!r}.",
            code="requirement_limit",
        )
    return float(number) / 100 if text.strip().endswith("%") else float(number)


def _check_metric(requirement: Requirement) -> None:
    """Raise `InputError` if there are no bounds for this metric, or for its difference, with its settings."""
    metric, method = requirement.metric, requirement.method
    is_metric, is_l2_bounded = isinstance(metric, Metric), method.name in BOUNDED_BY_L2
    # Differences are bounded for means and for ECEs; AUROC is no mean, as each of its values depends on all examples
    if requirement.is_relative and requirement.is_absolute:
        is_usable, expected = False, "a number as the limit of abs(signed_gap)"
    elif requirement.is_relative:
        is_mean = is_metric and metric.per_example is not None and not method.settings and method.name != "auroc"
        is_usable = is_mean or (is_l2_bounded and set(method.settings) <= {"bins"})
        expected = "ece or a mean over examples relative to 'old', such as accuracy, nll, brier or event_brier,"
    elif not is_metric or not (metric.has_interval or is_l2_bounded):
        is_usable, expected = False, "a metric with an interval, such as ece, signed_gap, accuracy, nll or auroc,"
    elif is_l2_bounded:
        is_usable, expected = set(method.settings) <= {"bins"}, f"{method.name} without settings but bins"
    else:
        # values per example, and so the interval of their mean, belong to the default settings
        is_usable = not method.settings or metric.per_example is None
        expected = f"{method.name} without settings"
    if not is_usable:
        text = shorten_repr(requirement.text)
        raise InputError(f"Expected {expected} in {text}, got {method.text}.", code="requirement_metric")


def _check_limit(requirement: Requirement) -> None:
    """Raise `InputError` if a better model may break the requirement, such as accuracy < 0.9, or for a share of 1."""
    metric_info, text = requirement.metric.about, shorten_repr(requirement.text)
    # An upper limit does not suit a metric of which higher is better, nor a lower one the opposite. `higher_is_better`
    # is None for the signed gap, which may have both.
    higher_is_better = False if requirement.is_absolute else metric_info.higher_is_better
    if higher_is_better is requirement.is_upper:
        word, old, new = ("higher", "<", ">") if requirement.is_upper else ("lower", ">", "<")
        raise InputError(
            f"Expected a requirement that a better model meets, got {text}; a {word} {requirement.method.name} is "
            f"better. Try {requirement.text.replace(old, new)!r}.",
            code="requirement_direction",
        )
    if metric_info.percent and abs(requirement.limit) >= 1:  # 1 is met by every model, or by none
        raise InputError(
            f"Expected a share above -1 and below 1 as the limit in {text}, got {requirement.limit:g}. Try "
            f"{requirement.limit:g}%.",
            code="requirement_limit",
        )
