"""Ranges and words of public arguments: declared once, as annotations, and checked by one decorator.

This module does not load torch. Import the annotations from `calibrant._core.types`, which has them all.
"""

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from calibrant._core.errors import InputError
from calibrant._core.text import shorten_repr

__all__ = ["Alpha", "Count", "Fraction", "HalfOpenFraction", "HighLevel", "NonNegativeFloat", "NonNegativeInt", "Norm"]
__all__ += ["NumClasses", "NumFolds", "OpenFraction", "PositiveFloat", "PositiveInt", "Range", "Seed", "Severity"]
__all__ += ["Smoothing", "Width", "check_arguments"]

F = TypeVar("F", bound=Callable[..., Any])
INT64_LIMIT = 1 << 63


@dataclass(frozen=True, repr=False)
class Range:
    """Range of a number: `ge` and `le` are included bounds, `gt` and `lt` excluded bounds.

    Infinity is in the range only if `le` is infinity. Errors advise the `example` if there is no default.

    >>> str(Range(gt=0, le=1)), Range(ge=2), 0.5 in Range(ge=2)
    ('(0, 1]', Range(ge=2), False)
    """

    ge: float | int | None = None
    le: float | int | None = None
    gt: float | int | None = None
    lt: float | int | None = None
    example: float | int | None = None

    def __contains__(self, x: float | int) -> bool:
        return (
            (math.isfinite(x) or x == self.le)  # not NaN, and infinity only as the upper bound
            and (self.ge is None or x >= self.ge)
            and (self.le is None or x <= self.le)
            and (self.gt is None or x > self.gt)
            and (self.lt is None or x < self.lt)
        )

    def __str__(self) -> str:
        """Return the interval, in which a round bracket excludes the end."""
        low = f"({-math.inf if self.gt is None else self.gt}" if self.ge is None else f"[{self.ge}"
        high = f"{math.inf if self.lt is None else self.lt})" if self.le is None else f"{self.le}]"
        return f"{low}, {high}"

    def __repr__(self) -> str:
        return f"Range({', '.join(f'{name}={end}' for name, end in vars(self).items() if end is not None)})"

    @property
    def advice(self) -> float | int:
        """A number in the range: the example, an included end, the middle, or 1 beyond an excluded end."""
        middle = None if self.gt is None or self.lt is None else (self.gt + self.lt) / 2
        candidates = (self.example, self.ge, self.le, middle, (self.gt or 0) + 1, (self.lt or 0) - 1)
        return next(number for number in candidates if number is not None and number in self)


Alpha = Annotated[float, Range(gt=0, lt=0.5)]  # probability of an error: no level such as 0.95 passes
Count = Annotated[int, Range(ge=1, le=1_000_000)]
NonNegativeInt = Annotated[int, Range(ge=0)]
PositiveInt = Annotated[int, Range(ge=1)]
PositiveFloat = Annotated[float, Range(gt=0)]
Width = Annotated[float, Range(ge=1e-6)]  # of a kernel, or a temperature inside an exponential
Norm = Annotated[float, Range(ge=1, le=math.inf)]
NonNegativeFloat = Annotated[float, Range(ge=0)]
Fraction = Annotated[float, Range(ge=0, le=1)]
OpenFraction = Annotated[float, Range(gt=0, lt=1)]
HighLevel = Annotated[float, Range(gt=0.5, lt=1)]  # of an error on one side
HalfOpenFraction = Annotated[float, Range(ge=0, lt=1)]
Smoothing = Annotated[float, Range(lt=1)]
NumClasses = Annotated[int, Range(ge=2)]
NumFolds = Annotated[int, Range(ge=2)]
Seed = Annotated[int, Range(ge=0, le=2**32 - 1)]  # accepted by every random number generator
Severity = Annotated[int, Range(ge=1, le=5)]  # of a corruption


def check_arguments(function: F) -> F:
    """Decorate a function, method or dataclass whose annotations limit arguments: check these in every call.

    A `Range` limits numbers, a `Literal` words; other annotations are not checked. The code of the error is NAME_range
    for a number, and the name of the argument for a word.

    >>> @check_arguments
    ... def act(*, alpha: Alpha = 0.05, how: Literal["now", "later"] = "now") -> float:
    ...     return alpha
    >>> act(alpha=0.1)
    0.1
    >>> act(alpha=0.95)
    Traceback (most recent call last):
    calibrant.types.InputError: Expected alpha as a number in (0, 0.5), got 0.95. Try 0.05.
    """
    if isinstance(function, type):
        cls: Any = function
        cls.__init__ = check_arguments(cls.__init__)
        return cls
    parameters = inspect.signature(function).parameters
    positional = [name for name, parameter in parameters.items() if parameter.kind <= parameter.POSITIONAL_OR_KEYWORD]
    limited = {name: parameter for name, parameter in parameters.items() if any(limits(parameter.annotation))}
    if not limited:
        return function

    @functools.wraps(function)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        """Check the limited arguments that are given, and call the function."""
        for name, value in (*zip(positional, arguments, strict=False), *keywords.items()):
            if name in limited:
                hint, default = limited[name].annotation, limited[name].default
                if mismatch := describe_argument(name, value, hint, default):
                    is_number = any(isinstance(limit, Range) for limit in limits(hint))
                    raise InputError(mismatch, code=f"{name}_range" if is_number else name)
        return function(*arguments, **keywords)

    checked.limited = tuple(limited)  # pyright: ignore[reportAttributeAccessIssue]  # by which the contract test finds it
    return checked  # pyright: ignore[reportReturnType]


