"""The only torch modules here: they carry any loss, or any calibrator, into a network."""

import inspect
from dataclasses import is_dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from calibrant import calibrators, losses
from calibrant.catalog import LOSSES
from calibrant.predictions import Predictions
from calibrant.types import Calibrator, InputError, Loss, StatefulLoss


class Criterion(nn.Module):
    """A loss as torch trains with it: `Criterion("focal(gamma=3)")(logits, labels).backward()`.

    Takes logits (n, k) or (n, k, d1, ...) with labels (n) or (n, d1, ...). `reduction`, `ignore_index` and class
    `weight` mean what they mean in `torch.nn.functional.cross_entropy`: the weighted mean divides by the sum of the
    weights of the examples' classes, and ignored positions count nowhere, in penalties on the whole batch neither.
    With one difference: a class weight multiplies an example's whole loss, label smoothing included, where torch
    weighs every class's term of the smoothed sum by its own weight, so that its minimizer is no longer the smoothed
    target. Logits in float16 or bfloat16 are computed in float32.

    A loss is the text of one here or any callable (n k), (n) -> (n); one with a parameter `weights`, because it sees
    the batch as a whole, is told what each row counts. A loss with state is advanced by `after_epoch`, and its state
    is kept in the `state_dict`.

    >>> criterion = Criterion("focal(gamma=2)", ignore_index=-1)
    >>> criterion(torch.zeros(3, 2), torch.tensor([0, 1, -1]))
    tensor(0.1733)
    """

    weight: Tensor | None

    def __init__(
        self,
        loss: str | Loss,
        *,
        reduction: Literal["mean", "sum", "none"] = "mean",
        weight: Tensor | None = None,
        ignore_index: int = -100,
    ) -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise InputError(f"reduction must be mean, sum or none, got {reduction!r}")
        self.loss: Loss = LOSSES.resolve(loss) if isinstance(loss, str) else loss
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.register_buffer("weight", weight)
        self._couples = "weights" in inspect.signature(self.loss).parameters  # it penalizes the batch as a whole

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss, or one number per position with reduction "none"."""
        if labels.shape != logits.shape[:1] + logits.shape[2:] or labels.is_floating_point():
            raise InputError(
                f"need logits (n, k, ...) and class indices as labels (n, ...), got {tuple(logits.shape)} and "
                f"{tuple(labels.shape)} of {labels.dtype}"
            )
        rows = logits if logits.ndim == 2 else logits.movedim(1, -1).flatten(0, -2)
        rows = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
        flat = labels.flatten()
        used = flat != self.ignore_index
        safe = flat.where(used, 0)
        mass = used.to(rows.dtype) if self.weight is None else self.weight.to(rows)[safe] * used
        values = self.loss(rows, safe, weights=mass) if self._couples else self.loss(rows, safe)  # pyright: ignore
        values = values.where(used, 0) * mass
        if self.reduction == "none":
            return values.view(labels.shape)
        return values.sum() if self.reduction == "sum" else values.sum() / mass.sum()

    def after_epoch(self, epoch: int, val: Predictions | None = None) -> None:
        """Replace a loss with state by the one of the next epoch; leave any other alone. Epochs count from 0."""
        if isinstance(self.loss, StatefulLoss):
            self.loss = self.loss.after_epoch(epoch, val)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, value in losses.state(self.loss).items():
            destination[f"{prefix}loss.{name}"] = torch.as_tensor(value)

    def _load_from_state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, state_dict: dict[str, Any], prefix: str, *rest: Any
    ) -> None:
        known = losses.state(self.loss)
        keys = {f"{prefix}loss.{name}": name for name in known}
        saved = {name: state_dict.pop(key) for key, name in keys.items() if key in state_dict}
        if known and len(saved) == len(known):
            learned = {name: v if isinstance(known[name], Tensor) else v.item() for name, v in saved.items()}
            self.loss = losses.restored(self.loss, learned)
        super()._load_from_state_dict(state_dict, prefix, *rest)
        missing: list[str] = rest[2]
        missing += [key for key, name in keys.items() if name not in saved]


class Calibrated(nn.Module):
    """A network followed by a fitted calibrator; what it learned is kept in buffers and moves with the module.

    Logits (n, k, d1, ...), such as those of segmentation, are calibrated along axis 1. A calibrator of your own is
    any class of the shape `types.Calibrator`; its tensors are buffers too, those of calibrators inside it included.
    """

    def __init__(self, network: nn.Module, calibrator: Calibrator) -> None:
        super().__init__()
        self.network = network
        self.calibrator = calibrator
        self._plan = self._adopted(calibrator, "")

    def _adopted(self, value: Any, name: str) -> "Plan":
        """Keep the tensors inside a value as buffers; return where each belongs."""
        if isinstance(value, Tensor):
            self.register_buffer(name, value)
            return name
        found = {key: self._adopted(part, f"{name}__{key}" if name else key) for key, part in _parts(value).items()}
        return {key: plan for key, plan in found.items() if plan}

    def forward(self, *inputs: Any, **kwargs: Any) -> Tensor:
        """Return calibrated logits of the network's inputs."""
        logits = self.network(*inputs, **kwargs)
        calibrator = _renewed(self.calibrator, self._plan, dict(self.named_buffers(recurse=False)))
        if logits.ndim == 2:
            return calibrator(logits)
        dense = logits.movedim(1, -1)
        return calibrator(dense.flatten(0, -2)).view(dense.shape).movedim(-1, 1)


Plan = str | dict[str, Any]  # the buffer's name, or a plan for each part that holds some


def _parts(value: Any) -> dict[str, Any]:
    if isinstance(value, tuple):
        return {str(i): part for i, part in enumerate(value)}  # pyright: ignore[reportUnknownVariableType]
    return calibrators.learned(value)


def _renewed(value: Any, plan: Plan, buffers: dict[str, Tensor]) -> Any:
    """Return the same value with its tensors taken from the buffers."""
    if isinstance(plan, str):
        return buffers[plan]
    if not plan:
        return value
    parts = _parts(value)
    new = {key: _renewed(parts[key], inside, buffers) for key, inside in plan.items()}
    if isinstance(value, tuple):
        return tuple((parts | new).values())
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **new)
    made = object.__new__(type(value))
    for key, part in (parts | new).items():
        object.__setattr__(made, key, part)
    return made
