"""Parse and format calls such as `focal(gamma=3)`."""

import ast
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from calibrant._text import shorten_repr
from calibrant.types import InputError


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
    """Return a hint for a wrong name: the closest name, or all names.

    >>> suggest("eze", ["ece", "nll"])
    "did you mean 'ece'?"
    """
    names_by_lowercase = {word.lower(): word for word in names}
    for closest in get_close_matches(name.lower(), names_by_lowercase, n=1):
        return f"did you mean {names_by_lowercase[closest]!r}?"
    return f"there are {', '.join(sorted(names_by_lowercase.values())) or 'none'}"
