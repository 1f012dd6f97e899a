"""Lightning: a callback that logs calibration metrics of every validation, and advances losses with state."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from calibrant import losses
from calibrant.nn import Criterion
from calibrant.predictions import Predictions
from calibrant.registry import METRICS
from calibrant.types import InputError

__all__ = ["Calibration"]


class Calibration(Callback):
    """Watch validation: log metrics of all its predictions, and hand them to every `Criterion` of the module.

    The module keeps its loss as a submodule, `self.criterion = Criterion("AdaFocal")`, so that checkpoints hold its
    state, and returns `{"logits": ..., "labels": ...}` from `validation_step`. Metrics are names as in a study file;
    "ece" is logged as "val_ece" and can be monitored. They and the losses see all predictions of the first
    validation loader at once, of all processes together; labels of `ignore_index` are left out.

    `binary` says, as it does to `Criterion`, that every logit is an event of its own: (n), (n, 1), (n, 1, h, w), or
    (n, m) for m labels per example, with labels 0 or 1. What is judged is then how probable the events were said to be.
    Such scores that all lie in [0, 1] are refused, as those of a module that ends in a sigmoid, unless `logits` says
    that they are logits.

    A loss with state is advanced once an epoch, when training on it ends, by the last validation within it.
    """

    def __init__(
        self,
        metrics: Sequence[str] = ("accuracy", "nll", "ece"),
        *,
        prefix: str = "val_",
        binary: bool = False,
        logits: bool = False,
        ignore_index: int = -100,
    ) -> None:
        self.metrics = {f"{prefix}{method}": method for method in map(METRICS.method, metrics)}
        make_predictions = partial(Predictions.from_binary_logits, logits=logits) if binary else Predictions
        self.make_predictions = partial(make_predictions, ignore_index=ignore_index)
        self._batches: list[tuple[Tensor, Tensor]] = []
        self._val: Predictions | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell losses that follow a schedule how many epochs there will be."""
        if trainer.max_epochs is not None and trainer.max_epochs > 0:
            for criterion in _criteria(pl_module):
                criterion.loss = losses.for_epochs(criterion.loss, trainer.max_epochs)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget the predictions of the validation before."""
        self._batches = []

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the logits and labels of a batch."""
        if dataloader_idx:
            return
        if not (isinstance(outputs, Mapping) and {"logits", "labels"} <= outputs.keys()):
            raise InputError(
                "the Calibration callback needs validation_step to return {'logits': ..., 'labels': ...}, "
                f"got {type(outputs).__name__}",
                code="step_output",
            )
        self._batches.append((outputs["logits"].detach().float().cpu(), outputs["labels"].cpu()))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the metrics of all predictions."""
        if trainer.sanity_checking or not self._batches:
            return
        parts = self._batches
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            gathered: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(gathered, parts)
            parts = [part for rank in gathered for part in rank]
        logits, labels = zip(*parts, strict=True)
        self._val = self.make_predictions(torch.cat(logits), torch.cat(labels))
        pl_module.log_dict({name: metric(self._val).float() for name, metric in self.metrics.items()})

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Advance every loss with state."""
        for criterion in _criteria(pl_module):
            criterion.after_epoch(trainer.current_epoch, self._val)
        self._val = None


def _criteria(module: LightningModule) -> list[Criterion]:
    return [child for child in module.modules() if isinstance(child, Criterion)]
