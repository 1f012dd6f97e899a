"""Read TOML files into frozen dataclasses; errors name the file and suggest the nearest key."""

import inspect
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from calibrant import registry
from calibrant._text import shorten_repr
from calibrant.lab.study.methods import LIST_REGISTRIES, parse_method
from calibrant.lab.study.recipe import RECIPES, Recipe
from calibrant.registry import Method
from calibrant.types import InputError

MethodReader = Callable[[str, Any], Method]
STUDIES_FOLDER = Path(str(files("calibrant") / "studies"))


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file. Raises `InputError` naming the file if it cannot be read or parsed."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"Cannot read {path}: {reason}.", code="unreadable") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML: {error}", code="toml") from None
    except RecursionError:
        raise InputError(f"{path} is nested too deeply. A study needs at most four levels.", code="toml") from None


def check_type(expected_type: type, value: Any, description: str, code: str = "type_of_key") -> Any:
    """Return a value. Raises `InputError` if it has another type."""
    if not isinstance(value, expected_type):
        raise InputError(f"Expected {description}, got {shorten_repr(value)}.", code=code)
    return value


def read_array(key: str, tables: Any) -> list[dict[str, Any]]:
    """Check that a value is an array of tables."""
    expected = f"{key} as tables [[{key}]]"
    return [check_type(dict, table, expected) for table in check_type(list, tables, expected)]


def read_tables(key: str, notation: str, tables: Any, code: str = "type_of_key") -> dict[str, dict[str, Any]]:
    """Check that a value is a table of tables."""
    return {
        name: check_type(dict, table, f"{key}.{shorten_repr(name)} as a table {notation}", code)
        for name, table in check_type(dict, tables, f"{key} as tables {notation}", code).items()
    }


def parse_recipe(value: str | Mapping[str, Any]) -> Recipe:
    """Build a recipe from the name of one, or from a table of changes to the one that its key `like` names.

    A new number of epochs moves the milestones of a named recipe in proportion.

    >>> parse_recipe({"like": "mukhoti_cifar", "epochs": 35}).milestones
    (15, 25)
    >>> parse_recipe("mukhoti_cifer")
    Traceback (most recent call last):
    calibrant.types.InputError: Unknown recipe 'mukhoti_cifer'; did you mean 'mukhoti_cifar'?
    """
    table = {"like": value} if isinstance(value, str) else dict(value)
    if (name := table.pop("like", None)) is None:
        return build_dataclass(Recipe, table)
    if not isinstance(name, str) or name not in RECIPES:
        hint = registry.suggest(str(name), RECIPES)
        raise InputError(f"Unknown recipe {shorten_repr(name)}; {hint}", code="unknown_recipe")
    changes = build_dataclass(Recipe, table)  # checks keys and types
    base = RECIPES[name].with_epochs(changes.epochs) if "epochs" in table else RECIPES[name]
    return replace(base, **{key: getattr(changes, key) for key in table})


def build_dataclass(
    cls: type[Any], table: Any, name: str = "", read_method: MethodReader = parse_method, **checked_values: Any
) -> Any:
    """Build a frozen dataclass from a TOML table, checking keys and types.

    Lists become tuples, and texts become methods where the field is a method.

    Args:
        cls: The dataclass.
        table: Values by field name.
        name: What error messages call it; the name of the class by default.
        read_method: Parses the text of a method under a key.
        checked_values: Further fields, taken as they are.
    """
    name, types = name or cls.__name__.lower(), _field_types(cls)
    check_keys(name, check_type(dict, table, f"{name} as a table"), types)
    values = {key: convert_value(key, types[key], value, read_method) for key, value in table.items()} | checked_values
    for key, parameter in inspect.signature(cls).parameters.items():
        if parameter.default is parameter.empty and key not in values:
            raise InputError(f"The key {key!r} of {name} is missing.", code="missing_key")
    return cls(**values)


@cache
def _field_types(cls: type[Any]) -> dict[str, Any]:
    """Return the types of a dataclass's fields without the ranges, which the class checks itself."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def check_keys(name: str, table: Iterable[str], allowed: Iterable[str]) -> None:
    """Raise `InputError` for an unknown key, suggesting the nearest."""
    for key in set(table) - set(allowed):
        raise InputError(
            f"Unknown key {shorten_repr(key)} in {name}; {registry.suggest(key, allowed)}", code="unknown_key"
        )


def convert_value(key: str, expected_type: Any, value: Any, read_method: MethodReader) -> Any:
    """Convert a TOML value to the type of a field. Raises `InputError` for a value of another type."""
    origin, arguments = get_origin(expected_type), get_args(expected_type)
    if expected_type is Recipe and isinstance(value, str | dict):
        return parse_recipe(value)  # pyright: ignore[reportUnknownArgumentType]
    if expected_type is Method and isinstance(value, str):
        return read_method(key if key in LIST_REGISTRIES else f"{key}s", value)
    if origin is tuple and isinstance(value, list):
        return tuple(convert_value(key, arguments[0], item, read_method) for item in value)  # pyright: ignore
    options = arguments if origin in (UnionType, Union) else (dict if origin is Mapping else expected_type,)
    if float in options and type(value) is int:
        return float(value)
    if type(value) in options:
        return value  # the class checks the range of numbers
    if mismatch := registry.describe_mismatch(value, dict if origin is Mapping else expected_type):
        mismatch = {"a Method": "the text of a method", "a tuple": "a list"}.get(mismatch, mismatch)
        raise InputError(f"Expected {key} to be {mismatch}, got {shorten_repr(value)}.", code="type_of_key")
    return value
