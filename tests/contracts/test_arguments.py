"""Ranges and words that public callables declare: other values are refused by name, and the advice can be followed."""

import ast
import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from calibrant.types import Alpha, Count, Fraction, InputError, Range, check_arguments
from refusals import code_of

import calibrant
from calibrant._core.arguments import describe_mismatch, limits


def modules() -> Iterator[ModuleType]:
    """Yield the modules whose packages are installed; adapters of others are tested where these are."""
    for module in pkgutil.walk_packages(calibrant.__path__, "calibrant."):
        if not re.search(r"\.(integrations|cli)\b|__main__", module.name):
            try:
                imported = importlib.import_module(module.name)
                for name in getattr(imported, "__all__", ()):
                    getattr(imported, name)  # which some packages import only then
            except ModuleNotFoundError as error:
                if error.name not in ("torch", "numba"):
                    raise
            else:
                yield imported


MODULES = [*modules()]
# Parameters with a meaning of their own, which every public callable must limit
NAMES = {"alpha", "delta", "draws", "folds", "level", "risk", "seed", "tolerance"}


def functions(owner: Any) -> Iterator[Callable[..., Any]]:
    """Yield the functions of a module, or the methods of a class, that are defined in it."""
    for value in vars(owner).values():
        function = getattr(value, "__func__", value)  # of a class method
        if inspect.isfunction(function) and function.__module__ == getattr(owner, "__module__", owner.__name__):
            yield function
        elif inspect.isclass(value) and inspect.ismodule(owner) and value.__module__ == owner.__name__:
            yield from functions(value)


CHECKED = [function for module in MODULES for function in functions(module) if hasattr(function, "limited")]


def values_outside(hint: Any) -> list[Any]:
    """Return values next to the limits of an annotation, and senseless ones, that it does not allow."""
    ends = [
        end for limit in limits(hint) if isinstance(limit, Range) for end in vars(limit).values() if end is not None
    ]
    near_ends = [end + step for end in ends for step in (-1, -0.5, -1e-9, 0, 1e-9, 0.5, 1)]
    values = [*near_ends, math.nan, math.inf, -math.inf, True, "", "90 %", [0.5], np.array([0.5, 0.6]), object(), None]
    return [value for value in values if describe_mismatch(value, hint)]


def checked_parameters() -> Iterator[tuple[Callable[..., Any], inspect.Parameter]]:
    for function in CHECKED:
        yield from (
            (function, parameter)
            for parameter in inspect.signature(function).parameters.values()
            if any(limits(parameter.annotation))
        )


def test_values_outside_are_refused_before_anything_else_is_read():
    count = 0
    for function, parameter in checked_parameters():
        is_number = any(isinstance(limit, Range) for limit in limits(parameter.annotation))
        for value in values_outside(parameter.annotation):
            code = code_of(function, **{parameter.name: value})  # other arguments are missing
            assert code == parameter.name + "_range" * is_number, function
            count += 1
    assert count > 1000


def test_defaults_and_advice_are_allowed():
    for function, parameter in checked_parameters():
        if parameter.default is not parameter.empty:
            assert not describe_mismatch(parameter.default, parameter.annotation), (function, parameter)
        with pytest.raises(InputError) as caught:
            function(**{parameter.name: object()})
        advice = ast.literal_eval(str(caught.value).rpartition(" Try ")[2].removesuffix("."))
        assert not describe_mismatch(advice, parameter.annotation), (function, parameter, advice)


def test_public_functions_limit_their_levels_seeds_and_folds():
    for module in MODULES:
        is_public = not any(part.startswith("_") for part in module.__name__.split("."))
        for value in [getattr(module, name) for name in getattr(module, "__all__", ()) if is_public]:
            # fields of results, whose constructors nobody calls, are not arguments
            methods = (
                [vars(value)[name] for name in vars(value) if name != "__init__"] if inspect.isclass(value) else []
            )
            for function in [getattr(method, "__func__", method) for method in (*methods, value)]:
                parameters = inspect.signature(function).parameters if inspect.isfunction(function) else {}
                loose = {key for key in NAMES & set(parameters) if not any(limits(parameters[key].annotation))}
                assert not loose, (module.__name__, function, loose)


def test_signature_and_help_stay():
    @check_arguments
    def share(part: float, *rest: float, total: Fraction = 1.0, alpha: Alpha = 0.05) -> float:
        """Return a share."""
        return part * total

    assert str(inspect.signature(share)).startswith(
        "(part: float, *rest: float, total: typing.Annotated[float, Range(ge=0, le=1)] ="
    )
    assert (share.__name__, share.__doc__) == ("share", "Return a share.")
    assert share(1.0, 7.0, 7.0, total=0.5) == 0.5  # further positional arguments are not taken for keywords


@pytest.mark.parametrize("number", [0.5, np.float32(0.5), np.array(0.5), "tensor", 1, np.int64(1)])
def test_numbers_of_other_libraries_are_numbers(number):
    number = pytest.importorskip("torch").tensor(0.5) if number == "tensor" else number
    assert not describe_mismatch(getattr(number, "item", lambda: number)(), Fraction)

    @check_arguments
    def identity(x: Fraction) -> float:
        return x

    assert identity(number) is number


def test_fractions_are_no_counts():
    @check_arguments
    def identity(n: Count) -> int:
        return n

    assert code_of(identity, 2.5) == code_of(identity, 2.0) == "n_range"
