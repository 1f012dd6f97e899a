"""Capabilities of calibrators, and the checks on every call of a fitted one.

Learned tensors stay on the CPU and are copied to the device of the logits.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._core.arrays import to_numpy
from calibrant._core.types import InputError

Call = Callable[[Any, Tensor], Tensor]
NETWORK_EXPORTS = ("torch.export", "ONNX")


def certified_classes(calibrator: Any) -> int:
    """Return the number of classes in a calibrator's certificate, 0 if unknown."""
    return 0 if calibrator.certificate is None else calibrator.certificate.classes


@dataclass(frozen=True)
class Capabilities:
    """The promises of a calibrator class, which has them as its attribute `capabilities`.

    An attribute that depends on the fit is a function of the fitted calibrator.
    """

    preserves_argmax: bool | Callable[[Any], bool] = False  # never changes a predicted class
    num_classes: int | Callable[[Any], int] = certified_classes  # number of classes that it accepts, 0 for any
    repairs_overconfidence: bool = True  # whether its fit lowers the Brier score of overconfident predictions
    takes_groups: bool = False  # maps each group differently
    # Whether permuted logits give permuted results, so that the fit learns no frequencies of classes, which the labels
    # of a single class would make 0 and 1. For two classes, p(a beats b) = 1 - p(b beats a)
    treats_classes_alike: bool | Callable[[Any], bool] = False
    is_differentiable: bool = True  # False for step functions
    exports: tuple[str, ...] = NETWORK_EXPORTS  # beside numpy, which takes every calibrator that has a map there


def capabilities(calibrator: Any) -> Capabilities:
    """Return a calibrator's capabilities, or the defaults for any number of classes if its class declares none."""
    return getattr(calibrator, "capabilities", Capabilities(num_classes=0))


def num_classes(calibrator: Any) -> int:
    """Return the number of classes that a fitted calibrator accepts, 0 for any number."""
    promised = capabilities(calibrator).num_classes
    return promised if isinstance(promised, int) else promised(calibrator)


def preserves_argmax(calibrator: Any) -> bool:
    """Return whether a fitted calibrator, as its class promises, never changes a predicted class."""
    promised = capabilities(calibrator).preserves_argmax
    return promised if isinstance(promised, bool) else promised(calibrator)


def treats_classes_alike(calibrator: Any) -> bool:
    """Return whether a fitted calibrator, as its class promises, maps permuted logits to permuted results."""
    promised = capabilities(calibrator).treats_classes_alike
    return promised if isinstance(promised, bool) else promised(calibrator)


def calibrator_call(call: Call) -> Call:
    """Decorate the `__call__` of a calibrator.

    Checks the logits, computes on their device, returns their precision, and undoes changes of the argmax by rounding
    if the calibrator promises to preserve it.
    """

    @takes_arrays
    @wraps(call)
    def checked(self: Any, logits: Tensor) -> Tensor:
        calibrated = call(prepare(self, logits), logits).to(logits.dtype)
        return restore_argmax(calibrated, logits) if preserves_argmax(self) else calibrated

    return checked


def takes_arrays(call: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method of tensors of logits, so that arrays come out where an array goes in."""

    @wraps(call)
    def on_tensors(self: Any, logits: Any, *columns: Any) -> Any:
        if not isinstance(logits, np.ndarray):
            return call(self, logits, *columns)
        result = call(self, torch.as_tensor(logits), *columns)
        return tuple(map(to_numpy, result)) if isinstance(result, tuple) else to_numpy(result)

    return on_tensors


def prepare(calibrator: Any, logits: Any) -> Any:
    """Return the calibrator on the device of the logits, after checking that it accepts them.

    Raises:
        InputError: "num_classes" for another number of classes, "tensor_kind" for meta tensors, integers and arrays,
            "logits_shape" for anything but rows of logits.
    """
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        kind = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(
            f"Expected a floating point tensor of logits, got {kind}. Try torch.tensor(logits, dtype=torch.float64).",
            code="tensor_kind",
        )
    if logits.ndim != 2:
        raise InputError(
            f"Expected logits (n, k), got {tuple(logits.shape)}. Try logits[None] for one row, and "
            "nn.CalibratedNetwork for pixels and tokens.",
            code="logits_shape",
        )
    k, logit_classes = num_classes(calibrator), logits.shape[-1]
    if k not in (0, logit_classes):  # 0 accepts any number
        raise InputError(
            f"Expected logits of {k} classes, as {type(calibrator).__name__} was fitted on, got {logit_classes}. "
            "Try fitting it on predictions of these classes.",
            code="num_classes",
        )
    if logits.device.type == "meta":
        raise InputError(
            "Expected logits with values, got a tensor on the meta device. Try a network on the CPU or a GPU.",
            code="tensor_kind",
        )
    return calibrator if logits.device.type == "cpu" else to_device(calibrator, logits.device)


def to_device(value: Any, device: torch.device | str) -> Any:
    """Copy the tensors in a calibrator or tuple to a device. Return the value itself if there is nothing to copy."""
    if isinstance(value, Tensor):
        return value.to(device)
    if type(value) is tuple:  # no NamedTuple, whose class would be lost
        copied = tuple(to_device(item, device) for item in value)
        return value if all(old is new for old, new in zip(value, copied, strict=True)) else copied
    if not is_dataclass(value) or isinstance(value, type):
        return value
    old_fields = {field.name: getattr(value, field.name) for field in fields(value)}
    new_fields = {name: to_device(part, device) for name, part in old_fields.items()}
    if all(new_fields[name] is part for name, part in old_fields.items()):
        return value
    copied = copy(value)
    for name, part in new_fields.items():
        object.__setattr__(copied, name, part)  # the dataclass is frozen; its constructor may check or compute again
    return copied


def restore_argmax(calibrated: Tensor, logits: Tensor) -> Tensor:
    """Raise the class that `logits` predict one rounding step above the others, in rows where it lost the argmax."""
    top = logits.argmax(-1, keepdim=True)
    row_max, new_top = calibrated.max(-1, keepdim=True)
    unchanged = new_top == top
    if not torch.compiler.is_compiling() and bool(unchanged.all()):  # a compiled graph cannot branch on values
        return calibrated
    float_info = torch.finfo(calibrated.dtype)
    raised = row_max + (row_max.abs() * float_info.eps + float_info.tiny)  # tiny, in case the maximum is 0
    return calibrated.scatter(-1, top, torch.where(unchanged, calibrated.gather(-1, top), raised))
