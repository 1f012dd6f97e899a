"""Losses as torch modules."""

import inspect
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from calibrant import losses
from calibrant._core.registry import LOSSES
from calibrant._core.text import shorten_repr
from calibrant._core.types import Fraction, InputError, Loss, StatefulLoss, check_arguments
from calibrant.predictions import Predictions

MIN_EPOCH_BATCHES = 10  # fewer batches with gradients are not taken for a training


class Criterion(nn.Module):
    """A loss as a torch module: `Criterion("focal(gamma=3)")(logits, labels).backward()`.

    Logits (n, k) or (n, k, d1, ...) go with labels (n) or (n, d1, ...), or with soft labels: probabilities in the shape
    of the logits, whose loss is the mean over labels drawn from them. Logits in float16 or bfloat16 are computed in
    float32, also under autocast. A loss with state is advanced by `after_epoch`, and its state is part of the
    `state_dict`. A warning says so if it is used for training without `after_epoch`.

    With `binary`, each logit s is an event with P(y = 1) = 1 / (1 + exp(-s)), and labels are 0, 1 or that probability,
    or NaN if they are missing: logits (n) or (n, 1, d1, ...) with labels (n) or (n, d1, ...), or logits and labels
    (n, m) for m labels per sample. The loss is that of the two logits -s/2 and s/2: focal becomes the sigmoid focal
    loss.

    Args:
        loss: Text of a registered loss, or a callable (n k), (n) -> (n). A loss that sees the batch as a whole receives
            the weight of each row by its parameter `weights`.
        reduction: As in `torch.nn.functional.cross_entropy`. The weighted mean divides by the total class weight.
        weight: Weight of each class (k). It multiplies the whole loss of a sample, including label smoothing; torch
            weights each class's term of the smoothed sum, which moves the minimum away from the smoothed target. A soft
            label has the mean weight of its classes.
        ignore_index: Label of positions to leave out, also from penalties on the whole batch.
        binary: Whether each logit is an event of its own.
        alpha: With `binary`, the weight of events that happen; the others have 1 - alpha (Lin et al. 2017). The mean
            divides by the number of events, not by their weight.

    Attributes:
        is_advanced: Whether `after_epoch` has been called, or a callback of a trainer calls it.

    >>> criterion = Criterion("focal(gamma=2)", ignore_index=-1)
    >>> criterion
    Criterion(focal(gamma=2), ignore_index=-1)
    >>> criterion(torch.zeros(3, 2), torch.tensor([0, 1, -1]))
    tensor(0.1733)
    >>> Criterion("focal(gamma=2)", binary=True, alpha=0.25)(torch.zeros(4), torch.tensor([0.0, 0.0, 0.0, 1.0]))
    tensor(0.1083)
    """

    weight: Tensor | None

    @check_arguments
    def __init__(
        self,
        loss: str | Loss,
        *,
        reduction: Literal["mean", "sum", "none"] = "mean",
        weight: Tensor | Sequence[float] | None = None,
        ignore_index: int = -100,
        binary: bool = False,
        alpha: Fraction | None = None,
    ) -> None:
        super().__init__()
        if alpha is not None and not binary:
            raise InputError(
                "Expected binary=True beside alpha. Try weight=torch.tensor([...]) to weight classes.", code="alpha"
            )
        self.loss: Loss = LOSSES.resolve(loss) if isinstance(loss, str) else loss
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.binary = binary
        self.alpha = alpha
        self.register_buffer("weight", None if weight is None else _check_class_weights(weight))
        self._takes_weights = "weights" in inspect.signature(self.loss).parameters
        self._labels_checked = False  # values are checked once on a GPU, which would wait for every check
        self._loss_text = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
        self.is_advanced = not losses.state(self.loss)
        self._num_trained_batches: dict[int, int] = {}  # by the id of the module, because copies begin again
        self._was_evaluated = False  # after it was used for training

    def extra_repr(self) -> str:
        """Return the loss and the settings that differ from their defaults, for the text of a module."""
        defaults = {"reduction": "mean", "ignore_index": -100, "binary": False, "alpha": None}
        settings = [
            f"{name}={getattr(self, name)!r}" for name, value in defaults.items() if getattr(self, name) != value
        ]
        weight = [] if self.weight is None else [f"weight={shorten_repr(self.weight.tolist())}"]
        return ", ".join([self._loss_text, *settings, *weight])

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss, or the loss of each position with reduction "none"."""
        if not (self.is_advanced or torch.compiler.is_compiling()):
            self._note_use(logits.requires_grad)
        with torch.autocast(logits.device.type, enabled=False):  # it would round the products inside losses
            return self._compute(logits, labels)

    def _compute(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the result of `forward`."""
        flatten = _flatten_binary if self.binary else _flatten_classes
        rows, targets, shape = flatten(logits, labels)  # (n, k), (n) or (n, k), and the shape of the result
        rows = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
        targets = targets.to(rows) if targets.is_floating_point() else targets.long()
        if targets.ndim == 1:
            used = (targets != self.ignore_index) & ~(self.binary & targets.isnan())  # NaN is a missing event
            targets = targets.where(used, 0)  # any valid label, because the loss of unused rows is set to 0
        else:  # soft labels (n, k)
            used = torch.ones_like(rows[:, 0], dtype=torch.bool)
        if (targets.is_cpu or not self._labels_checked) and not torch.compiler.is_compiling():
            _check_label_values(targets, rows.shape[1], self.binary, self.ignore_index)
            self._labels_checked = targets.numel() > 0  # an empty batch says nothing about the next
        # The weight by `alpha`: alpha for targets of 1, 1 - alpha for targets of 0, and between them for probabilities
        factor = 1.0 if self.alpha is None else 1 - self.alpha + (2 * self.alpha - 1) * targets.to(rows)
        if self.binary and targets.is_floating_point():
            targets = torch.stack([1 - targets, targets], -1)
        if self.weight is not None and len(self.weight) != rows.shape[1]:
            raise InputError(
                f"Expected a weight of each of {rows.shape[1]} classes, got {len(self.weight)} weights. With "
                "binary=True, the classes are 0 and 1 for every event.",
                code="num_weights",
            )
        class_weight = used.to(rows) if self.weight is None else _target_weights(self.weight.to(rows), targets) * used
        weights = class_weight * factor
        values = self.loss(rows, targets, weights=weights) if self._takes_weights else self.loss(rows, targets)  # pyright: ignore
        check_loss_shape(values, rows)
        values = values.where(used, 0) * weights  # where, because 0 * inf is NaN
        if self.reduction == "none":
            return values.view(shape)
        return values.sum() if self.reduction == "sum" else values.sum() / class_weight.sum()

    def after_epoch(self, epoch: int, val: Predictions | None = None) -> None:
        """Advance a loss with state to the next epoch.

        Args:
            epoch: Epoch that ended, counted from 0.
            val: Validation predictions.
        """
        if isinstance(self.loss, StatefulLoss):
            self.loss = self.loss.after_epoch(epoch, val)
        self.is_advanced = True

    def _note_use(self, is_training: bool) -> None:
        """Count a batch, and warn if training goes on after an evaluation without `after_epoch`."""
        if not is_training:
            self._was_evaluated = bool(self._num_trained_batches)
        elif self._was_evaluated:
            self._warn_not_advanced()
        else:
            self._num_trained_batches[id(self)] = self._num_trained_batches.get(id(self), 0) + 1

    def _warn_not_advanced(self) -> None:
        """Warn, once, that the loss stays that of the first epoch."""
        self.is_advanced = True
        warnings.warn(
            f"{self._loss_text} stays as in its first epoch without after_epoch. Call criterion.after_epoch(epoch, "
            "val) after every epoch.",
            stacklevel=2,
        )

    def train(self, mode: bool = True) -> "Criterion":
        """Set the mode, as for any module, and remember evaluations."""
        self._was_evaluated = self._was_evaluated or (not mode and bool(self._num_trained_batches))
        return super().train(mode)

    def __del__(self) -> None:
        """Warn if the loss was used for training and never advanced."""
        if (
            not self.__dict__.get("is_advanced", True)
            and self._num_trained_batches.get(id(self), 0) >= MIN_EPOCH_BATCHES
        ):
            self._warn_not_advanced()

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Add the loss state to that of the module, under keys "loss.NAME"."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, value in losses.state(self.loss).items():
            destination[f"{prefix}loss.{name}"] = torch.as_tensor(value)

    def _load_from_state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, state_dict: dict[str, Any], prefix: str, metadata: Any, strict: bool, missing_keys: list[str], *args: Any
    ) -> None:
        """Restore the state of the loss if it is complete, and report its missing keys, then load the buffers."""
        current = losses.state(self.loss)
        keys = {f"{prefix}loss.{name}": name for name in current}
        saved = {name: state_dict[key] for key, name in keys.items() if key in state_dict}
        for key in keys:
            state_dict.pop(key, None)  # torch would report it as unexpected
        if current and len(saved) == len(current):
            # Numbers were saved as tensors
            restored = {name: v if isinstance(current[name], Tensor) else v.item() for name, v in saved.items()}
            self.loss = losses.restore_state(self.loss, restored)
        missing_keys += [key for key, name in keys.items() if name not in saved]
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing_keys, *args)


