"""Transformers: any loss for the `Trainer`, calibration metrics of every evaluation, and losses with state."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import EvalPrediction, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from calibrant import losses
from calibrant.nn import Criterion
from calibrant.predictions import Predictions
from calibrant.registry import METRICS
from calibrant.types import Loss

__all__ = ["Calibration"]

STATE_KEY = "calibrant"  # of the loss's state in trainer_state.json


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
        self._awaits_evaluation = False  # for the evaluation at the end of an epoch

    def compute_loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Return the mean loss, or, told the number of items of all accumulated batches, the sum divided by it.

        The Trainer counts as items all labels but -100, of which those of another `ignore_index` are taken off here, in
        the proportion of this batch.
        """
        logits = self._move_classes_to_axis_1(outputs["logits"] if "logits" in outputs else outputs[0], labels.ndim)
        criterion = self.criterion.to(logits.device)
        criterion.reduction = "mean" if num_items_in_batch is None else "sum"
        loss = criterion(logits, labels)
        if num_items_in_batch is None:
            return loss
        num_used, num_counted = (
            (labels != ignored_label).sum().clamp_min(1) for ignored_label in (criterion.ignore_index, -100)
        )
        return loss / num_items_in_batch * (num_counted / num_used)

    def compute_metrics(self, evaluation: EvalPrediction) -> dict[str, float]:
        """Return the metrics by name, and keep the predictions for the loss."""
        logits: Any = evaluation.predictions
        logits, labels = torch.as_tensor(logits[0] if isinstance(logits, tuple) else logits), evaluation.label_ids
        binary = self.criterion.binary
        make_predictions = partial(Predictions.from_binary_logits, logits=self.logits) if binary else Predictions
        ignored_label = self.criterion.ignore_index
        self._val = make_predictions(
            self._move_classes_to_axis_1(logits, np.ndim(labels)), labels, ignore_index=ignored_label
        )
        return {name: float(metric(self._val)) for name, metric in self.metrics.items()}

    def _move_classes_to_axis_1(self, logits: Tensor, ndim: int) -> Tensor:
        """Classes along axis 1, where tokens have them last; one logit per label as the labels are."""
        if self.criterion.binary:
            return logits.squeeze(-1) if logits.ndim > ndim else logits
        return logits.movedim(-1, 1) if logits.ndim == 3 else logits

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Tell the loss how many epochs there will be, and take up its state where a checkpoint has one."""
        self._val, self._awaits_evaluation = None, False
        loss = losses.for_epochs(self.criterion.loss, state.num_train_epochs)
        saved: dict[str, Any] = _callback_states(state).get(STATE_KEY, {})
        initial_state = losses.state(loss)
        restored_state = {
            name: torch.tensor(v).to(initial_state[name]) if isinstance(v, list) else v for name, v in saved.items()
        }
        self.criterion.loss = losses.restore_state(loss, restored_state) if restored_state else loss

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Advance the loss, or wait for the evaluation that comes next."""
        self._awaits_evaluation = args.eval_strategy == "epoch"
        if not self._awaits_evaluation:
            self._advance(state)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Advance the loss after the evaluation at the end of an epoch, and after no other."""
        if self._awaits_evaluation:
            self._awaits_evaluation = False
            self._advance(state)

    def _advance(self, state: TrainerState) -> None:
        self.criterion.after_epoch(round(state.epoch or 1) - 1, self._val)
        self._val = None
        loss_state = losses.state(self.criterion.loss)
        _callback_states(state)[STATE_KEY] = {
            name: v.tolist() if isinstance(v, Tensor) else v for name, v in loss_state.items()
        }


def _callback_states(state: TrainerState) -> dict[str, Any]:
    return state.stateful_callbacks  # pyright: ignore[reportReturnType]
