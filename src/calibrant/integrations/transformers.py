"""Transformers: any loss for the `Trainer`, with state or in chunks, and calibration metrics of every evaluation."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import EvalPrediction, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from calibrant import losses
from calibrant._validation.arrays import to_tensor
from calibrant.integrations._common import DEFAULT_METRICS, named_metrics, predictions_from_scores
from calibrant.nn import Criterion, linear_loss
from calibrant.predictions import Predictions
from calibrant.types import InputError, Loss

__all__ = ["CalibrationTrainerCallback", "LinearLossTrainer"]

STATE_KEY = "calibrant"  # of the loss's state in trainer_state.json


class CalibrationTrainerCallback(TrainerCallback):
    """A loss, metrics and the callback that advances the loss, for texts, tokens and pixels.

        calibration = CalibrationTrainerCallback("AdaFocal")
        trainer = Trainer(
            ...,
            compute_loss_func=calibration.compute_loss,
            compute_metrics=calibration.compute_metrics,
            callbacks=[calibration],
        )

    A loss with state is advanced once per epoch by the evaluation at its end (`eval_strategy="epoch"`), or by the last
    one within it. Its state is stored in the `trainer_state.json` of checkpoints, and restored by
    `train(resume_from_checkpoint=...)`.

    Args:
        loss: Loss, by name or as a function.
        metrics: Names as in a study file.
        weight: As for `Criterion`.
        binary: Every logit is an event of its own, as with `num_labels=1` or several labels per text.
        alpha: As for `Criterion`.
        logits: Accept `binary` scores that all lie in [0, 1]. Otherwise they are refused as probabilities.
        ignore_index: Label of positions to leave out.
    """

    def __init__(
        self,
        loss: str | Loss,
        metrics: Sequence[str] = DEFAULT_METRICS,
        *,
        weight: Tensor | None = None,
        binary: bool = False,
        alpha: float | None = None,
        logits: bool = False,
        ignore_index: int = -100,
    ) -> None:
        self.criterion = Criterion(loss, weight=weight, binary=binary, alpha=alpha, ignore_index=ignore_index)
        self.logits = logits
        self.metrics = named_metrics(metrics)
        self._val: Predictions | None = None
        self._awaits_evaluation = False  # for the evaluation at the end of an epoch

    def compute_loss(
        self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Return the mean loss, or the sum over `num_items_in_batch` if it is given.

        The Trainer counts all labels except -100, over all accumulated batches. If `ignore_index` differs from -100,
        the count is multiplied by the share of these labels in this batch that are not ignored.

        Raises:
            InputError: If the Trainer found no labels.
        """
        if labels is None:
            raise _no_labels_error()
        logits = outputs["logits"] if "logits" in outputs else outputs[0]
        logits = self._move_classes_to_axis_1(logits, labels.ndim)
        criterion = self.criterion.to(logits.device)
        criterion.reduction = "mean" if num_items_in_batch is None else "sum"
        loss = criterion(logits, labels)
        if num_items_in_batch is None:
            return loss
        num_used = (labels != criterion.ignore_index).sum().clamp_min(1)
        num_counted = (labels != -100).sum().clamp_min(1)
        used_share = num_used / num_counted
        return loss / (num_items_in_batch * used_share)

    def compute_metrics(self, evaluation: EvalPrediction) -> dict[str, float]:
        """Return the metrics by name, and keep the predictions for the loss."""
        outputs, labels = evaluation.predictions, evaluation.label_ids
        logits = to_tensor(outputs[0] if isinstance(outputs, tuple) else outputs, "logits")
        self._val = predictions_from_scores(
            self._move_classes_to_axis_1(logits, np.ndim(labels)),
            labels,
            binary=self.criterion.binary,
            logits=self.logits,
            ignore_index=self.criterion.ignore_index,
        )
        return {name: float(metric(self._val)) for name, metric in self.metrics.items()}

    def _move_classes_to_axis_1(self, logits: Tensor, label_ndim: int) -> Tensor:
        """Move the classes of token logits to axis 1, or give binary logits the shape of the labels."""
        if self.criterion.binary:
            return logits.squeeze(-1) if logits.ndim > label_ndim else logits
        return logits.movedim(-1, 1) if logits.ndim == 3 else logits  # (texts, tokens, classes)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the number of epochs of the loss, and restore its state from a checkpoint."""
        self._val, self._awaits_evaluation = None, False
        loss = losses.for_epochs(self.criterion.loss, state.num_train_epochs)
        saved: dict[str, Any] = _callback_states(state).get(STATE_KEY, {})
        initial_state = losses.state(loss)
        restored_state = {  # JSON holds tensors as lists
            name: torch.tensor(v).to(initial_state[name]) if isinstance(v, list) else v for name, v in saved.items()
        }
        self.criterion.loss = losses.restore_state(loss, restored_state) if restored_state else loss

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Tell the loss that the epoch has ended, unless an evaluation follows, whose predictions the loss can use."""
        self._awaits_evaluation = args.eval_strategy == "epoch"
        if not self._awaits_evaluation:
            self._advance(state)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Advance the loss if this evaluation ends an epoch."""
        if self._awaits_evaluation:
            self._awaits_evaluation = False
            self._advance(state)

    def _advance(self, state: TrainerState) -> None:
        """Tell the loss that an epoch has ended, and put its state where the Trainer's checkpoints save it."""
        self.criterion.after_epoch(round(state.epoch or 1) - 1, self._val)  # the Trainer counts finished epochs
        self._val = None
        loss_state = losses.state(self.criterion.loss)
        _callback_states(state)[STATE_KEY] = {
            name: v.tolist() if isinstance(v, Tensor) else v for name, v in loss_state.items()
        }


