"""Lightning: a callback that logs calibration metrics of every validation, and advances losses with state."""

import math
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DistributedSampler, IterableDataset

from calibrant import losses
from calibrant._core.types import InputError
from calibrant.integrations._common import (
    DEFAULT_METRICS,
    advance,
    evaluate_metrics,
    have_new_ids,
    named_metrics,
    num_process_examples,
    num_processes,
    warn_padding_counts,
)
from calibrant.nn import Criterion
from calibrant.nn.collecting import join_predictions, predictions_of_batches, to_tensor
from calibrant.predictions import Predictions


class CalibrationCallback(Callback):
    """Log metrics of all validation predictions, and pass the predictions to every `Criterion` of the module.

    The module keeps its loss as a submodule, `self.criterion = Criterion("AdaFocal")`, so that checkpoints contain its
    state. Its `validation_step` returns `{"logits": ..., "labels": ...}`. Metrics and losses use all predictions of
    the first validation loader, from all processes. Copies of examples that a `DistributedSampler` adds, to give all
    processes equally many, are left out; with another sampler, `"ids"` of the examples in the same dictionary serve for
    it, and without them a warning says that copies may be counted. A loss with state is
    advanced once per epoch, when training on it ends, by the last validation within it. AdaFocal stays as it is after
    an epoch without validation.

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
        self._seen_ids: set[Any] = set()
        self._val: Predictions | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the number of epochs of losses that follow a schedule.

        Raises:
            InputError: If a loss needs the number of epochs, and the Trainer stops after a time or never, or if a loss
                needs validation, and there is none. With `limit_val_batches=0`, a warning says so instead.
        """
        epochs = _num_epochs(trainer)
        for criterion in _criteria(pl_module):
            criterion.is_advanced = True  # by this callback
            if epochs is not None:
                criterion.loss = losses.for_epochs(criterion.loss, epochs)
            elif losses.for_epochs(criterion.loss, 1) is not criterion.loss:
                raise InputError(
                    f"Expected max_epochs or max_steps for {criterion}, got neither. Try Scheduled(epochs=...).",
                    code="num_epochs",
                )
            if losses.needs_validation(criterion.loss) and not sum(trainer.num_val_batches):
                if trainer.limit_val_batches != 0:
                    raise InputError(
                        f"Expected validation data for {criterion}, got none. Try fit(module, train, val).",
                        code="no_validation",
                    )
                warnings.warn(f"{criterion} stays as in its first epoch without validation.", stacklevel=2)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drop the predictions of the previous validation."""
        self._batches, self._seen_ids = [], set()

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
        if "ids" in outputs:
            are_new = have_new_ids(outputs["ids"], len(labels), self._seen_ids)
            logits, labels = logits[are_new], labels[are_new]
        self._batches.append((logits.float(), labels))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the metrics of all predictions."""
        if trainer.sanity_checking:  # a few batches before the training
            return
        batches = _gather_batches(self._batches, trainer, has_copies=not self._seen_ids)
        if not batches:
            return
        values, self._val = evaluate_metrics(
            self.metrics,
            lambda: join_predictions(self.make_predictions(batches)),
            [logits for logits, _ in batches],
        )
        pl_module.log_dict(values)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Advance every loss with state."""
        for criterion in _criteria(pl_module):
            advance(criterion, trainer.current_epoch, self._val)
        self._val = None


def _num_epochs(trainer: Trainer) -> int | None:
    """Return the number of epochs of a training, or None if it ends after a time or never."""
    limits = [float(trainer.max_epochs)] if trainer.max_epochs is not None and trainer.max_epochs > 0 else []
    if trainer.max_steps > 0 and math.isfinite(trainer.num_training_batches):
        steps = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        limits.append(math.ceil(trainer.max_steps / steps))
    return int(min(limits)) if limits else None


def _gather_batches(
    batches: list[tuple[Tensor, Tensor]], trainer: Trainer, *, has_copies: bool
) -> list[tuple[Tensor, Tensor]]:
    """Return the batches of all processes, without the copies that pad the data of a `DistributedSampler`."""
    if num_processes() == 1:
        return batches
    loader: Any = trainer.val_dataloaders
    while isinstance(loader, Mapping | list | tuple):
        loader = next(iter(loader.values() if isinstance(loader, Mapping) else loader))  # pyright: ignore
    sampler = getattr(loader, "sampler", None)
    if has_copies and isinstance(sampler, DistributedSampler):
        num_examples: int = len(sampler.dataset)  # pyright: ignore
        batches = _first_examples(batches, num_process_examples(num_examples, sampler.rank, sampler.num_replicas))
    elif has_copies and not isinstance(getattr(loader, "dataset", None), IterableDataset):
        warn_padding_counts('use_distributed_sampler=True, a DistributedSampler, or "ids" of the validation_step')
    batches_by_process: list[Any] = [None] * num_processes()
    dist.all_gather_object(batches_by_process, batches)  # fills the list
    return [batch for part in batches_by_process for batch in part]


def _first_examples(batches: list[tuple[Tensor, Tensor]], num_examples: int) -> list[tuple[Tensor, Tensor]]:
    """Return the first examples of a list of batches."""
    first_batches: list[tuple[Tensor, Tensor]] = []
    for logits, labels in batches:
        if num_examples > 0:
            first_batches.append((logits[:num_examples], labels[:num_examples]))
        num_examples -= len(labels)
    return first_batches


def _criteria(module: LightningModule) -> list[Criterion]:
    """Return the losses among the submodules of a module."""
    return [child for child in module.modules() if isinstance(child, Criterion)]