def _flatten_classes(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, torch.Size]:
    """Return logits (n, k), labels (n) or soft labels (n, k), and the shape of positions."""
    shape = logits.shape[:1] + logits.shape[2:]
    are_soft = labels.is_floating_point()
    label_shape = logits.shape if are_soft else shape
    if logits.ndim < 2 or labels.shape != label_shape:
        hint = ""
        if labels.shape == logits.shape:
            hint = " Try labels.float() for one-hot labels, binary=True for several labels per sample."
        raise InputError(
            "Expected logits (n, k, ...) and class indices (n, ...) or floating soft labels (n, k, ...), got "
            f"{tuple(logits.shape)} and {tuple(labels.shape)} of {labels.dtype}.{hint}",
            code="shape",
        )
    refuse_one_class(logits)
    flat_labels = _flatten_positions(labels) if are_soft else labels.flatten()
    return _flatten_positions(logits), flat_labels, shape


def _flatten_positions(x: Tensor) -> Tensor:
    """Return a tensor (n, k) unchanged, or (n, k, d1, ...) as (n d1 ..., k)."""
    return x if x.ndim == 2 else x.movedim(1, -1).flatten(0, -2)


def _flatten_binary(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, torch.Size]:
    """Return two logits per event (n, 2), its outcome (n) as a class or probability, and the shape of events."""
    has_class_axis = logits.shape[1:2] == (1,)
    shape_without_axis = logits.shape[:1] + logits.shape[2:]
    if labels.shape != logits.shape and not (has_class_axis and labels.shape == shape_without_axis):
        raise InputError(
            "Expected one logit per label, (n, ...) or (n, 1, ...) and (n, ...), with binary=True, got "
            f"{tuple(logits.shape)} and {tuple(labels.shape)}. Try binary=False for logits of two classes.",
            code="shape",
        )
    half = logits.flatten() / 2  # [-s/2, s/2] instead of [0, s] treats both classes alike
    return torch.stack([-half, half], -1), labels.flatten(), labels.shape


