"""The only torch modules here: they carry any loss, or any calibrator, into a network."""

from dataclasses import fields, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from calibrant import catalog, losses
from calibrant._types import Calibrator, InputError, Loss


class Criterion(nn.Module):
    """A loss as torch trains with it: `Criterion("focal(gamma=3)")(logits, labels).backward()`.

    Takes logits (n, k) or (n, k, d1, ...) with labels (n) or (n, d1, ...). `reduction`, `ignore_index` and class
    `weight` mean what they mean in `torch.nn.functional.cross_entropy`: the weighted mean divides by the sum of the
    weights of the examples' classes, and ignored positions count nowhere.
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
        self.loss: Loss = catalog.resolve(loss, losses) if isinstance(loss, str) else loss
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.register_buffer("weight", weight)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss, or one number per position with reduction "none"."""
        rows = logits if logits.ndim == 2 else logits.movedim(1, -1).flatten(0, -2)
        flat = labels.flatten()
        used = flat != self.ignore_index
        safe = flat.where(used, 0)
        if rows.dtype in (torch.float16, torch.bfloat16):
            rows = rows.float()
        mass = used.to(rows.dtype) if self.weight is None else self.weight.to(rows)[safe] * used
        values = self.loss(rows, safe) * mass
        if self.reduction == "none":
            return values.view(labels.shape)
        return values.sum() if self.reduction == "sum" else values.sum() / mass.sum()


class Calibrated(nn.Module):
    """A network followed by a fitted calibrator; what it learned is kept in buffers and moves with the module."""

    def __init__(self, network: nn.Module, calibrator: Calibrator) -> None:
        super().__init__()
        self.network = network
        self.calibrator = calibrator
        self._names = [
            f.name
            for f in fields(calibrator)  # pyright: ignore[reportArgumentType]
            if isinstance(getattr(calibrator, f.name), Tensor)
        ]
        for name in self._names:
            self.register_buffer(name, getattr(calibrator, name))

    def forward(self, *inputs: Any, **kwargs: Any) -> Tensor:
        """Return calibrated logits of the network's inputs."""
        learned = {name: getattr(self, name) for name in self._names}
        return replace(self.calibrator, **learned)(self.network(*inputs, **kwargs))  # pyright: ignore
