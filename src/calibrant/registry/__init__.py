"""Methods by name: the text `focal(gamma=3)` means `partial(focal, gamma=3)`. One registry for each kind."""

from calibrant.registry._calls import format_call, suggest
from calibrant.registry._registry import (
    CALIBRATORS,
    CORRUPTIONS,
    DATA_SETS,
    LOSSES,
    METRICS,
    NETWORKS,
    OOD_SCORES,
    REGISTRIES,
    TRACES,
    Method,
    Registry,
    check_settings,
    is_built_in,
)
from calibrant.registry._settings import DATA_PARAMETERS, describe_mismatch, hyperparameters
from calibrant.registry._sources import INCLUDED_SOURCES, include

__all__ = [
    "CALIBRATORS",
    "CORRUPTIONS",
    "DATA_PARAMETERS",
    "DATA_SETS",
    "INCLUDED_SOURCES",
    "LOSSES",
    "METRICS",
    "NETWORKS",
    "OOD_SCORES",
    "REGISTRIES",
    "TRACES",
    "Method",
    "Registry",
    "check_settings",
    "describe_mismatch",
    "format_call",
    "hyperparameters",
    "include",
    "is_built_in",
    "suggest",
]
