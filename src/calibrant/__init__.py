"""Classifiers whose probabilities are true.

Everything is a function of (logits, labels): a loss returns a number per example, a metric one number, and a
calibrator a function from logits to better logits. `measure` looks at predictions, `assess` repairs them.
"""

import importlib
import importlib.machinery
import sys
import warnings

from calibrant._core.version import __version__

TYPE_CHECKING = False  # not imported: `python -m calibrant` would look for `typing` in the current folder
if TYPE_CHECKING:
    from types import ModuleType
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
        reports,
        theory,
    )
    from calibrant._core import registry, types
    from calibrant._core.types import InputError
    from calibrant.assessment import assess, measure, validate
    from calibrant.language_models import EvaluationLog
    from calibrant.monitoring import Watch, check, compare, drift
    from calibrant.nn.collecting import collect
    from calibrant.planning import sample_size
    from calibrant.predictions import Predictions

__all__ = [
    "EvaluationLog",
    "InputError",
    "Predictions",
    "Watch",
    "__version__",
    "assess",
    "calibrators",
    "check",
    "collect",
    "compare",
    "decisions",
    "deployment",
    "drift",
    "lab",
    "language_models",
    "losses",
    "measure",
    "metrics",
    "monitoring",
    "nn",
    "planning",
    "registry",
    "reports",
    "sample_size",
    "theory",
    "types",
    "validate",
]

_LAZY_MODULES = {  # module of each name that is imported at its first use; all other names are modules themselves
    "EvaluationLog": "calibrant.language_models",
    "InputError": "calibrant._core.types",
    "Predictions": "calibrant.predictions",
    "collect": "calibrant.nn.collecting",
    "assess": "calibrant.assessment",
    "measure": "calibrant.assessment",
    "validate": "calibrant.assessment",
    "sample_size": "calibrant.planning",
    "Watch": "calibrant.monitoring",
    "check": "calibrant.monitoring",
    "compare": "calibrant.monitoring",
    "drift": "calibrant.monitoring",
}
_SHORT_NAMES = {"types": "_core.types", "registry": "_core.registry"}  # modules that are public by these names
_MOVED = {  # old names of modules, which saved objects and code may have
    "cards": "language_models.cards",
    "collecting": "nn.collecting",
    "events": "predictions.events",
    "few_labels": "planning.few_labels",
    "fusion": "language_models.fusion",
    "plots": "reports.plots",
    "selection": "nn.selection",
    "subgroups": "calibrators.subgroups",
    "tokens": "nn.tokens",
}


def __getattr__(name: str) -> "Any":
    if name not in __all__ and name not in _MOVED:
        raise AttributeError(f"module 'calibrant' has no attribute {name!r}")
    if name not in _LAZY_MODULES:  # a module of this package
        return importlib.import_module(f"calibrant.{name}")
    # Stored, so that Python finds it the next time without this function
    value = globals()[name] = getattr(importlib.import_module(_LAZY_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__


class _OtherNames:
    """Finds modules by their short and old names, also parts of them, as the same objects as by their places."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """Return a specification that leads to the module, or None for other names."""
        package, _, rest = name.partition(".")
        top, dot, part = rest.partition(".")
        place = _SHORT_NAMES.get(top) or _MOVED.get(top)
        if package != "calibrant" or place is None:
            return None
        if top in _MOVED and not dot:
            text = f"calibrant.{top} has moved to calibrant.{place}"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
        loader: Any = _OtherNames  # the class itself, whose static methods are those of a loader
        return importlib.machinery.ModuleSpec(name, loader, origin=f"calibrant.{place}{dot}{part}")

    @staticmethod
    def create_module(spec: importlib.machinery.ModuleSpec) -> "ModuleType":
        """Return the module itself."""
        module = importlib.import_module(str(spec.origin))
        spec.loader_state = module.__spec__
        return module

    @staticmethod
    def exec_module(module: "ModuleType") -> None:
        """Give the module back its own specification, which the import has replaced."""
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


sys.meta_path.insert(0, _OtherNames)  # pyright: ignore[reportArgumentType]  # before parts are found by the path of a moved package
