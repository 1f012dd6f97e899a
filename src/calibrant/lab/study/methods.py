"""The entries of a study's lists: each text is read once, into a method that is checked."""

import inspect

from calibrant import metrics, registry
from calibrant.registry import Method, Registry
from calibrant.types import InputError

Methods = tuple[Method, ...]


def parse_method(key: str, text: str | Method) -> Method:
    """Read an entry of a study's list `key`, and hold what it is called with against its signature."""
    if isinstance(text, Method):
        return text
    parsed = _find_registry(key, text).method(text)
    _check_signature(key, parsed)
    return parsed


def is_corruption(shift: Method) -> bool:
    """Say whether a shift is a corruption of the test set, whose labels still hold, and not another data set."""
    return shift.registry is registry.CORRUPTIONS


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
_CALL_ARGUMENTS = {
    "data": ("root",),
    "networks": ("classes",),
    "losses": ("logits", "labels"),
    "calibrators": ("logits", "labels"),
    "scores": ("logits",),
    "corruptions": ("images",),
    "traces": ("watched",),
}


def _find_registry(key: str, text: str) -> Registry:
    if (method_registry := LIST_REGISTRIES[key]) is not None:
        return method_registry
    name, kinds = text.partition("(")[0].strip(), (registry.CORRUPTIONS, registry.DATA_SETS)
    for method_registry in kinds:
        if name in method_registry:
            return method_registry
    hint = registry.suggest(name, (known_name for method_registry in kinds for known_name in method_registry))
    raise InputError(f"no {name!r} among corruptions and data; {hint}", code="unknown_method")


def _check_signature(key: str, parsed: Method) -> None:
    if parsed.registry is registry.METRICS and not isinstance(parsed.target, metrics.Metric):
        raise InputError(
            f"{parsed.name} is no metric yet: declare it by @metrics.metric('its title')", code="undeclared_metric"
        )
    data = _CALL_ARGUMENTS.get(parsed.registry.kind, ())
    call_forms = [data, (*data, "vectors")] if parsed.registry is registry.NETWORKS else [data]
    signature = inspect.signature(parsed.bound_function)
    if data and not any(_accepts_arguments(signature, call_form) for call_form in call_forms):
        takes = "" if parsed.registry.kind != "calibrators" else "'s fit"
        raise InputError(
            f"{parsed.name}{takes} must take ({', '.join(data)}) and hyperparameters by keyword", code="signature"
        )


def _accepts_arguments(signature: inspect.Signature, arguments: tuple[str, ...]) -> bool:
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True