def _no_labels_error() -> InputError:
    """Return the error for a batch without labels."""
    return InputError(
        "Expected batches with the key 'labels', got none. Try renaming the column of labels.", code="no_labels"
    )


def _callback_states(state: TrainerState) -> dict[str, Any]:
    """Return the states of callbacks that checkpoints save, by a name for each."""
    return state.stateful_callbacks  # pyright: ignore[reportReturnType]


class LinearLossTrainer(Trainer):
    """A `Trainer` of causal language models whose loss never holds the logits of all tokens.

    The network runs without its last layer, whose loss is computed in chunks by `calibrant.nn.linear_loss`. Evaluation
    returns the loss alone. For models in one process: a wrapped model, as for several GPUs, is refused, as are models
    that change the logits after their last layer, such as Gemma 2, or the hidden states before it.

        trainer = LinearLossTrainer(model=model, args=arguments, train_dataset=tokens, token_loss="focal(gamma=3)")

    Args:
        *args: As for `Trainer`.
        token_loss: Loss of each next token, as for `linear_loss`.
        **kwargs: As for `Trainer`.
    """

    def __init__(self, *args: Any, token_loss: str | Loss = "cross_entropy", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.token_loss = token_loss
        self.model_accepts_loss_kwargs = True  # the Trainer then passes the number of tokens of all accumulated batches
        _check_logits_are_linear(self.model)

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the mean loss of the next tokens, or their sum over `num_items_in_batch` if it is given.

        Raises:
            InputError: If the model is wrapped, or has no output embeddings, or there are no labels.
        """
        head = _output_embeddings(model)
        if "labels" not in inputs:
            raise _no_labels_error()
        labels = inputs["labels"][:, 1:].flatten()  # each token is the label of the position before it
        outputs = model.base_model(**{name: value for name, value in inputs.items() if name != "labels"})
        hidden = outputs.last_hidden_state[:, :-1].flatten(0, 1)
        loss = linear_loss(hidden, head.weight, labels, self.token_loss, bias=getattr(head, "bias", None))
        if num_items_in_batch is not None:  # the sum of this batch, over the tokens of all accumulated batches
            loss = loss * (labels != -100).sum() / num_items_in_batch
        return (loss, {"loss": loss}) if return_outputs else loss


def _output_embeddings(model: Any) -> Any:
    """Return the last layer of a language model, or raise `InputError` if it has none."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is None:
        raise InputError(
            f"Expected a causal language model in one process, got {type(model).__name__}. Try Trainer with "
            "compute_loss_func.",
            code="language_model",
        )
    return head


def _check_logits_are_linear(model: Any) -> None:
    """Raise `InputError` unless a model's logits are its last hidden states times its output embeddings."""
    head, was_training = _output_embeddings(model), model.training
    tokens = torch.arange(1, 5, device=model.device)[None] % len(head.weight)
    model.eval()  # without dropout, both passes agree
    with torch.no_grad():
        logits = model(input_ids=tokens).logits
        linear = head(model.base_model(input_ids=tokens).last_hidden_state)
    model.train(was_training)
    tolerance = 8 * torch.finfo(head.weight.dtype).eps * float(logits.abs().max())
    if not torch.allclose(linear.to(logits.dtype), logits, rtol=0, atol=tolerance):
        raise InputError(
            f"Expected logits that are linear in the last hidden states, got others from {type(model).__name__}. Try "
            "Trainer with compute_loss_func.",
            code="not_linear",
        )