def _check_label_values(targets: Tensor, k: int, binary: bool, ignore_index: int) -> None:
    """Raise `InputError` for labels out of range or soft labels that do not sum to 1, except inside vmap."""
    if targets.numel() == 0:
        return
    soft = targets.is_floating_point()
    try:
        low, high = map(float, targets.aminmax())
        is_normalized = binary or not soft or float((targets.sum(-1) - 1).abs().max()) < 1e-2
    except RuntimeError:  # vmap hides the values
        return
    upper = 1 if binary or soft else k - 1
    if not 0 <= low <= high <= upper:
        raise InputError(
            f"Expected labels in 0 .. {upper}, got {low:g} .. {high:g}. Positions with ignore_index={ignore_index} are "
            "left out.",
            code="label_range",
        )
    if not is_normalized:
        raise InputError(
            "Expected soft labels that sum to 1 over the classes. Try binary=True for several labels per sample.",
            code="label_sums",
        )


def check_loss_shape(values: Tensor, rows: Tensor) -> None:
    """Raise `InputError` unless a loss has one value per row: broadcasting would mix in the rows that are left out."""
    if values.shape != rows.shape[:1]:
        raise InputError(
            f"Expected a loss with one value per row ({len(rows)},), got {tuple(values.shape)}. Try reduction='none' "
            "for a loss of torch.",
            code="loss_shape",
        )


def _check_class_weights(weight: Any) -> Tensor:
    """Return class weights as a tensor (k). Raise `InputError` unless all are finite and at least 0."""
    tensor = torch.as_tensor(weight)
    if tensor.ndim != 1 or not bool((tensor.isfinite() & (tensor >= 0)).all()):
        raise InputError(
            f"Expected weight as one finite number of at least 0 per class, got {shorten_repr(tensor.tolist())}.",
            code="class_weights",
        )
    return tensor


def _target_weights(weight: Tensor, targets: Tensor) -> Tensor:
    """Return the class weight of each label, or the mean over a soft label."""
    return (targets.to(weight) * weight).sum(-1) if targets.is_floating_point() else weight[targets]


def refuse_one_class(logits: Tensor) -> None:
    """Raise `InputError` for logits (n, 1, ...) of classes."""
    if logits.shape[1] == 1:
        raise InputError(
            f"Expected at least 2 classes, got logits {tuple(logits.shape)}. Try binary=True.", code="one_class"
        )
