"""Methods by name: the text `focal(gamma=3)` means `partial(focal, gamma=3)`. One registry for each kind.

A method is a loss, metric, calibrator, network and so on. Its settings are hyperparameters such as gamma.
"""

from calibrant._core.arguments import describe_mismatch
from calibrant._core.registry import _registry
from calibrant._core.registry._code_digest import is_earlier_digest
from calibrant._core.registry._registry import *
from calibrant._core.registry._settings import (
    DATA_PARAMETERS,
    check_name,
    data_parameters,
    format_call,
    hyperparameters,
    suggest,
)
from calibrant._core.registry._sources import INCLUDED_SOURCES, include

__all__ = ["DATA_PARAMETERS", "INCLUDED_SOURCES", "check_name", "data_parameters", "describe_mismatch", "format_call"]
__all__ += ["hyperparameters", "include", "is_earlier_digest", "suggest"]
__all__ += _registry.__all__
