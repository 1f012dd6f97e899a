"""Hyperparameters: calls such as `focal(gamma=3)`, defaults, and values compared with the annotations.

A hint is the annotation of a parameter, such as `float` or `Annotated[float, Range(...)]`.
"""

import ast
import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from calibrant._core.arguments import INT64_LIMIT, describe_mismatch, item_hints
from calibrant._core.text import shorten_repr
from calibrant._core.types import InputError, MethodName

# These parameters are not hyperparameters
DATA_PARAMETERS = ("predictions", "logits", "labels", "weights", "warm_start", "estimate_gain", "level")


@functools.lru_cache(maxsize=1024)
def hyperparameters(method: Callable[..., Any]) -> types.MappingProxyType[str, Any]:
    """Return the hyperparameters of a method with their defaults: its keyword-only parameters other than data.

    The default is `inspect.Parameter.empty` if there is none. A method is a loss, metric, calibrator's fit or a class.
    """
    parameters = inspect.signature(method).parameters.values()
    named = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in DATA_PARAMETERS}
    return types.MappingProxyType(named)


def data_parameters() -> list[inspect.Parameter]:
    """Return the first parameters of every metric and calibrator's fit, for its signature.

    They are `predictions`, in whose place there may be logits, followed by `labels` and `weights`.
    """
    kind, empty = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    defaults = {"predictions": empty, "labels": None, "weights": None}
    return [inspect.Parameter(name, kind, default=default) for name, default in defaults.items()]


@functools.lru_cache(maxsize=1024)
def setting_types(method: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function's or constructor's parameters by name, with `Annotated` kept.

    They are empty if they cannot be evaluated, such as names that are imported for type checkers only.
    """
    source: Any = method.__init__ if isinstance(method, type) else method  # pyright: ignore[reportUnknownMemberType]
    source = inspect.unwrap(getattr(source, "__func__", source))  # of a bound method, such as a calibrator's fit
    try:
        return typing.get_type_hints(source, include_extras=True)
    except (NameError, TypeError):  # annotations that cannot be evaluated here are not checked
        return {}


def nested_names(value: Any, hint: Any) -> Iterator[tuple[str, str]]:
    """Yield the kind and text of each method that a setting names, such as ("calibrators", "Temperature").

    A text names a method if its annotation is `Annotated[str, MethodName(kind)]`, also within unions and sequences.
    """
    if not isinstance(value, str | tuple | list):
        return
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Annotated:
        kinds = [extra.kind for extra in arguments[1:] if isinstance(extra, MethodName)]
        if kinds and value and isinstance(value, str):  # "" names no method
            yield kinds[0], value
        else:
            yield from nested_names(value, arguments[0])
        return
    for item in value if isinstance(value, tuple | list) else [value]:
        for argument in arguments:
            yield from nested_names(item, argument)


def convert(value: Any, hint: Any, default: Any) -> Any:
    """Return a hyperparameter with integers as floats where its annotation or default has floats.

    Numbers and arrays of numpy become those of Python, unless the annotation has arrays, and a list becomes a tuple
    where the default is a tuple. Thus equal settings have equal texts, such as for 3 and 3.0.
    """
    if isinstance(value, np.generic | np.ndarray) and np.ndarray not in typing.get_args(hint):
        value = value.tolist()
    return _ints_to_floats(_match_default_type(default, value), hint)


def _match_default_type(default: Any, value: Any) -> Any:
    """Return a value in the type of its default: integers as floats, and lists as tuples."""
    if isinstance(default, float):
        return _to_float(value)
    if isinstance(default, tuple) and isinstance(value, tuple | list):
        item_default = default[0] if default else None  # pyright: ignore[reportUnknownVariableType]
        return tuple(_match_default_type(item_default, item) for item in value)  # pyright: ignore[reportUnknownArgumentType]
    return value


def _ints_to_floats(value: Any, hint: Any) -> Any:
    """Return a value with integers as floats where the annotation `hint` has floats, also in unions and sequences."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _ints_to_floats(value, arguments[0])
    if origin in (types.UnionType, typing.Union):
        # Parts of the union that accept the value. If `int` is among them, an integer stays as it is
        matching = [part for part in arguments if not describe_mismatch(value, part)]
        return value if int in matching or not matching else _ints_to_floats(value, matching[0])
    if origin in (tuple, Sequence) and isinstance(value, tuple | list):
        items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        hints = item_hints(origin, arguments, len(items))
        return tuple(map(_ints_to_floats, items, hints)) if len(hints) == len(items) else value
    return _to_float(value) if hint is float else value


def _to_float(value: Any) -> Any:
    """Return an int of 64 bits as a float, anything else unchanged."""
    return float(value) if type(value) is int and abs(value) < INT64_LIMIT else value


# Texts of calls


def format_call(name: str, settings: Mapping[str, Any]) -> str:
    """Format a name with keyword arguments, writing whole floats without their `.0`."""
    arguments = ", ".join(f"{key}={_format_literal(value)}" for key, value in settings.items())
    return f"{name}({arguments})" if arguments else name


def _format_literal(value: Any) -> str:
    """Return a value as a Python literal, with whole floats written as integers and lists as tuples."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:  # larger ones have an exponent
        return str(int(value))
    if isinstance(value, tuple | list):
        items = ", ".join(map(_format_literal, value))  # pyright: ignore[reportUnknownArgumentType]
        return f"({items},)" if len(value) == 1 else f"({items})"  # pyright: ignore[reportUnknownArgumentType]
    return repr(value)


def parse_call(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the keyword arguments of a call, or a name without arguments.

    Raises:
        InputError: If the text is anything else, an argument is not a literal, or a keyword occurs twice.
    """
    problem = InputError(f"Expected name or name(key=value, ...), got {shorten_repr(text)}.", code="method_text")
    try:
        match ast.parse(text.strip(), mode="eval").body:
            case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords):
                pass
            case ast.Name(id=name):
                keywords = []
            case _:
                raise problem
        keys = [keyword.arg for keyword in keywords]  # None for **settings
        if None in keys or len(set(keys)) < len(keys):
            raise problem
        return name, {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise problem from None


def check_name(name: str, names: Collection[str], description: str, code: str) -> None:
    """Raise `InputError` for an unknown name, with the closest name or all names.

    >>> check_name("ry", ["local", "ray"], "engine", "unknown_engine")
    Traceback (most recent call last):
    calibrant.types.InputError: Unknown engine 'ry'; did you mean 'ray'?
    """
    if name not in names:
        raise InputError(f"Unknown {description} {shorten_repr(name)}; {suggest(name, names)}", code=code)


def suggest(name: str, names: Iterable[str]) -> str:
    """Return a hint for a wrong name: the closest of the known `names`, or all of them if none is close.

    >>> suggest("eze", ["ece", "nll"])
    "did you mean 'ece'?"
    """
    names_by_lowercase = {word.lower(): word for word in names}
    if name.lower() in ("auc", "roc_auc", "auc_roc"):  # nearer to "aurc" in letters only
        name = "auroc"
    for closest in get_close_matches(name.lower(), names_by_lowercase, n=1):
        return f"did you mean {names_by_lowercase[closest]!r}?"
    return f"there are {', '.join(sorted(names_by_lowercase.values())) or 'none'}"
