"""Libraries that take long to load, imported at their first use."""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any


class LazyModule(ModuleType):
    """A library that is imported when one of its attributes is first used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


if TYPE_CHECKING:
    import polars as polars
else:
    polars = LazyModule("polars")
