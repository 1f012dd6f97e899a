"""Check saved states, such as calibrators and summaries, by the annotations of their fields.

An annotation says the shape of an array (jaxtyping), the range of its numbers (`Range`), the length of a tuple
(`Size`), what an index points to (`Index`), and which numbers that are not finite are allowed (`Allows`); by default
none are.
"""

import math
import types
import typing
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from typing import Any, Literal

import numpy as np
from jaxtyping import Shaped, jaxtyped

from calibrant._core.arrays import is_torch_array, to_numpy
from calibrant._core.types import Allows, Index, InputError, Range, Size

MAX_EMPTY_SIZE = 1 << 20  # largest dimension of an array without elements, which takes no room in a file
MAX_DIMENSION = 1 << 40
_FLOAT_KINDS = "fc"
_CONTENT_ERRORS = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError)


def build_state(cls: type, values: Mapping[str, Any], name: str = "") -> Any:
    """Build a dataclass from the values of its fields, after checking names, types, shapes, numbers and indices.

    An integer field is the size of every dimension with its name. A field whose default is not finite, such as
    `math.nan` for "not computed", may hold any number.

    Args:
        cls: The dataclass.
        values: The values by field.
        name: Name of the class in errors.

    Raises:
        InputError: If a value is missing, unknown, or does not match the annotation of its field.
    """
    name, declared = name or cls.__name__, {field.name: field for field in fields(cls)}
    required = {key for key, field in declared.items() if field.default is field.default_factory is MISSING}
    if not required <= values.keys() <= declared.keys():
        raise InputError(
            f"Expected the fields {', '.join(declared)} of {name}, got {', '.join(values) or 'no field'}. Try saving "
            "it again.",
            code="field_names",
        )
    hints = typing.get_type_hints(cls, include_extras=True)
    with jaxtyped("context"):  # jaxtyping then requires one size of each name in the shapes of all fields
        for key, value in values.items():
            allowed = _NONFINITE if _has_nonfinite_default(declared[key]) else ()
            is_size = type(value) is int and 0 <= value < MAX_DIMENSION
            if not _matches_hint(value, hints[key], values, allowed) or (is_size and not _has_size(value, key)):
                array = "an array of another shape or range"
                actual = array if _is_array(value) else type(value).__name__
                raise InputError(
                    f"Expected a valid value of {name}.{key}, got {actual}. Try saving it again.", code="field_value"
                )
    return cls(**values)


@contextmanager
def refuse_malformed(message: str) -> Generator[None]:
    """Raise `InputError` in place of an exception that only the content of a file can have caused."""
    try:
        yield
    except InputError:
        raise
    except _CONTENT_ERRORS:
        raise InputError(message, code="file_content") from None


_NONFINITE = (math.nan, math.inf, -math.inf)


def _has_nonfinite_default(field: "Field[Any]") -> bool:
    """Whether the default of a field is NaN or infinite."""
    return isinstance(field.default, float) and not math.isfinite(field.default)


def _has_size(length: int, dimension: str) -> bool:
    """Whether a dimension has this length, which it has from now on if no field has said so before."""
    shape: Any = Shaped[np.ndarray, dimension]
    return isinstance(np.broadcast_to(np.int8(0), length), shape)


def _matches_hint(value: Any, hint: Any, values: Mapping[str, Any], allowed: tuple[float, ...] = ()) -> bool:
    """Return whether a value fits a type, union, tuple, literal, shape or range. Any other hint accepts everything.

    Args:
        value: Value of a field, or a part of it.
        hint: Its annotation.
        values: Values of all fields, by name.
        allowed: Numbers that are allowed although they are not finite.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        extras = arguments[1:]
        allowed += tuple(number for extra in extras if isinstance(extra, Allows) for number in extra.numbers)
        allowed += tuple(float(extra.le) for extra in extras if isinstance(extra, Range) and extra.le is not None)
        return _matches_hint(value, arguments[0], values, allowed) and all(
            _matches_extra(value, extra, values) for extra in extras
        )
    if isinstance(hint, types.UnionType) or origin is typing.Union:
        return any(_matches_hint(value, part, values, allowed) for part in arguments)
    if origin is Literal:
        return any(type(value) is type(literal) and value == literal for literal in arguments)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        items = typing.cast("tuple[Any, ...]", value)
        parts = arguments[:1] * len(items) if arguments[1:] == (...,) else arguments  # tuple[X, ...] has any length
        return len(items) == len(parts) and all(
            _matches_hint(item, part, values, allowed) for item, part in zip(items, parts, strict=True)
        )
    if hint is int:
        return type(value) is int and abs(value) < 1 << 63
    if hint is float:
        return type(value) in (int, float) and _are_finite(float(value), allowed)
    if not isinstance(hint, type) or hint is Any:
        return True
    return isinstance(value, hint) and (not _is_array(value) or _are_sound(value, allowed))


def _are_sound(array: Any, allowed: tuple[float, ...]) -> bool:
    """Whether an array has finite numbers, or allowed ones, and no huge dimension without elements."""
    size = math.prod(array.shape)
    return (size > 0 or max(array.shape, default=0) <= MAX_EMPTY_SIZE) and _are_finite(array, allowed)


def _are_finite(numbers: Any, allowed: tuple[float, ...]) -> bool:
    """Whether numbers are finite, or among those that are allowed."""
    array = to_numpy(numbers)
    if array.dtype.kind not in _FLOAT_KINDS:
        return True
    unusual = array[~np.isfinite(array)]
    return bool(all(number in allowed or (math.isnan(number) and any(map(math.isnan, allowed))) for number in unusual))


def _matches_extra(value: Any, extra: Any, values: Mapping[str, Any]) -> bool:
    """Whether a value has the size, the range, or the indices that an annotation says."""
    if isinstance(extra, Size):
        return _has_size(len(value), extra.dimension)
    if isinstance(extra, Index):
        target = values[extra.field]
        length = len(target) if isinstance(target, tuple) else target.shape[extra.axis]
        return not math.prod(value.shape) or bool(extra.lowest <= value.min() and value.max() < length)
    if not isinstance(extra, Range) or value is None:
        return True
    if _is_array(value):
        return not math.prod(value.shape) or all(float(extreme) in extra for extreme in (value.min(), value.max()))
    return value in extra


def _is_array(value: Any) -> bool:
    """Whether a value is an array of numpy or a tensor."""
    return isinstance(value, np.ndarray) or is_torch_array(value)
