"""Libraries that take long to load, imported at their first use, and optional ones."""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from calibrant._core.errors import InputError


class LazyModule(ModuleType):
    """A library that is imported when one of its attributes is first used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


if TYPE_CHECKING:
    import polars as polars
    from scipy import special as special
else:
    polars, special = LazyModule("polars"), LazyModule("scipy.special")


def import_optional(module: str, extra: str, purpose: str) -> Any:
    """Import a module of a package that an extra of calibrant installs. Raises `InputError` if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = error.name or module
        raise InputError(
            f"{purpose} needs the package {package}. Try pip install 'calibrant[{extra}]'.", code="missing_package"
        ) from None