def limits(hint: Any) -> Iterator[Any]:
    """Yield the ranges and the words that an annotation allows, also within unions and tuples.

    >>> list(limits(Literal["mean", "sum"] | None)), list(limits(Count | None)), list(limits(float))
    (['mean', 'sum'], [Range(ge=1, le=1000000)], [])
    """
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        yield from arguments
        return
    yield from (argument for argument in arguments if isinstance(argument, Range))
    for argument in arguments:
        yield from limits(argument)


def describe_argument(name: str, value: Any, hint: Any, default: Any) -> str:
    """Return "" if the annotation `hint` allows a value, else a message: what was expected, the value, and an advice.

    The advice is the default of the parameter, or another allowed value if there is none.
    """
    value = value.item() if getattr(value, "shape", None) == () else value  # of numpy or torch
    if not (expected := describe_mismatch(value, hint)):
        return ""
    advice = "" if default in (None, inspect.Parameter.empty) else f" Try {default!r}."
    if not advice and (allowed := list(limits(hint))):
        advice = f" Try {allowed[0].advice if isinstance(allowed[0], Range) else repr(allowed[0])}."
    return f"Expected {name} as {expected}, got {shorten_repr(value)}.{advice}"


def describe_mismatch(value: Any, hint: Any) -> str:
    """Return "" if the annotation `hint` allows a value, else words for the allowed values, such as "a whole number".

    Annotations that cannot be checked allow every value. Numbers must be finite, unless a range includes infinity.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _describe_annotated_mismatch(value, *arguments)
    if origin is Literal:
        is_allowed = any(isinstance(value, type(word)) and value == word for word in arguments)
        return "" if is_allowed else " or ".join(map(repr, arguments))
    if origin in (types.UnionType, typing.Union):
        mismatches = [describe_mismatch(value, part) for part in arguments]
        return "" if "" in mismatches else " or ".join(dict.fromkeys(mismatches))
    if origin in (tuple, Sequence):
        return _describe_item_mismatch(value, origin, arguments)
    if origin is Callable:
        return "" if callable(value) else "a function"
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    is_int64 = is_whole and abs(value) < INT64_LIMIT
    if hint is int:
        too_large = "" if is_int64 else "a whole number of 64 bits"
        return too_large if is_whole else "a whole number"
    if hint is float:
        return "" if is_int64 or (isinstance(value, float) and math.isfinite(value)) else "a finite number"
    if hint in (None, type(None)):
        return "" if value is None else "None"
    if isinstance(hint, type) and hint is not Any:
        return "" if isinstance(value, hint) else {bool: "True or False", str: "a text"}.get(hint, f"a {hint.__name__}")
    return ""  # such as Any


def _describe_annotated_mismatch(value: Any, hint: Any, *extras: Any) -> str:
    """Return "" if `Annotated[hint, *extras]` allows a value, else words for the allowed values."""
    ranges = [extra for extra in extras if isinstance(extra, Range)]
    is_infinity = isinstance(value, float) and value == math.inf  # which `float` alone refuses
    expected = "" if is_infinity and ranges else describe_mismatch(value, hint)
    if not ranges or hint not in (int, float) or not (expected or any(value not in limit for limit in ranges)):
        return expected
    return f"a {'whole ' * (hint is int)}number in {' and '.join(map(str, ranges))}"


def _describe_item_mismatch(value: Any, origin: Any, arguments: tuple[Any, ...]) -> str:
    """Return "" if a tuple or sequence annotation allows a value, else words for the allowed tuples.

    Args:
        value: The value of a setting.
        origin: `tuple` or `Sequence`.
        arguments: The annotations in its brackets, such as (int, int) or (float, ...).
    """
    if not isinstance(value, tuple | list):
        return "a tuple"
    items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
    hints = item_hints(origin, arguments, len(items))
    if len(hints) != len(items):
        return f"a tuple of {len(hints)}"
    first_mismatch = next(filter(None, map(describe_mismatch, items, hints)), None)
    return "" if first_mismatch is None else f"a tuple, each {first_mismatch}"


def item_hints(origin: Any, arguments: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """Return the annotation of each of `count` items, from those in the brackets of a tuple or sequence annotation.

    There are fewer or more than `count` if the annotation fixes another length.
    """
    has_fixed_length = origin is tuple and Ellipsis not in arguments
    return arguments if has_fixed_length else arguments[:1] * count
