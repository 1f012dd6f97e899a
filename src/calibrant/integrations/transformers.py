"""Transformers: any loss for the `Trainer`, calibration metrics of every evaluation, and losses with state."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import EvalPrediction, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from calibrant import losses
from calibrant.catalog import METRICS
from calibrant.nn import Criterion
from calibrant.predictions import Predictions
from calibrant.types import Loss

__all__ = ["Calibration"]

KEY = "calibrant"  # of the loss's state in trainer_state.json


class Calibration(TrainerCallback):
    """A loss, the metrics that judge it and the callback that advances it, for texts, tokens and pixels.

        calibration = Calibration("AdaFocal")
        trainer = Trainer(
            ...,
            compute_loss_func=calibration.compute_loss,
            compute_metrics=calibration.compute_metrics,
            callbacks=[calibration],
        )

    `weight`, `binary`, `alpha` and `ignore_index` are those of `Criterion`. With `binary`, every logit is an event of
    its own, as with `num_labels=1`, or with several labels per text; what is judged is how probable the events were
    said to be. Such scores that all lie in [0, 1] are refused as probabilities, unless `logits` is True. Metrics are
    names as in a study file. A loss with state is advanced once an epoch by the evaluation at its end
    (`eval_strategy="epoch"`, or the last one within it), and its state is kept in the `trainer_state.json` of
    checkpoints, from where `train(resume_from_checkpoint=...)` takes it up.
    """

    def __init__(
        self,
        loss: str | Loss,
        metrics: Sequence[str] = ("accuracy", "nll", "ece"),
        *,
        weight: Tensor | None = None,
        binary: bool = False,
        alpha: float | None = None,
        logits: bool = False,
        ignore_index: int = -100,
    ) -> None:
        self.criterion = Criterion(loss, weight=weight, binary=binary, alpha=alpha, ignore_index=ignore_index)
        self.logits = logits
        self.metrics = {str(method): method for method in map(METRICS.method, metrics)}
        self._val: Predictions | None = None
        self._waiting = False  # for the evaluation at the end of an epoch

    def compute_loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Return the mean loss, or, told the number of items of all accumulated batches, the sum divided by it.

        The Trainer counts as items all labels but -100, of which those of another `ignore_index` are taken off here, in
        the proportion of this batch.
        """
        logits = self._by_class(outputs["logits"] if "logits" in outputs else outputs[0], labels.ndim)
        criterion = self.criterion.to(logits.device)
        criterion.reduction = "mean" if num_items_in_batch is None else "sum"
        loss = criterion(logits, labels)
        if num_items_in_batch is None:
            return loss
        used, counted = ((labels != left_out).sum().clamp_min(1) for left_out in (criterion.ignore_index, -100))
        return loss / num_items_in_batch * (counted / used)

    def compute_metrics(self, evaluation: EvalPrediction) -> dict[str, float]:
        """Return the metrics by name, and keep the predictions for the loss."""
        logits: Any = evaluation.predictions
        logits, labels = torch.as_tensor(logits[0] if isinstance(logits, tuple) else logits), evaluation.label_ids
        binary = self.criterion.binary
        enter = partial(Predictions.from_binary_logits, logits=self.logits) if binary else Predictions
        left_out = self.criterion.ignore_index
        self._val = enter(self._by_class(logits, np.ndim(labels)), labels, ignore_index=left_out)
        return {name: float(metric(self._val)) for name, metric in self.metrics.items()}

    def _by_class(self, logits: Tensor, ndim: int) -> Tensor:
        """Classes along axis 1, where tokens have them last; one logit per label as the labels are."""
        if self.criterion.binary:
            return logits.squeeze(-1) if logits.ndim > ndim else logits
        return logits.movedim(-1, 1) if logits.ndim == 3 else logits

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Tell the loss how many epochs there will be, and take up its state where a checkpoint has one."""
        self._val, self._waiting = None, False
        loss = losses.for_epochs(self.criterion.loss, state.num_train_epochs)
        saved: dict[str, Any] = _states(state).get(KEY, {})
        known = losses.state(loss)
        learned = {name: torch.tensor(v).to(known[name]) if isinstance(v, list) else v for name, v in saved.items()}
        self.criterion.loss = losses.restored(loss, learned) if learned else loss

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Advance the loss, or wait for the evaluation that comes next."""
        self._waiting = args.eval_strategy == "epoch"
        if not self._waiting:
            self._advance(state)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Advance the loss after the evaluation at the end of an epoch, and after no other."""
        if self._waiting:
            self._waiting = False
            self._advance(state)

    def _advance(self, state: TrainerState) -> None:
        self.criterion.after_epoch(round(state.epoch or 1) - 1, self._val)
        self._val = None
        learned = losses.state(self.criterion.loss)
        _states(state)[KEY] = {name: v.tolist() if isinstance(v, Tensor) else v for name, v in learned.items()}


def _states(state: TrainerState) -> dict[str, Any]:
    return state.stateful_callbacks  # pyright: ignore[reportReturnType]
