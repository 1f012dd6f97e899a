"""Register the losses of this package, with settings that are checked wherever a loss is called."""

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from calibrant._core.registry import LOSSES, check_settings
from calibrant._core.text import shorten_repr
from calibrant._core.types import InputError

L = TypeVar("L", bound=Callable[..., Tensor])


def register_loss(loss: L) -> L:
    """Register a loss of this package, and check its settings where it is called as a function, too.

    Equal settings are checked once, so that training steps take no longer. A compiled loss checks none.
    """
    names = inspect.signature(loss).parameters.keys()

    @functools.wraps(loss)
    def checked_loss(logits: Tensor, labels: Tensor, **settings: Any) -> Tensor:
        """Check the settings, and compute the loss. The docstring of the loss replaces this one."""
        check_tensors(logits, labels)
        if settings and not torch.compiler.is_compiling():
            if settings.keys() <= names:
                # weights differ in every batch, so they are checked every time
                if (weights := settings.get("weights")) is not None:
                    _check_weights(weights, len(logits))
                plain_settings = _plain_settings(settings)
                try:
                    _check_once(loss, **plain_settings)
                except TypeError:  # a value without a hash, such as a dict
                    check_settings(loss, plain_settings)
            else:
                # an unknown setting: the error says where it belongs
                check_settings(loss, settings, parameter_hints=LOSSES.hints)
        return loss(logits, labels, **settings)

    return LOSSES.register(checked_loss)  # pyright: ignore[reportReturnType]


def check_tensors(logits: object, labels: object) -> None:
    """Raise `InputError` for logits or labels that are no tensors, such as the arrays of `Predictions`."""
    if not (isinstance(logits, Tensor) and isinstance(labels, Tensor)):
        kinds = f"{type(logits).__name__} and {type(labels).__name__}"
        raise InputError(
            f"Expected tensors of logits and labels, got {kinds}. Try torch.as_tensor for both.", code="tensor_kind"
        )


def _plain_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings without tensors and arrays, with numbers of numpy as Python's and lists as tuples.

    Their hashes let `_check_once` remember them.
    """
    settings_by_name: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, np.generic):
            value = value.item()
        if name != "weights" and not isinstance(value, Tensor | np.ndarray):
            settings_by_name[name] = tuple(value) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType]
    return settings_by_name


@functools.lru_cache(maxsize=1024, typed=True)
def _check_once(loss: Callable[..., Tensor], /, **settings: Any) -> None:
    """Raise `InputError` for settings that a loss does not allow, unless equal ones were checked before."""
    check_settings(loss, settings)


def _check_weights(weights: Any, n: int) -> None:
    """Raise `InputError` unless there is one finite weight of at least 0 per row. Values are checked on the CPU."""
    valid = isinstance(weights, Tensor) and weights.shape == (n,)
    if valid and weights.is_cpu and n:
        try:
            low, high = map(float, weights.aminmax())
            valid = 0 <= low <= high < math.inf
        except RuntimeError:  # vmap hides the values
            pass
    if not valid:
        raise InputError(
            f"Expected a tensor of {n} finite weights of at least 0, one per row, got {shorten_repr(weights)}.",
            code="weights",
        )
