"""Parse the methods that a study lists, and check that they can be called."""

import inspect

from calibrant import metrics, registry
from calibrant._text import to_one_line
from calibrant.registry import Method, Registry
from calibrant.types import InputError

Methods = tuple[Method, ...]
LIST_REGISTRIES: dict[str, Registry | None] = {
    "datasets": registry.DATA_SETS,
    "networks": registry.NETWORKS,
    "losses": registry.LOSSES,
    "shifts": None,  # corruptions and data sets
    "traces": registry.TRACES,
    "calibrators": registry.CALIBRATORS,
    "metrics": registry.METRICS,
    "detection": registry.OOD_SCORES,
}
CALL_ARGUMENTS = {
    "data": ("root",),
    "networks": ("classes",),
    "losses": ("logits", "labels"),
    "calibrators": ("logits", "labels"),
    "scores": ("logits",),
    "corruptions": ("images",),
    "traces": ("watched",),
}


def parse_method(key: str, text: str | Method) -> Method:
    """Parse an entry of a study's list `key`, and check its signature."""
    if isinstance(text, Method):
        return text
    method = _find_registry(key, text).method(text)
    _check_signature(method)
    return method


def is_corruption(shift: Method) -> bool:
    """Whether a shift corrupts the test set, whose labels stay valid, instead of being another data set."""
    return shift.registry is registry.CORRUPTIONS


def error_text(error: Exception) -> str:
    """Return an error in one line, with its type unless it is an `InputError`."""
    kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
    return kind + to_one_line(error)


def _find_registry(key: str, text: str) -> Registry:
    if (method_registry := LIST_REGISTRIES[key]) is not None:
        return method_registry
    name, candidates = text.partition("(")[0].strip(), (registry.CORRUPTIONS, registry.DATA_SETS)
    for method_registry in candidates:
        if name in method_registry:
            return method_registry
    hint = registry.suggest(name, (known_name for method_registry in candidates for known_name in method_registry))
    raise InputError(f"Unknown shift {name!r} among corruptions and data; {hint}", code="unknown_method")


def _check_signature(method: Method) -> None:
    if method.registry is registry.METRICS and not isinstance(method.target, metrics.Metric):
        raise InputError(
            f"Expected a metric, got the function {method.name}. Declare it with @metrics.metric('its title').",
            code="undeclared_metric",
        )
    arguments = CALL_ARGUMENTS.get(method.registry.kind, ())
    call_forms = [arguments, (*arguments, "vectors")] if method.registry is registry.NETWORKS else [arguments]
    signature = inspect.signature(method.bound_function)
    if arguments and not any(_accepts_arguments(signature, call_form) for call_form in call_forms):
        function_name = f"{method.name}.fit" if method.registry is registry.CALIBRATORS else method.name
        raise InputError(
            f"Expected {function_name} to take ({', '.join(arguments)}) and hyperparameters by keyword.",
            code="signature",
        )


def _accepts_arguments(signature: inspect.Signature, arguments: tuple[str, ...]) -> bool:
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True
