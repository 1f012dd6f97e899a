"""Lightning: a callback that logs calibration metrics of every validation, and advances losses with state."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from calibrant import losses
from calibrant._validation.arrays import to_tensor
from calibrant.collecting import join_predictions, predictions_of_batches
from calibrant.integrations._common import DEFAULT_METRICS, named_metrics
from calibrant.nn import Criterion
from calibrant.predictions import Predictions
from calibrant.types import InputError


class CalibrationCallback(Callback):
    """Log metrics of all validation predictions, and pass the predictions to every `Criterion` of the module.

    The module keeps its loss as a submodule, `self.criterion = Criterion("AdaFocal")`, so that checkpoints contain its
    state. Its `validation_step` returns `{"logits": ..., "labels": ...}`. Metrics and losses use all predictions of
    the first validation loader, from all processes. A loss with state is advanced once per epoch, when training on it
    ends, by the last validation within it.

    Args:
        metrics: Names as in a study file. "ece" is logged as "val_ece" and can be monitored.
        prefix: Prefix of the logged names.
        binary: Every logit is an event of its own, as for `Criterion`: shapes (n), (n, 1), (n, 1, h, w), or (n, m) for
            m labels per example, with labels 0 or 1.
        logits: Accept `binary` scores that all lie in [0, 1]. Otherwise they are refused as the output of a sigmoid.
        ignore_index: Label of positions to leave out.
    """

    def __init__(
        self,
        metrics: Sequence[str] = DEFAULT_METRICS,
        *,
        prefix: str = "val_",
        binary: bool = False,
        logits: bool = False,
        ignore_index: int = -100,
    ) -> None:
        self.metrics = named_metrics(metrics, prefix)
        self.make_predictions = partial(predictions_of_batches, binary=binary, logits=logits, ignore_index=ignore_index)
        self._batches: list[tuple[Tensor, Tensor]] = []
        self._val: Predictions | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the number of epochs of losses that follow a schedule."""
        if trainer.max_epochs is not None and trainer.max_epochs > 0:
            for criterion in _criteria(pl_module):
                criterion.loss = losses.for_epochs(criterion.loss, trainer.max_epochs)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drop the predictions of the previous validation."""
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
        """Collect the logits and labels of a batch."""
        if dataloader_idx:  # the first loader alone counts
            return
        if not (isinstance(outputs, Mapping) and {"logits", "labels"} <= outputs.keys()):
            raise InputError(
                f"Expected validation_step to return {{'logits': ..., 'labels': ...}}, got {type(outputs).__name__}.",
                code="step_output",
            )
        logits, labels = (to_tensor(outputs[name], name).cpu() for name in ("logits", "labels"))
        self._batches.append((logits.float(), labels))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the metrics of all predictions."""
        if trainer.sanity_checking:  # a few batches before the training
            return
        batches = self._batches
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            batches_by_process: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(batches_by_process, batches)  # fills the list
            batches = list(chain(*batches_by_process))
        if not batches:
            return
        self._val = join_predictions(self.make_predictions(batches))
        pl_module.log_dict({name: metric(self._val).float() for name, metric in self.metrics.items()})

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Advance every loss with state."""
        for criterion in _criteria(pl_module):
            criterion.after_epoch(trainer.current_epoch, self._val)
        self._val = None


def _criteria(module: LightningModule) -> list[Criterion]:
    """Return the losses among the submodules of a module."""
    return [child for child in module.modules() if isinstance(child, Criterion)]
