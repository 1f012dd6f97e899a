"""A network together with its calibrator, as one module."""

from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from calibrant import calibrators
from calibrant._core.types import Calibrator, InputError
from calibrant.nn._criterion import refuse_one_class
from calibrant.predictions import check_is_calibrator


class CalibratedNetwork(nn.Module):
    """A network followed by a fitted calibrator, whose learned arrays are buffers of the module.

    Logits (n, k, d1, ...), such as those of segmentation, are calibrated along axis 1. `half`, `double` and
    `.to(dtype)` change the network alone: the calibrator keeps its precision, and returns that of the logits.

    Args:
        network: The network, which returns a tensor of logits.
        calibrator: Any fitted `types.Calibrator`, which may contain other calibrators.
        binary: Whether the network returns one logit s per event, in any shape. The calibrator then has two classes,
            as fitted on `Predictions.from_binary_logits`, and s becomes the difference of the logits that it returns
            for (0, s): P(y = 1) stays 1 / (1 + exp(-s)).

    >>> warm = calibrators.Temperature(2.0)
    >>> CalibratedNetwork(torch.nn.Identity(), warm, binary=True)(torch.tensor([[3.0], [-1.0]]))
    tensor([[ 1.5000],
            [-0.5000]])
    """

    def __init__(self, network: nn.Module, calibrator: Calibrator, *, binary: bool = False) -> None:
        super().__init__()
        check_is_calibrator(calibrator)
        self.network = network
        self.calibrator = calibrator
        self.binary = binary
        self._buffer_plan = self._register_tensors(calibrator, "")

    def _register_tensors(self, value: Any, name: str) -> "BufferPlan":
        """Register the tensors and learned arrays inside a value as buffers, and return the plan to put them back.

        The plan of an array is the name of its buffer. Any other value has the plans of those parts that hold arrays.
        """
        if isinstance(value, Tensor):
            self.register_buffer(name, value)
            return name
        arrays = {key: torch.tensor(array) for key, array in calibrators.learned_arrays(value).items()}
        plans = {
            key: self._register_tensors(part, f"{name}__{key}" if name else key)
            for key, part in (_named_parts(value) | arrays).items()
        }
        return {key: plan for key, plan in plans.items() if plan}

    def _apply(self, fn: Any, recurse: bool = True) -> "CalibratedNetwork":
        """Move all tensors as torch does, but keep the dtypes of the calibrator's tensors."""
        original = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, buffer in original.items():
            moved = self._buffers[name]
            if buffer is not None and moved is not None and moved.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(moved.device)
        return self

    def forward(self, *inputs: Any, **kwargs: Any) -> Tensor:
        """Return the calibrated logits of the network."""
        logits = self.network(*inputs, **kwargs)
        _check_output(logits, self.binary)
        # .to() and load_state_dict() change the buffers, not the arrays that the calibrator holds
        buffers = dict(self.named_buffers(recurse=False, remove_duplicate=False))  # one tensor may have several names
        calibrator = _with_buffers(self.calibrator, self._buffer_plan, buffers)
        if self.binary:
            flat = logits.flatten()
            pair = calibrator(torch.stack([torch.zeros_like(flat), flat], -1))
            return (pair[:, 1] - pair[:, 0]).view(logits.shape)
        if logits.ndim == 2:
            return calibrator(logits)
        dense = logits.movedim(1, -1)  # (n, d1, ..., k)
        return calibrator(dense.flatten(0, -2)).view(dense.shape).movedim(-1, 1)


def _check_output(logits: Any, binary: bool) -> None:
    """Raise `InputError` unless a network returned logits: of at least two classes, or with `binary` of events."""
    if not isinstance(logits, Tensor):
        raise InputError(
            f"Expected a tensor of logits from the network, got {type(logits).__name__}. Try a module that returns its "
            "logits.",
            code="no_logits",
        )
    if not binary and logits.ndim < 2:
        raise InputError(
            f"Expected logits (n, k, ...) from the network, got {tuple(logits.shape)}. Try binary=True for one logit "
            "per event.",
            code="shape",
        )
    if not binary:
        refuse_one_class(logits)


BufferPlan = str | dict[str, Any]  # name of a buffer, or the plan of each part that contains tensors


def _named_parts(value: Any) -> dict[str, Any]:
    """Return the items of a tuple by index, or the fields that a calibrator has learned by name."""
    if isinstance(value, tuple):
        return {str(i): part for i, part in enumerate(value)}  # pyright: ignore[reportUnknownVariableType]
    return calibrators.learned_fields(value)


def _with_buffers(value: Any, plan: BufferPlan, buffers: dict[str, Tensor]) -> Any:
    """Return a value with its tensors replaced by buffers, unchanged if it has none."""
    if isinstance(plan, str):
        return buffers[plan]
    if not plan:
        return value
    parts = _named_parts(value)
    new_parts = {key: _with_buffers(parts[key], part_plan, buffers) for key, part_plan in plan.items()}
    if isinstance(value, tuple):
        return tuple((parts | new_parts).values())
    rebuilt = copy(value)  # its constructor may have other parameters, or convert them
    for key, part in new_parts.items():
        object.__setattr__(rebuilt, key, part)
    return rebuilt
