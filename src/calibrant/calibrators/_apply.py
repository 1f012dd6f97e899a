"""Capabilities of calibrators, and the checks of every call of a fitted map.

Learned tensors stay on the CPU and are copied to the device of the logits.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from calibrant.types import InputError

Call = Callable[[Any, Tensor], Tensor]
NETWORK_EXPORTS = ("torch.export", "ONNX")
ALL_EXPORTS = (*NETWORK_EXPORTS, "plain numpy")


def certified_classes(calibrator: Any) -> int:
    """Return the number of classes in a calibrator's certificate, 0 if unknown."""
    return 0 if calibrator.certificate is None else calibrator.certificate.classes


@dataclass(frozen=True)
class Capabilities:
    """The promises of a calibrator class, which has them as its attribute `capabilities`.

    Attributes that depend on what was fitted are functions of the fitted map.
    """

    preserves_argmax: bool | Callable[[Any], bool] = False  # never changes a predicted class
    num_classes: int | Callable[[Any], int] = certified_classes  # that it accepts, 0 for any number
    repairs_overconfidence: bool = True  # False if it learns nothing from the data
    takes_groups: bool = False  # maps each group differently
    is_differentiable: bool = True  # False for step functions
    exports: tuple[str, ...] = NETWORK_EXPORTS


def capabilities(calibrator: Any) -> Capabilities:
    """Return the capabilities of a calibrator or its class; a user's own class promises nothing."""
    return getattr(calibrator, "capabilities", Capabilities(num_classes=0))


def num_classes(calibrator: Any) -> int:
    """Return the number of classes that a fitted map accepts, 0 for any number."""
    promised = capabilities(calibrator).num_classes
    return promised if isinstance(promised, int) else promised(calibrator)


def preserves_argmax(calibrator: Any) -> bool:
    """Return whether a fitted map never changes a predicted class."""
    promised = capabilities(calibrator).preserves_argmax
    return promised if isinstance(promised, bool) else promised(calibrator)


def calibrator_call(call: Call) -> Call:
    """Decorate the `__call__` of a fitted map.

    Checks the logits, calls the map on their device, returns their precision, and undoes changes of the argmax by
    rounding if the map preserves it.
    """

    @wraps(call)
    def checked(self: Any, logits: Tensor) -> Tensor:
        calibrated = call(prepare(self, logits), logits).to(logits.dtype)
        return restore_argmax(calibrated, logits) if preserves_argmax(self) else calibrated

    return checked


def prepare(calibrator: Any, logits: Tensor) -> Any:
    """Return a fitted map on the device of logits that it can map.

    Raises:
        InputError: "num_classes" for another number of classes, "tensor_kind" for meta tensors.
    """
    k, logit_classes = num_classes(calibrator), logits.shape[-1]
    if k not in (0, logit_classes):
        raise InputError(
            f"Expected logits of {k} classes, as {type(calibrator).__name__} was fitted on, got {logit_classes}. "
            "Try fitting it on predictions of these classes.",
            code="num_classes",
        )
    if logits.device.type == "meta":
        raise InputError(
            "Expected logits with numbers, got a tensor on the meta device. Try a network on the CPU or a GPU.",
            code="tensor_kind",
        )
    return calibrator if logits.device.type == "cpu" else to_device(calibrator, logits.device)


def to_device(part: Any, device: torch.device | str) -> Any:
    """Return a fitted map, a tuple or a tensor on a device; the same object if it is there already."""
    if isinstance(part, Tensor):
        return part.to(device)
    if type(part) is tuple:
        copied = tuple(to_device(item, device) for item in part)
        return part if all(a is b for a, b in zip(part, copied, strict=True)) else copied
    if not is_dataclass(part) or isinstance(part, type):
        return part
    old_values = {field.name: getattr(part, field.name) for field in fields(part)}
    new_values = {name: to_device(value, device) for name, value in old_values.items()}
    if all(new_values[name] is value for name, value in old_values.items()):
        return part
    copied = copy(part)
    for name, value in new_values.items():
        object.__setattr__(copied, name, value)
    return copied


def restore_argmax(calibrated: Tensor, logits: Tensor) -> Tensor:
    """Raise the class that `logits` predict one rounding step above the others, in rows where it lost the argmax."""
    top = logits.argmax(-1, keepdim=True)
    row_max, new_top = calibrated.max(-1, keepdim=True)
    unchanged = new_top == top
    if not torch.compiler.is_compiling() and bool(unchanged.all()):
        return calibrated
    float_info = torch.finfo(calibrated.dtype)
    raised = row_max + (row_max.abs() * float_info.eps + float_info.tiny)
    return calibrated.scatter(-1, top, torch.where(unchanged, calibrated.gather(-1, top), raised))
