"""Methods by name: the text `focal(gamma=3)` means `partial(focal, gamma=3)`."""

import ast
import importlib
import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from types import ModuleType
from typing import Any

from calibrant._types import InputError

DATA = ("logits", "labels", "weights")  # arguments that are data, never configuration


def resolve(text: str, home: ModuleType) -> Callable[..., Any]:
    """Find a method in `home`, or anywhere by dotted path, and bind its hyperparameters.

    A loss or metric comes back as a function of (logits, labels), a calibrator as its `fit`.

    >>> from calibrant import losses
    >>> resolve("foca", losses)
    Traceback (most recent call last):
    calibrant._types.InputError: no 'foca' among losses; did you mean 'focal'?
    >>> resolve("focal(gama=3)", losses)
    Traceback (most recent call last):
    calibrant._types.InputError: focal has no 'gama'; it has gamma, detach_weight
    """
    _, method, kwargs = _find(text, home)
    bound: Any = method(**kwargs) if isinstance(method, type) else partial(method, **kwargs)
    return bound


def canonical(text: str, home: ModuleType) -> str:
    """Spell a method out, defaults included: equal meaning, equal text, equal id.

    >>> from calibrant import metrics
    >>> canonical("ece", metrics) == canonical("ece( bins = 15 )", metrics)
    True
    """
    name, method, kwargs = _find(text, home)
    return spell(name, hyperparameters(method) | kwargs)


def brief(text: str, home: ModuleType) -> str:
    """Spell a method as written, in normal form: `focal( gamma = 3.0 )` is `focal(gamma=3)`.

    >>> from calibrant import losses
    >>> brief("focal( gamma = 3.0 )", losses)
    'focal(gamma=3)'
    """
    name, _, kwargs = _find(text, home)
    return spell(name, kwargs)


def spell(name: str, kwargs: Mapping[str, Any]) -> str:
    """Write a name with its arguments; whole floats without their `.0`."""
    inside = ", ".join(f"{key}={_literal(value)}" for key, value in kwargs.items())
    return f"{name}({inside})" if inside else name


def hyperparameters(method: Callable[..., Any]) -> dict[str, Any]:
    """Return the keyword-only parameters of a loss, metric, calibrator's fit or class, with their defaults."""
    parameters = inspect.signature(method).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in DATA}


def _literal(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, tuple | list):
        inside = ", ".join(map(_literal, value))  # pyright: ignore[reportUnknownArgumentType]
        return f"({inside},)" if len(value) == 1 else f"({inside})"  # pyright: ignore[reportUnknownArgumentType]
    return repr(value)


def _like(default: Any, value: Any) -> Any:
    """Make whole numbers floats where the default is one: 3 and 3.0 are one configuration, inside tuples too."""
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(default, tuple) and default and isinstance(value, tuple | list):
        return tuple(_like(default[0], item) for item in value)  # pyright: ignore[reportUnknownArgumentType]
    return value


def _find(text: str, home: ModuleType) -> tuple[str, Callable[..., Any], dict[str, Any]]:
    name, kwargs = _parse(text)
    where, _, last = name.rpartition(".")
    if where:  # the user's own: any importable module
        try:
            home = importlib.import_module(where)
            method = getattr(home, last)
        except (ImportError, AttributeError) as error:
            raise InputError(f"cannot import {name!r}: {error}") from None
    elif name in home.__all__:
        method = getattr(home, last)
    else:
        kind = home.__name__.rpartition(".")[2]
        lower = {known.lower(): known for known in home.__all__}
        close = get_close_matches(name.lower(), lower, n=1)
        hint = f"did you mean {lower[close[0]]!r}?" if close else f"there are {', '.join(sorted(home.__all__))}"
        raise InputError(f"no {name!r} among {kind}; {hint}")
    method = getattr(method, "fit", method)
    known = hyperparameters(method)
    for key in kwargs.keys() - known.keys():
        raise InputError(f"{name} has no {key!r}; it has {', '.join(known) or 'no parameters'}")
    ordered = {key: _like(default, kwargs[key]) for key, default in known.items() if key in kwargs}
    return name, method, ordered


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    problem = InputError(f"expected name or name(key=value, ...), got {text!r}")
    try:
        match ast.parse(text.strip(), mode="eval").body:
            case ast.Call(func=function, args=[], keywords=keywords):
                pass
            case function:
                keywords = []
        if not isinstance(function, ast.Name | ast.Attribute):
            raise problem
        kwargs = {k.arg: ast.literal_eval(k.value) for k in keywords if k.arg}
    except (SyntaxError, ValueError):
        raise problem from None
    return ast.unparse(function), kwargs
