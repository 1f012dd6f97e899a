"""Train networks and reproduce papers. Packages that serve predictions never import it."""

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from calibrant.lab import data, networks, study

__all__ = ["data", "networks", "study"]


def __getattr__(name: str) -> "ModuleType":
    if name not in __all__:
        raise AttributeError(f"module 'calibrant.lab' has no attribute {name!r}")
    return importlib.import_module(f"calibrant.lab.{name}")


def __dir__() -> list[str]:
    return __all__
