"""Transformers: any loss for the `Trainer`, with state or in chunks, and calibration metrics of every evaluation."""

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import EvalPrediction, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from calibrant import losses
from calibrant._core.types import InputError, Loss
from calibrant.integrations._common import (
    DEFAULT_METRICS,
    advance,
    evaluate_metrics,
    named_metrics,
)
from calibrant.nn import Criterion, linear_loss
from calibrant.nn.collecting import join_predictions, predictions_of_batches, to_tensor
from calibrant.predictions import Predictions

__all__ = ["CalibrationTrainerCallback", "LinearLossTrainer"]

STATE_KEY = "calibrant"  # of the loss's state in trainer_state.json
NUM_PROBE_TOKENS = 4


class CalibrationTrainerCallback(TrainerCallback):
    """A loss, metrics and the callback that advances the loss, for texts, tokens and pixels.

        calibration = CalibrationTrainerCallback("AdaFocal")
        trainer = Trainer(
            ...,
            compute_loss_func=calibration.compute_loss,
            compute_metrics=calibration.compute_metrics,
            callbacks=[calibration],
        )

    A causal language model is trained and evaluated on the next tokens: the label of a position is the token after it,
    as in the model's own loss. Models of tokens, masked tokens and translations keep their labels. The loss that the
    model itself returns for a few tokens tells which kind it is.

    A loss with state is advanced once per epoch by the evaluation at its end (`eval_strategy="epoch"`), or by the last
    one within it. Its state is stored in the `trainer_state.json` of checkpoints, and restored by
    `train(resume_from_checkpoint=...)`.

    Args:
        loss: Loss, by name or as a function.
        metrics: Names as in a study file.
        weight: Weight of each class (k). The weighted losses are divided by the number of labels, as the Trainer counts
            them over accumulated batches and processes, and not by their total weight as in `Criterion`. Weights with a
            mean of 1 over the training labels keep the scale.
        binary: Every logit is an event of its own, as with `num_labels=1` or several labels per text.
        alpha: As for `Criterion`.
        logits: Accept `binary` scores that all lie in [0, 1]. Otherwise they are refused as probabilities.
        ignore_index: Label of positions to leave out.
        shift_labels: Whether logits of tokens predict the next token; default: as in the model's own loss.
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
        shift_labels: bool | None = None,
    ) -> None:
        self.criterion = Criterion(
            loss, reduction="sum", weight=weight, binary=binary, alpha=alpha, ignore_index=ignore_index
        )
        self.make_predictions = partial(predictions_of_batches, binary=binary, logits=logits, ignore_index=ignore_index)
        self.shift_labels = shift_labels
        self.metrics = named_metrics(metrics)
        self._val: Predictions | None = None
        self._batches: list[tuple[Tensor, Tensor]] = []  # of the evaluation, logits and labels
        self._awaits_evaluation = False  # for the evaluation at the end of an epoch

    def compute_loss(
        self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Return the loss of all labels over their number, or over `num_items_in_batch` if it is given.

        The Trainer counts all labels except -100, over all accumulated batches. If `ignore_index` differs from -100,
        the count is multiplied by the share of these labels in this batch that are not ignored.

        Raises:
            InputError: If the Trainer found no labels, or it is unknown whether they are those of the next tokens.
        """
        if labels is None:
            raise _no_labels_error()
        logits, labels = self._align(outputs["logits"] if "logits" in outputs else outputs[0], labels)
        criterion = self.criterion.to(logits.device)
        loss = criterion(logits, labels)
        num_used = self._used_positions(labels).sum().clamp_min(1)
        if num_items_in_batch is None:
            return loss / num_used
        num_counted = (labels != -100).sum().clamp_min(1)
        return loss / (num_items_in_batch * (num_used / num_counted))

    def _used_positions(self, labels: Tensor) -> Tensor:
        """Return which positions have a label. Soft labels of several classes have one position."""
        if labels.is_floating_point():
            return (
                ~labels.isnan() & (labels != self.criterion.ignore_index)
                if self.criterion.binary
                else labels[:, 0] >= 0
            )
        return labels != self.criterion.ignore_index

    def compute_metrics(self, evaluation: EvalPrediction, compute_result: bool = True) -> dict[str, float]:
        """Return the metrics by name, and keep the predictions for the loss. Metrics of NaN logits are NaN.

        With `batch_eval_metrics=True`, the Trainer calls this for every batch, and with `compute_result` for the last.
        """
        outputs, labels = evaluation.predictions, evaluation.label_ids
        logits, labels = self._align(
            to_tensor(outputs[0] if isinstance(outputs, tuple) else outputs, "logits"), to_tensor(labels, "labels")
        )
        self._batches.append((logits.cpu(), labels.cpu()))
        if not compute_result:
            return {}
        batches, self._batches = self._batches, []
        values, self._val = evaluate_metrics(
            self.metrics,
            lambda: join_predictions(self.make_predictions(batches)),
            [logits for logits, _ in batches],
        )
        return values

    def _align(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits with the classes on axis 1, and the label that each position predicts.

        Binary logits get the shape of the labels.
        """
        if self.criterion.binary:
            return logits.squeeze(-1) if logits.ndim > labels.ndim else logits, labels
        if logits.ndim != 3:
            return logits, labels
        if self.shift_labels is None:  # (texts, tokens, classes)
            raise InputError(
                "Expected a model whose own loss tells whether logits predict the next token, got none. Try "
                "callbacks=[calibration] with a model that returns a loss, or shift_labels=True for causal language "
                "models and shift_labels=False for others.",
                code="unknown_shift",
            )
        if self.shift_labels:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return logits.movedim(-1, 1), labels

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Find out whether the logits of the Trainer's model predict the next token."""
        if self.shift_labels is None:
            self.shift_labels = predicts_next_token(kwargs["model"])

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the number of epochs of the loss, and restore its state from a checkpoint.

        Raises:
            InputError: If the loss needs validation predictions, and the Trainer never evaluates.
        """
        self._val, self._awaits_evaluation, self._batches = None, False, []
        if args.eval_strategy == "no" and losses.needs_validation(self.criterion.loss):
            raise InputError(
                "Expected evaluations for a loss that learns from them, got eval_strategy='no'. Try "
                "eval_strategy='epoch'.",
                code="no_validation",
            )
        self.criterion.is_advanced = True  # by this callback
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
        epoch = round(state.epoch or 1) - 1  # the Trainer counts finished epochs
        advance(self.criterion, epoch, self._val)
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


def predicts_next_token(model: Any) -> bool | None:
    """Return whether the loss of a model compares logits with the next label, or None if that cannot be told.

    The model computes its loss of a few tokens with one label, which equals the negative log-likelihood of either the
    position of the label or the position before it. Encoder-decoder models shift their inputs instead of the labels.
    """
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    try:
        values = _probe_loss(model)
    except Exception:  # models of other inputs raise exceptions of any type
        return None
    if values is None:
        return None
    loss, by_position = values
    errors = (by_position - loss).abs()
    unshifted, shifted = errors.tolist()
    if min(unshifted, shifted) > 0.01 * (1 + abs(float(loss))) or unshifted == shifted:
        return None
    return shifted < unshifted


def _probe_loss(model: Any) -> tuple[Tensor, Tensor] | None:
    """Return a model's loss of one label, and the negative log-likelihoods at its position and the one before.

    Returns None for models without token embeddings, labels or logits of tokens.
    """
    embeddings = model.get_input_embeddings()
    if not isinstance(embeddings, torch.nn.Embedding) or "labels" not in inspect.signature(model.forward).parameters:
        return None
    tokens = torch.arange(1, 1 + NUM_PROBE_TOKENS, device=embeddings.weight.device)[None] % embeddings.num_embeddings
    labels = torch.full_like(tokens, -100)
    labels[0, 1] = 0  # a class of every model
    was_training = model.training
    model.eval()  # without dropout, the loss equals that of the logits
    try:
        with torch.no_grad():
            outputs = model(input_ids=tokens, labels=labels)
    finally:
        model.train(was_training)
    logits, loss = outputs["logits"], outputs["loss"]
    if logits.shape[:-1] != tokens.shape:
        return None
    return loss.double(), -logits[0, [1, 0]].double().log_softmax(-1)[:, 0].to(loss.device)


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
