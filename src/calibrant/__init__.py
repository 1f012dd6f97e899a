"""Classifiers whose probabilities are true.

Everything is a function of (logits, labels): a loss returns a number per example, a metric one number, and a
calibrator a function from logits to better logits. `measure` looks at predictions, `assess` repairs them.
"""

import importlib

from calibrant._core.version import __version__

TYPE_CHECKING = False  # not imported: `python -m calibrant` would look for `typing` in the current folder
if TYPE_CHECKING:
    from typing import Any

    from calibrant import (
        calibrators,
        decisions,
        deployment,
        lab,
        language_models,
        losses,
        metrics,
        monitoring,
        nn,
        planning,
        theory,
    )
    from calibrant._core import registry, types
    from calibrant._core.types import InputError
    from calibrant.assessment import assess, measure
    from calibrant.calibrators import subgroups
    from calibrant.language_models import EvaluationLog, cards, fusion
    from calibrant.monitoring import Watch, check, compare, drift
    from calibrant.nn import tokens
    from calibrant.nn.collecting import collect
    from calibrant.planning import few_labels, sample_size
    from calibrant.predictions import Predictions
    from calibrant.reports import plots

__all__ = [
    "EvaluationLog",
    "InputError",
    "Predictions",
    "Watch",
    "__version__",
    "assess",
    "calibrators",
    "cards",
    "check",
    "collect",
    "compare",
    "decisions",
    "deployment",
    "drift",
    "few_labels",
    "fusion",
    "lab",
    "language_models",
    "losses",
    "measure",
    "metrics",
    "monitoring",
    "nn",
    "planning",
    "plots",
    "registry",
    "sample_size",
    "subgroups",
    "theory",
    "tokens",
    "types",
]

_LAZY_MODULES = {  # module of each name that is imported at its first use; all other names are modules themselves
    "EvaluationLog": "calibrant.language_models",
    "InputError": "calibrant._core.types",
    "Predictions": "calibrant.predictions",
    "collect": "calibrant.nn.collecting",
    "assess": "calibrant.assessment",
    "measure": "calibrant.assessment",
    "sample_size": "calibrant.planning",
    "Watch": "calibrant.monitoring",
    "check": "calibrant.monitoring",
    "compare": "calibrant.monitoring",
    "drift": "calibrant.monitoring",
}


def __getattr__(name: str) -> "Any":
    if name not in __all__:
        raise AttributeError(f"module 'calibrant' has no attribute {name!r}")
    if name not in _LAZY_MODULES:  # a module of this package
        return importlib.import_module(f"calibrant.{name}")
    # Stored, so that Python finds it the next time without this function
    value = globals()[name] = getattr(importlib.import_module(_LAZY_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
