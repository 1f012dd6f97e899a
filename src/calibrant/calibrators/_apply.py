"""What fitted maps promise when they are applied: for how many classes, and that predictions stay.

What was learned is kept on the processor, and goes where the logits are.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from calibrant.types import InputError

Call = Callable[[Any, Tensor], Any]


def to_device(part: Any, device: torch.device | str) -> Any:
    """A fitted map, or a tuple of some, with all that it learned on a device; itself where it is there already."""
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


def _to_device_of(part: Any, logits: Tensor) -> Any:
    """Return the map where the logits are. Raises `InputError` for logits on the meta device, which have no numbers."""
    if logits.device.type == "meta":
        raise InputError(
            "expected logits with numbers, got a tensor on the meta device. Try those of a network on the CPU or a GPU",
            code="tensor_kind",
        )
    return part if logits.device.type == "cpu" else to_device(part, logits.device)


def check_num_classes(class_count: Callable[[Any], int]) -> Callable[[Call], Call]:
    """Make a map refuse logits of other classes than the `known(map)` that it was fitted on, where that is not 0."""

    def declare(call: Call) -> Call:
        @wraps(call)
        def checked(self: Any, logits: Tensor) -> Any:
            k, got = class_count(self), logits.shape[-1]
            if k not in (0, got):
                name = type(self).__name__
                hint = "fit one on predictions of these classes"
                raise InputError(f"{name} was fitted on {k} classes, got logits of {got}; {hint}", code="num_classes")
            return call(_to_device_of(self, logits), logits)

        checked.classes = class_count  # pyright: ignore[reportAttributeAccessIssue]
        return checked

    return declare


def certified_classes(calibrator: Any) -> int:
    """Return the number of classes that a calibrator's certificate names, 0 if unknown."""
    return 0 if calibrator.certificate is None else calibrator.certificate.classes


def num_classes(calibrator: Any) -> int:
    """How many classes a fitted map is for, 0 if it goes to any number."""
    return getattr(type(calibrator).__call__, "classes", lambda _: 0)(calibrator)


def preserves_argmax_if(keeps: Callable[[Any], bool]) -> Callable[[Call], Call]:
    """Let no rounding change a prediction of a map that keeps the order of the classes in exact arithmetic."""

    def declare(call: Call) -> Call:
        @wraps(call)
        def kept(self: Any, logits: Tensor) -> Tensor:
            calibrated = call(_to_device_of(self, logits), logits).to(logits.dtype)
            return restore_argmax(calibrated, logits) if keeps(self) else calibrated

        kept.keeps_predictions = keeps  # pyright: ignore[reportAttributeAccessIssue]
        return kept

    return declare


preserves_argmax = preserves_argmax_if(lambda _: True)


def keeps_predictions(calibrator: Any) -> bool:
    """Whether a fitted map promises to keep every prediction."""
    return getattr(type(calibrator).__call__, "keeps_predictions", lambda _: False)(calibrator)


def restore_argmax(calibrated: Tensor, logits: Tensor) -> Tensor:
    """Put the class that logits predict one rounding step above the others, in rows where it is no more the first."""
    top = logits.argmax(-1, keepdim=True)
    row_max, new_top = calibrated.max(-1, keepdim=True)
    unchanged = new_top == top
    if not torch.compiler.is_compiling() and bool(unchanged.all()):
        return calibrated
    float_info = torch.finfo(calibrated.dtype)
    raised = row_max + (row_max.abs() * float_info.eps + float_info.tiny)
    return calibrated.scatter(-1, top, torch.where(unchanged, calibrated.gather(-1, top), raised))
