"""The entries of a study's lists: each text is read once, into a method that is checked."""

import inspect

from calibrant import catalog, metrics
from calibrant.catalog import Method, Registry
from calibrant.types import InputError

Methods = tuple[Method, ...]


def method(key: str, text: str | Method) -> Method:
    """Read an entry of a study's list `key`, and hold what it is called with against its signature."""
    if isinstance(text, Method):
        return text
    found = _registry(key, text).method(text)
    _check_signature(key, found)
    return found


def corrupts(shift: Method) -> bool:
    """Say whether a shift is a corruption of the test set, whose labels still hold, and not another data set."""
    return shift.registry is catalog.CORRUPTIONS


LISTS: dict[str, Registry | None] = {
    "datasets": catalog.DATA_SETS,
    "networks": catalog.NETWORKS,
    "losses": catalog.LOSSES,
    "shifts": None,  # corruptions and data sets
    "traces": catalog.TRACES,
    "calibrators": catalog.CALIBRATORS,
    "metrics": catalog.METRICS,
    "detection": catalog.SCORES,
}
_CALLED_WITH = {
    "data": ("root",),
    "networks": ("classes",),
    "losses": ("logits", "labels"),
    "calibrators": ("logits", "labels"),
    "scores": ("logits",),
    "corruptions": ("images",),
    "traces": ("watched",),
}


def _registry(key: str, text: str) -> Registry:
    if (registry := LISTS[key]) is not None:
        return registry
    name, kinds = text.partition("(")[0].strip(), (catalog.CORRUPTIONS, catalog.DATA_SETS)
    for registry in kinds:
        if name in registry:
            return registry
    hint = catalog.suggest(name, (known for registry in kinds for known in registry))
    raise InputError(f"no {name!r} among corruptions and data; {hint}", code="unknown_method")


def _check_signature(key: str, found: Method) -> None:
    if found.registry is catalog.METRICS and not isinstance(found.target, metrics.Metric):
        raise InputError(
            f"{found.name} is no metric yet: declare it by @metrics.metric('its title')", code="undeclared_metric"
        )
    data = _CALLED_WITH.get(found.registry.kind, ())
    ways = [data, (*data, "vectors")] if found.registry is catalog.NETWORKS else [data]
    signature = inspect.signature(found.bound)
    if data and not any(_binds(signature, way) for way in ways):
        takes = "" if found.registry.kind != "calibrators" else "'s fit"
        raise InputError(
            f"{found.name}{takes} must take ({', '.join(data)}) and hyperparameters by keyword", code="signature"
        )


def _binds(signature: inspect.Signature, data: tuple[str, ...]) -> bool:
    try:
        signature.bind(*data)
    except TypeError:
        return False
    return True
